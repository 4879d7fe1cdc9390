"""What the broker shows of itself: jobs as rows, one job, why it waits, the GPUs, counters."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from berth.errors import LiveError
from berth.live.driver.snapshot import Gpu, LiveJob, Stranger, Tenant, job_row
from berth.live.local.broker import Broker
from berth.live.local.cards import Card, GpuReading
from berth.live.local.entry import HELD, RUNNING, SHOWN, STARTING, WAITING, Entry, application_of
from berth.live.local.messages import asked_mib
from berth.live.local.protocol import VERSION, Caller, Message
from berth.live.local.request import WHOLE
from berth.live.local.snapshot import where_of
from berth.tenants import SUSPENDED

MOST_ENDED = 1000
MOST_REASONS = 50
"""Waiting jobs of a listing that the brain is asked about."""


class Listing:
    """Answers requests that change nothing."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def do_status(self, message: Message, caller: Caller) -> Message:
        broker = self._broker
        link, states = broker.link, self._counts()
        faults = (
            link.trouble,
            broker.deciding.policy_error,
            broker.commits.broken,
            broker.mended,
            broker.export_trouble,
            broker.notices.unsent_text(),
        )
        uncounted = [broker.watch.uncounted_text(job_id) for job_id in broker.watch.uncounted]
        trouble = [*filter(None, faults), *broker.keeper.profile_notes, *uncounted]
        return {
            "version": VERSION, "pid": os.getpid(), "state_folder": broker.places.folder, "boot": broker.boot,
            "socket": broker.places.socket, "fake": broker.cards.fake, "uid": os.geteuid(),
            "policy": link.policy, "deciding": link.deciding if link.ready else "", "brain": link.progress,
            "brain_pid": link.pid, "brain_restarts": link.restarts, "knowledge": broker.deciding.chosen.knowledge,
            "settings": broker.settings, "trouble": trouble, "jobs": states, "decisions": broker.deciding.decisions,
            "decision_s": broker.deciding.seconds[-200:], "cgroups": bool(broker.runner.cgroups.folder),
            "host_mem_enforced": broker.runner.cgroups.limits_memory,
            "gpus": self._gpus(), "gangs": self._gangs(),
        }  # fmt: skip

    def _gangs(self) -> list[Message]:
        gangs, found = self._broker.book.gangs, []
        for gang, tasks in gangs.tasks().items():
            running = sum(task.state in (STARTING, RUNNING) for task in tasks)
            request = tasks[0].request
            found.append({
                "name": request.gang, "user": tasks[0].user, "starts_together": request.gang_starts,
                "waiting": len(tasks) - running, "running": running, "ended": gangs.ended(gang),
            })  # fmt: skip
        return found

    def _counts(self) -> dict[str, int]:
        counts = dict.fromkeys((WAITING, HELD, STARTING, RUNNING), 0)
        for entry in self._broker.book.jobs.values():
            state = SUSPENDED if entry.suspension == SUSPENDED else entry.state
            counts[state] = counts.get(state, 0) + 1
        return counts

    def _gpus(self) -> list[Message]:
        broker = self._broker
        readings = {reading.index: reading for reading in broker.watch.readings}
        tenants: dict[int, list[Tenant]] = {card.index: [] for card in broker.cards.cards}
        for job in broker.book.active.values():
            for at in job.slots if job.suspension != SUSPENDED else ():
                mem_mib = job.share[1] or broker.cards.cards[at].mem_mib
                uses = readings[at].runs if at in readings else {}
                use_pct, used_mib = uses.get(f"{job.id}-{job.start}", (None, None))
                tenants[at].append(
                    Tenant(
                        job.id,
                        job.user,
                        _name(job),
                        job.share[0],
                        mem_mib,
                        used_mib,
                        use_pct,
                        job.start_ms,
                        job.shown_state,
                        measured=job.id in broker.deciding.measured,
                        **self._growth(job),
                    )
                )
        gpus = (
            self._gpu(card, readings.get(card.index), tuple(tenants[card.index]))
            for card in broker.cards.cards
        )
        return [asdict(gpu) for gpu in gpus]

    def _growth(self, job: Entry) -> dict[str, int]:
        """What a job whose memory may grow was promised, may have, and asked for; empty for any other."""
        growing = self._broker.growth.jobs.get(job.id)
        if growing is None or not growing.grows:
            return {}
        return {
            "promise_mib": job.promise_mib or job.share[1],
            "max_mib": growing.most_mib,
            "asked": growing.asked,
            "granted": growing.granted,
            "refused": growing.refused,
        }

    def _gpu(self, card: Card, reading: GpuReading | None, tenants: tuple[Tenant, ...]) -> Gpu:
        gpu = Gpu(
            "",
            card.index,
            card.model,
            card.mem_mib,
            tenants,
            drained=card.index in self._broker.drained,
            uuid=card.uuid,
        )
        if reading is None:
            return gpu
        strangers = [
            Stranger(f"process {each.pid}", each.mem_mib, each.command, pid=each.pid)
            for each in reading.strangers
        ]
        for part in reading.partitions:
            remedy = "" if part.pids else f"nothing uses it; berth partition remove {part.name}"
            milli = 10 * part.core_pct
            strangers.append(Stranger(f"partition {part.name}", part.mem_mib, remedy=remedy, milli=milli))
        health = "it has fallen off the bus" if reading.lost else ""
        return replace(
            gpu, strangers=tuple(strangers), used_mib=reading.used_mib, use_pct=reading.use_pct, health=health
        )

    async def do_queue(self, message: Message, caller: Caller) -> Message:
        broker = self._broker
        entries: Iterable[Entry] = broker.book.jobs.values()
        if named := message.get("ids"):
            entries = [entry for each in named for entry in self.find(str(each))]
        elif message.get("ended"):
            ended = {entry.id: entry for entry in broker.store.ended(MOST_ENDED)} | broker.just_finished
            entries = sorted((ended | broker.book.jobs).values(), key=lambda entry: entry.serial)
        user, states = message.get("user"), message.get("states")
        if unknown := set(states or ()) - SHOWN:
            raise LiveError(f"--state {min(unknown)}; there are {', '.join(sorted(SHOWN))}")
        uid = caller.uid if message.get("mine") else None
        listed = [
            entry
            for entry in entries
            if (not user or entry.user == user)
            and (uid is None or entry.uid == uid)
            and (not states or entry.state in states or entry.shown_state in states)
        ][: message.get("limit")]
        asked = [entry.id for entry in listed if entry.state == WAITING and entry.offered][:MOST_REASONS]
        reasons = await broker.deciding.reasons(asked) if asked else {}
        jobs = [self._live(entry, *reasons.get(entry.id, ("", None, None))) for entry in listed]
        return {"rows": [job_row(job) for job in jobs], "note": self.note()}

    def note(self) -> str:
        """What keeps everything from starting; empty where nothing does."""
        link = self._broker.link
        if self._broker.commits.broken:
            return f"nothing new starts: {self._broker.commits.broken}"
        if not link.ready:
            why = f" ({link.trouble})" if link.trouble else ""
            return f"nothing new starts until the policy '{link.policy}' answers: it is {link.progress}{why}"
        if self._broker.deciding.policy_error:
            return f"'{link.deciding}' cannot decide: {self._broker.deciding.policy_error}"
        return link.trouble

    def _live(self, entry: Entry, reason: str, from_ms: int | None, to_ms: int | None) -> LiveJob:
        request = entry.request
        return LiveJob(
            entry.id,
            entry.user,
            _name(entry),
            entry.shown_state,
            request.gpus,
            self._broker.book.limits.milli_of(request),
            entry.share[1] or request.mem_mib,
            entry.submit_ms,
            entry.ready_ms,
            None if entry.state in (WAITING, HELD) else entry.start_ms,
            where_of(entry.slots if entry.suspension != SUSPENDED else ()),
            reason or self._reason(entry),
            from_ms,
            to_ms,
            priority=request.priority,
            gang=request.gang,
            attempt=entry.attempt,
            end_ms=entry.end_ms,
            exit_code=entry.exit_code,
        )

    def _reason(self, entry: Entry) -> str:
        if entry.suspension == SUSPENDED:
            back = f"{where_of(entry.slots)} has room"
            if entry.idle and not entry.resumes:
                return "suspended while idle; it runs on with its next call of CUDA"
            if entry.idle:
                return f"suspended while idle; it runs on when {back}"
            if entry.resumes or entry.lends_to:
                return f"suspended; it runs on when {back}"
            by = f"suspended: {entry.reason}" if entry.reason else "suspended by its user"
            return f"{by}; after `berth resume {entry.id}` it runs on when {back}"
        if entry.state != WAITING:
            return entry.reason
        if not entry.offered:
            return entry.reason
        return "waits for the policy" if not self._broker.link.ready else "waits for room"

    def find(self, job_id: str) -> list[Entry]:
        """A job or the tasks of an array, ended or not; LiveError where there is none.

        What is no id is a name: of all jobs so named that have not ended, else of the last one that has.
        """
        is_id = job_id.replace("_", "", 1).isdigit()
        store = self._broker.store
        book = self._broker.book
        of_name = (entry for entry in book.jobs.values() if entry.request.name == job_id)
        live = book.named(job_id) if is_id else list(of_name)
        ids = {entry.id for entry in live}
        ended = []
        if is_id:
            ended = [entry for entry in store.named(job_id) if entry.id not in ids]
        elif not live:
            ended = store.last_of_name(job_id)
        newer = book.jobs | self._broker.just_finished
        found = sorted([*live, *(newer.get(each.id, each) for each in ended)], key=lambda entry: entry.serial)
        if not found:
            raise LiveError(f"there is no job '{job_id}'; `berth queue --ended` lists them")
        return found

    async def do_job(self, message: Message, caller: Caller) -> Message:
        await self._broker.commits.settled()
        broker = self._broker
        found = []
        for entry in self.find(str(message["id"])):
            request = entry.request
            output, _ = broker.runner.output_of(entry)
            mem_mib = asked_mib(entry, broker.book.limits)
            if entry.needs_mib and (mem_mib or request.milli < WHOLE):
                mem_mib = max(mem_mib, entry.needs_mib)
            found.append({
                "id": entry.id, "state": entry.shown_state, "user": entry.user, "uid": entry.uid, "name": request.name,
                "application": application_of(request, entry.params), "comment": request.comment,
                "command": list(request.argv), "folder": request.cwd, "priority": request.priority,
                "gpus": request.gpus, "milli": broker.book.limits.milli_of(request), "mem_mib": mem_mib,
                "mem_max_mib": broker.book.limits.most_mib(request),
                "core_pct": request.core_pct, "cpu_milli": request.cpu_milli, "host_mem_mib": request.host_mem_mib,
                "time_limit_ms": request.time_limit_ms, "after": [":".join(each) for each in request.after],
                "gang": request.gang, "gang_starts": request.gang_starts,
                "params": dict(entry.params), "index": entry.index, "submit_ms": entry.submit_ms,
                "ready_ms": entry.ready_ms, "start_ms": entry.start_ms, "end_ms": entry.end_ms,
                "suspended_ms": entry.suspended_ms,
                "attempt": entry.attempt, "start": entry.start, "exit_code": entry.exit_code,
                "slots": list(entry.slots),
                "share": list(entry.share), "reason": self._reason(entry), "since_ms": entry.since_ms,
                "output": output, "error": request.error, "attempts": broker.store.attempts(entry.id),
                "unsent": self._unsent(entry, caller),
            })  # fmt: skip
        return {"jobs": found}

    def _unsent(self, entry: Entry, caller: Caller) -> list[str]:
        """Its notices that were not sent: for its user and for root, as an answer of a server may be secret."""
        own = caller.uid in (0, entry.uid)
        return self._broker.notices.unsent_of(entry.id) if own else []

    async def do_why(self, message: Message, caller: Caller) -> Message:
        """Why jobs wait. A task of an array that waits for the same as one before it names that one as `like`."""
        broker = self._broker
        found = []
        explained: dict[tuple[Any, ...], str] = {}
        for entry in self.find(str(message["id"])):
            answer: Message = {
                "id": entry.id, "state": entry.shown_state,
                "since_ms": entry.suspended_since_ms or entry.since_ms,
                "reason": (not entry.suspension and broker.watch.uncounted_text(entry.id)) or self._reason(entry),
                "now_ms": broker.now_ms(), "note": self.note(), "policy": broker.link.policy,
                "never": "", "like": "", "gang": entry.request.gang, "gang_starts": entry.request.gang_starts,
                "growth": {"mem_mib": entry.share[1], **growth} if (growth := self._growth(entry)) else None,
                "unsent": self._unsent(entry, caller),
            }  # fmt: skip
            found.append(answer)
            kind = (entry.request_key, entry.state, entry.offered, answer["reason"], entry.needs_mib)
            answer["like"] = explained.get(kind, "")
            explained.setdefault(kind, entry.id)
            if entry.state == WAITING and entry.offered and not answer["like"]:
                brain = await broker.deciding.why(entry.id)
                answer["brain"] = brain if brain.get("found") else None
                answer["reason"] = brain.get("reason") or answer["reason"]
                answer["never"] = brain.get("never", "")
                answer["gpus"] = self._gpus()
        return {"jobs": found}

    async def do_pending(self, message: Message, caller: Caller) -> Message:
        jobs = [
            {
                "job_id": entry.id, "user": entry.user, "account": "", "virtual_cluster": "", "qos": "",
                "application": application_of(entry.request, entry.params), "gpu_model": "",
                "gpus": entry.request.gpus, "share_milli": self._broker.book.limits.milli_of(entry.request),
                "cpu_milli": entry.request.cpu_milli, "mem_mib": entry.request.host_mem_mib,
                "time_limit_ms": entry.request.time_limit_ms, "node_count": 1, "queued_ms": entry.queued_ms,
                "start_ms": entry.start_ms, "blocked": entry.start_ms is None and entry.ready_ms is None,
                "reason": entry.reason,
            }
            for entry in self._broker.book.jobs.values()
        ]  # fmt: skip
        return {"jobs": sorted(jobs, key=lambda job: (job["queued_ms"], job["job_id"]))}

    async def do_metrics(self, message: Message, caller: Caller) -> Message:
        return self.measured()

    def measured(self) -> Message:
        broker = self._broker
        counters = broker.counters
        return {
            "gpus": self._gpus(), "jobs": self._counts(), "ended": dict(counters.ended),
            "submitted": counters.submitted, "refused_allocations": counters.refused,
            "decisions": broker.deciding.decisions, "brain_restarts": broker.link.restarts,
            "commits": broker.commits.commits, "queue_wait_seconds": counters.waited.to_dict(),
            "decision_seconds": counters.decided.to_dict(), "policy": broker.link.policy,
            "ready": broker.link.ready and broker.link.deciding == broker.link.policy,
            "growth": {
                "asked": broker.growth.asked, "granted": broker.growth.granted, "refused": broker.growth.refused,
            },
            "uncounted_mib": {job_id: each.uncounted_mib for job_id, each in broker.watch.uncounted.items()},
        }  # fmt: skip


def _name(entry: Entry) -> str:
    return entry.request.name or " ".join(word.rpartition("/")[2] for word in entry.request.argv[:3])[:40]
