"""What the broker answers to clients: each request by its name, for who the kernel says is asking."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from berth.errors import BerthError, LiveError, StoreError
from berth.live.local.entry import HELD, RUNNING, STARTING, WAITING, Entry, application_of
from berth.live.local.protocol import VERSION, Caller, Message, decoded, encoded
from berth.live.local.request import Request, edited, request_of, tasks_of
from berth.live.local.store import Statement, key_of_text, of_entry, of_request, of_text
from berth.live.local.telling import for_brain

if TYPE_CHECKING:
    from berth.live.local.broker import Broker

__all__ = ["Service"]

GOING = (STARTING, RUNNING)
MOST_ENDED = 1000
MOST_REASONS = 50
"""Waiting jobs of a listing that the brain is asked about."""


class Service:
    """Answers requests."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._users: dict[int, str] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the client goes away."""
        caller = _caller(writer.get_extra_info("socket"))
        try:
            while line := await reader.readline():
                writer.write(encoded(await self._answer(line, caller)))
                await writer.drain()
        except (ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    async def _answer(self, line: bytes, caller: Caller) -> Message:
        try:
            message = decoded(line)
            handler = getattr(self, f"do_{message.get('do')}", None)
            if handler is None:
                raise LiveError(
                    f"no request '{message.get('do')}'; client and broker are of different versions?"
                )
            answer: Message = await handler(message, caller)
        except BerthError as error:
            return {"ok": False, "error": str(error)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._broker.log("bad-request", why=repr(error))
            return {"ok": False, "error": f"a request that cannot be understood: {error!r}"}
        return {"ok": True, **answer}

    # What there is

    async def do_status(self, message: Message, caller: Caller) -> Message:
        """Whether all is well, and what the GPUs hold."""
        broker = self._broker
        link, states = broker.link, self._counts()
        said = (link.trouble, broker.deciding.policy_error, broker.commits.broken, broker.mended)
        trouble = [*filter(None, said), *broker.keeper.profile_notes]
        return {
            "version": VERSION, "pid": os.getpid(), "state_folder": broker.places.folder, "boot": broker.boot,
            "socket": broker.places.socket, "fake": broker.cards.fake, "uid": os.geteuid(),
            "policy": link.policy, "deciding": link.deciding if link.ready else "", "brain": link.progress,
            "brain_pid": link.pid, "brain_restarts": link.restarts, "knowledge": broker.knowledge,
            "settings": broker.settings, "trouble": trouble, "jobs": states, "decisions": broker.deciding.decisions,
            "decision_s": broker.deciding.seconds[-200:], "cgroups": bool(broker.runner.cgroups.folder),
            "gpus": self._gpus(),
        }  # fmt: skip

    def _counts(self) -> dict[str, int]:
        counts = dict.fromkeys((WAITING, HELD, STARTING, RUNNING), 0)
        for entry in self._broker.book.jobs.values():
            counts[entry.state] += 1
        return counts

    def _gpus(self) -> list[Message]:
        broker = self._broker
        looks = {look.index: look for look in broker.watch.looks}
        found = []
        for card in broker.cards.cards:
            tenants = [
                {
                    "id": job.id, "user": job.user, "name": _name(job), "milli": job.share[0],
                    "mem_mib": job.share[1] or card.mem_mib, "state": job.state, "since_ms": job.start_ms,
                }
                for job in broker.book.active.values()
                if card.index in job.slots
            ]  # fmt: skip
            look = looks.get(card.index)
            found.append({
                "index": card.index, "uuid": card.uuid, "model": card.model, "mem_mib": card.mem_mib,
                "used_mib": look.used_mib if look else None, "use_pct": look.use_pct if look else None,
                "lost": bool(look and look.lost), "tenants": tenants,
                "strangers": [
                    {"pid": each.pid, "mem_mib": each.mem_mib, "command": each.command}
                    for each in (look.strangers if look else ())
                ],
                "partitions": [
                    {"name": each.name, "mem_mib": each.mem_mib, "core_pct": each.core_pct}
                    for each in (look.partitions if look else ())
                ],
            })  # fmt: skip
        return found

    async def do_queue(self, message: Message, caller: Caller) -> Message:
        """The jobs as rows."""
        broker = self._broker
        entries: Iterable[Entry] = broker.book.jobs.values()
        if named := message.get("ids"):
            entries = [entry for each in named for entry in self._find(str(each))]
        elif message.get("ended"):
            entries = sorted([*broker.store.ended(MOST_ENDED), *entries], key=lambda entry: entry.serial)
        user, states = message.get("user"), message.get("states")
        listed = [
            entry
            for entry in entries
            if (not user or entry.user == user) and (not states or entry.state in states)
        ][: message.get("limit")]
        asked = [entry.id for entry in listed if entry.state == WAITING and entry.offered][:MOST_REASONS]
        reasons = await broker.deciding.reasons(asked) if asked else {}
        rows = [self._row(entry, reasons.get(entry.id, "")) for entry in listed]
        return {"columns": _COLUMNS, "rows": rows, "note": self._note()}

    def _note(self) -> str:
        """What keeps everything from starting; empty where nothing does."""
        link = self._broker.link
        if self._broker.commits.broken:
            return f"nothing new starts: {self._broker.commits.broken}"
        if not link.ready:
            why = f" ({link.trouble})" if link.trouble else ""
            doing = _DOING.get(link.progress, link.progress)
            return f"nothing new starts until the policy '{link.policy}' answers: it is {doing}{why}"
        if self._broker.deciding.policy_error:
            return f"the policy '{link.deciding}' fails: {self._broker.deciding.policy_error}"
        return link.trouble

    def _row(self, entry: Entry, reason: str) -> list[Any]:
        return [
            entry.id, entry.user, _name(entry), entry.state, entry.request.gpus, entry.request.milli,
            entry.share[1] or entry.request.mem_mib, entry.submit_ms, entry.start_ms, entry.end_ms,
            entry.attempt, list(entry.slots), entry.exit_code, reason or self._reason(entry),
        ]  # fmt: skip

    def _reason(self, entry: Entry) -> str:
        if entry.state != WAITING:
            return entry.reason
        if not entry.offered:
            return entry.reason
        return "waits for the policy" if not self._broker.link.ready else "waits for room"

    def _find(self, job_id: str) -> list[Entry]:
        """A job or the tasks of an array, ended or not; LiveError where there is none."""
        live = self._broker.book.named(job_id)
        ids = {entry.id for entry in live}
        ended = [entry for entry in self._broker.store.named(job_id) if entry.id not in ids]
        for entry in ended:
            newer = self._broker.book.jobs.get(entry.id)
            if newer is not None:
                ended[ended.index(entry)] = newer
        recent = {entry.id: entry for entry in self._broker.book.finished}
        found = sorted(
            [*live, *(recent.get(entry.id, entry) for entry in ended)], key=lambda entry: entry.serial
        )
        if not found:
            raise LiveError(f"there is no job '{job_id}'; `berth queue --ended` lists them")
        return found

    async def do_job(self, message: Message, caller: Caller) -> Message:
        """All of one job."""
        await self._written()
        broker = self._broker
        found = []
        for entry in self._find(str(message["id"])):
            request = entry.request
            output, _ = broker.runner.output_of(entry)
            asked = for_brain(entry, broker.book.limits)
            found.append({
                "id": entry.id, "state": entry.state, "user": entry.user, "uid": entry.uid, "name": request.name,
                "application": application_of(request, entry.params), "comment": request.comment,
                "command": list(request.argv), "folder": request.cwd, "priority": request.priority,
                "gpus": request.gpus, "milli": asked["share"][0], "mem_mib": asked["share"][1],
                "core_pct": request.core_pct, "cpu_milli": request.cpu_milli, "host_mem_mib": request.host_mem_mib,
                "time_limit_ms": request.time_limit_ms, "after": [":".join(each) for each in request.after],
                "params": dict(entry.params), "index": entry.index, "submit_ms": entry.submit_ms,
                "queued_ms": entry.queued_ms, "start_ms": entry.start_ms, "end_ms": entry.end_ms,
                "attempt": entry.attempt, "exit_code": entry.exit_code, "slots": list(entry.slots),
                "share": list(entry.share), "reason": self._reason(entry), "since_ms": entry.since_ms,
                "output": output, "error": request.error, "attempts": broker.store.attempts(entry.id),
            })  # fmt: skip
        return {"jobs": found}

    async def do_why(self, message: Message, caller: Caller) -> Message:
        """Why jobs wait."""
        broker = self._broker
        found = []
        for entry in self._find(str(message["id"])):
            told: Message = {
                "id": entry.id, "state": entry.state, "reason": self._reason(entry), "since_ms": entry.since_ms,
                "now_ms": broker.now_ms(), "note": self._note(), "policy": broker.link.policy,
                "never": broker.deciding.never.get(entry.id, ""),
            }  # fmt: skip
            if entry.state == WAITING and entry.offered:
                brain = await broker.deciding.why(entry.id)
                told["brain"] = brain if brain.get("found") else None
                told["reason"] = brain.get("reason") or told["reason"]
                told["gpus"] = self._gpus()
            found.append(told)
        return {"jobs": found}

    async def do_pending(self, message: Message, caller: Caller) -> Message:
        """The jobs that wait and run, as `berth.history.importing.pending.Queued` has them."""
        jobs = [
            {
                "job_id": entry.id, "user": entry.user, "account": "", "virtual_cluster": "", "qos": "",
                "application": application_of(entry.request, entry.params), "gpu_model": "",
                "gpus": entry.request.gpus, "share_milli": entry.request.milli,
                "cpu_milli": entry.request.cpu_milli, "mem_mib": entry.request.host_mem_mib,
                "time_limit_ms": entry.request.time_limit_ms, "node_count": 1, "queued_ms": entry.queued_ms,
                "start_ms": entry.start_ms,
            }
            for entry in self._broker.book.jobs.values()
        ]  # fmt: skip
        return {"jobs": sorted(jobs, key=lambda job: (job["queued_ms"], job["job_id"]))}

    async def do_wait(self, message: Message, caller: Caller) -> Message:
        """The states and exits of jobs, when they have ended."""
        broker = self._broker
        if message.get("all"):
            entries = [entry for entry in broker.book.jobs.values() if entry.uid == caller.uid]
        else:
            entries = [entry for each in message["ids"] for entry in self._find(str(each))]
        ends = [broker.on_end(entry.id) for entry in entries if entry.id in broker.book.jobs]
        if ends:
            timeout = message.get("timeout")
            _, late = await asyncio.wait(ends, timeout=timeout)
            if late:
                return {"late": len(late), "jobs": []}
        await self._written()
        told = [self._find(entry.id)[0] for entry in entries]
        return {
            "late": 0,
            "jobs": [
                {"id": job.id, "state": job.state, "exit_code": job.exit_code, "reason": job.reason}
                for job in told
            ],
        }

    async def _written(self) -> None:
        """Wait until what has happened is in the store; where it cannot be written, go on without."""
        try:
            await self._broker.commits.flushed()
        except StoreError:
            return

    async def do_metrics(self, message: Message, caller: Caller) -> Message:
        """What Prometheus is told."""
        broker = self._broker
        counters = broker.counters
        return {
            "gpus": self._gpus(), "jobs": self._counts(), "ended": dict(counters.ended),
            "submitted": counters.submitted, "refused_allocations": counters.refused,
            "decisions": broker.deciding.decisions, "brain_restarts": broker.link.restarts,
            "commits": broker.commits.commits, "queue_wait_seconds": counters.waited.to_dict(),
            "decision_seconds": counters.decided.to_dict(), "policy": broker.link.policy,
            "ready": broker.link.ready and broker.link.deciding == broker.link.policy,
        }  # fmt: skip

    # What users do

    async def do_submit(self, message: Message, caller: Caller) -> Message:
        """Queue jobs: all of the message, or none."""
        broker = self._broker
        book, now_ms = broker.book, broker.now_ms()
        if os.geteuid() != 0 and caller.uid != os.geteuid():
            raise LiveError(
                f"this queue belongs to {self._user(os.geteuid())} and starts jobs as that user alone; start one of"
                " your own with `berth up`, or have root start the machine's"
            )
        if broker.link.deciding == "" and broker.stopped.is_set():
            raise LiveError("the queue is going down; submit again when it is up")
        statements: list[Statement] = []
        made: list[Entry] = []
        texts: dict[str, str] = {}
        number = book.next_number, book.next_serial
        try:
            for count, each in enumerate(message["jobs"], 1):
                try:
                    request = self._requested(each, message, now_ms, texts, statements)
                    book.limits.check(request)
                except LiveError as error:
                    if len(message["jobs"]) == 1:
                        raise
                    raise LiveError(f"job {count} of the message: {error}") from error
                key = broker.next_request_key()
                statements.append(of_request(key, request))
                made += book.draft(
                    request,
                    tasks_of(each["flags"]),
                    key=key,
                    uid=caller.uid,
                    user=self._user(caller.uid),
                    now_ms=now_ms,
                )
            statements += [of_entry(entry) for entry in made]
            broker.reserve_numbers()
            await broker.commits.ask(statements)
        except LiveError:
            if (book.next_number, book.next_serial) != number and not made:
                book.next_number, book.next_serial = number
            raise
        book.add(made, broker.now_ms())
        broker.counters.submitted += len(made)
        broker.act()
        return {"ids": _grouped(made), "count": len(made), "note": self._note()}

    def _requested(
        self, each: Message, message: Message, now_ms: int, texts: dict[str, str], statements: list[Statement]
    ) -> Request:
        """The request of one job, with its environment and script among the texts."""
        keys = {}
        for name in ("env", "script"):
            value = each.get(name, message.get(name))
            text = value if isinstance(value, str) else json.dumps(value) if value else ""
            if text:
                if text not in texts:
                    texts[text] = key_of_text(text)
                    statements.append(of_text(text))
                keys[name] = texts[text]
        request = request_of(each["flags"], argv=each["argv"], cwd=message["cwd"], now_ms=now_ms)
        return Request(**{**_shallow(request), **keys})

    async def do_cancel(self, message: Message, caller: Caller) -> Message:
        """End jobs."""
        return await self._each(message, caller, self._broker.book.cancel)

    async def do_hold(self, message: Message, caller: Caller) -> Message:
        """Keep jobs from starting."""
        return await self._each(message, caller, self._broker.book.hold)

    async def do_release(self, message: Message, caller: Caller) -> Message:
        """Let held jobs start."""
        return await self._each(message, caller, self._broker.book.release)

    async def do_requeue(self, message: Message, caller: Caller) -> Message:
        """Run jobs again."""
        book = self._broker.book

        def requeue(entry: Entry, now_ms: int) -> None:
            if entry.id in book.jobs:
                book.requeue(entry, now_ms)
            else:
                book.revive(entry, now_ms)

        return await self._each(message, caller, requeue)

    async def do_edit(self, message: Message, caller: Caller) -> Message:
        """Change what jobs ask for; tasks of an array that asked for the same share what they ask for now."""
        broker = self._broker
        new: dict[int, tuple[int, Request]] = {}
        for entry in self._controlled(message, caller):
            if entry.request_key not in new:
                request = edited(entry.request, message["flags"], broker.now_ms())
                broker.book.limits.check(request)
                new[entry.request_key] = broker.next_request_key(), request
        await broker.commits.ask([of_request(*each) for each in new.values()])

        def edit(entry: Entry, now_ms: int) -> None:
            key, request = new[entry.request_key]
            broker.book.edit(entry, request, key, now_ms)

        return await self._each(message, caller, edit)

    async def _each(self, message: Message, caller: Caller, change: Callable[[Entry, int], None]) -> Message:
        """Change each job that can be, and say which cannot and why; LiveError where none can."""
        now_ms = self._broker.now_ms()
        refused: list[Message] = []
        changed: list[Entry] = []
        for entry in self._controlled(message, caller):
            before = entry.state
            try:
                change(entry, now_ms)
            except LiveError as error:
                refused.append({"id": entry.id, "state": before, "why": str(error)})
            else:
                changed.append(entry)
        if refused and not changed:
            more = f"; so are {len(refused) - 1} more" if len(refused) > 1 else ""
            raise LiveError(f"{refused[0]['why']}{more}")
        self._broker.act()
        await self._broker.commits.flushed()
        jobs = [
            {"id": entry.id, "state": entry.state, "stopping": entry.stop if entry.state in GOING else ""}
            for entry in changed
        ]
        return {"jobs": jobs, "refused": refused}

    def _controlled(self, message: Message, caller: Caller) -> list[Entry]:
        """The jobs that a message names; LiveError where one is another user's."""
        jobs = self._broker.book.jobs
        if message.get("all"):
            return [entry for entry in jobs.values() if entry.uid == caller.uid]
        found = [entry for each in message["ids"] for entry in self._find(str(each))]
        for entry in found:
            if caller.uid not in (0, entry.uid, os.geteuid()):
                raise LiveError(
                    f"job {entry.id} is {entry.user}'s; you may see it, and only {entry.user} or root control it"
                )
        return found

    # The queue itself

    async def do_policy(self, message: Message, caller: Caller) -> Message:
        """Say or change what decides."""
        broker = self._broker
        name, knowledge = message.get("name"), message.get("knowledge")
        if name or knowledge:
            self._operator(caller)
            before = broker.knowledge, broker.paths
            broker.knowledge = knowledge or broker.knowledge
            if ":" in (name or "") + (knowledge or ""):
                broker.paths = [str(message["cwd"])]
            try:
                await broker.link.change(name or broker.link.policy)
            except LiveError:
                broker.knowledge, broker.paths = before
                raise
            await broker.keep_policy()
        return {
            "policy": broker.link.policy, "deciding": broker.link.deciding, "knowledge": broker.knowledge,
            "brain": broker.link.state, "trouble": broker.link.trouble,
        }  # fmt: skip

    async def do_down(self, message: Message, caller: Caller) -> Message:
        """Stop the queue."""
        self._operator(caller)
        broker = self._broker
        running = list(broker.book.active.values())
        if message.get("cancel"):
            broker.link.close()  # nothing new starts
            running = list(broker.book.active.values())
            ends = [broker.on_end(entry.id) for entry in running]
            for entry in running:
                broker.book.cancel(entry, broker.now_ms())
            broker.act()
            if ends:
                await asyncio.wait(ends)
            running = []
        asyncio.get_running_loop().call_later(0.05, broker.stopped.set)
        return {
            "running": len(running), "waiting": len(broker.book.jobs) - len(running), "pid": os.getpid(),
        }  # fmt: skip

    def _operator(self, caller: Caller) -> None:
        if caller.uid not in (0, os.geteuid()):
            owner = self._user(os.geteuid())
            allowed = "root" if owner == "root" else f"root and {owner}, whose queue this is,"
            raise LiveError(f"only {allowed} may do that")

    def _user(self, uid: int) -> str:
        if uid not in self._users:
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._users[uid] = str(uid)
        return self._users[uid]


_DOING = {"loading": "loading", "making": "loading", "compiling": "compiling", "trying": "compiling"}

_COLUMNS = [
    "id", "user", "name", "state", "gpus", "milli", "mem_mib", "submit_ms", "start_ms", "end_ms", "attempt", "slots",
    "exit_code", "reason",
]  # fmt: skip


def _caller(connection: socket.socket) -> Caller:
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return Caller(*struct.unpack("3i", told))


def _name(entry: Entry) -> str:
    return entry.request.name or " ".join(word.rpartition("/")[2] for word in entry.request.argv[:3])[:40]


def _shallow(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in Request.__slots__}


def _grouped(made: Iterable[Entry]) -> list[str]:
    """The id of each submission: an array's once."""
    return list(dict.fromkeys(entry.number for entry in made))
