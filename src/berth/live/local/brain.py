"""The brain: the scheduler and its policy in a process of their own, which the broker may kill and start again.

It reads lines of JSON from standard input, what happened, and answers to each `decide` with what was decided. It keeps
nothing: a brain that has just started is told all that waits and runs.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from berth.live.local.tables import sizes

__all__ = ["Brain", "main"]

Answer = dict[str, Any]


class _Told(NamedTuple):
    """What the broker said of a job that the scheduler does not know."""

    version: int
    pins: tuple[int, ...]
    """The GPUs that its user named; empty: any."""
    standing: tuple[int, int]
    """What the queue is in the order of."""


def main() -> None:
    """Serve one broker until it closes the line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what a policy prints is no answer
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="brain: %(message)s")

    def say(answer: Answer) -> None:
        answers.write(json.dumps(answer, separators=(",", ":")) + "\n")

    brain: Brain | None = None
    for line in sys.stdin:
        message = json.loads(line)
        if message["do"] == "begin":
            try:
                brain = _begun(message, say)
            except Exception as error:  # noqa: BLE001  whatever a user's own policy raises
                say({"say": "error", "why": _in_words(error), "fatal": True})
                return
        elif brain is not None:
            for answer in brain.answers(message):
                say(answer)


def _begun(message: Answer, say: Any) -> Brain:
    """A brain that is ready. The steps are told, because a user's own policy has its limit of time for each."""
    say({"say": "progress", "what": "loading"})
    sys.path += [
        path for path in message.get("paths", []) if path not in sys.path
    ]  # of a user's `my.module:thing`
    import berth.knowledge
    import berth.policies
    import berth.scheduler  # noqa: F401

    say({"say": "progress", "what": "making"})
    brain = Brain(message)
    say({"say": "progress", "what": "compiling"})
    began = time.perf_counter()
    if ":" in message["policy"]:
        brain.warm_up("fifo+best-fit")
    say({"say": "progress", "what": "trying"})
    brain.warm_up()
    brain.tell(message["notes"])
    say({"say": "ready", "policy": message["policy"], "seconds": round(time.perf_counter() - began, 2)})
    return brain


def _in_words(error: Exception) -> str:
    from berth.errors import BerthError, in_one_line

    return str(error) if isinstance(error, BerthError) else in_one_line(error)


class Brain:
    """A scheduler that is told what happened in the words of the broker."""

    def __init__(self, begin: Mapping[str, Any]) -> None:
        """`begin` names the nodes, the policy and the knowledge. Raises BerthError where there is no such thing."""
        from berth.cluster import Cluster
        from berth.knowledge import LearnsMemory, make_knowledge
        from berth.live.card_models import card_model
        from berth.model import Node
        from berth.policies import Setting, make_policy
        from berth.scheduler import Scheduler

        self._nodes = tuple(
            Node(
                name=node["name"],
                gpus=node["gpus"],
                gpu_model=card_model(node["model"], node["card_mib"]) if node["gpus"] else None,
                cpu_milli=node["cpu_milli"],
                mem_mib=node["mem_mib"],
            )
            for node in begin["nodes"]
        )
        slots = [(row, at) for row, node in enumerate(self._nodes) for at in range(node.gpus)]
        listed = [index for node in begin["nodes"] for index in node.get("indices", ())]
        self._slots = [slot for _, slot in sorted(zip(listed, slots, strict=True))] if listed else slots
        self._place = {slot: at for at, slot in enumerate(self._slots)}
        self._knowledge = make_knowledge(begin["knowledge"])
        # Asked once: whether an object has all methods of a protocol takes a tenth of a decision.
        self._learns_memory = self._knowledge if isinstance(self._knowledge, LearnsMemory) else None
        self._policy_name = str(begin["policy"])
        self._policy = make_policy(self._policy_name, Setting(knowledge=self._knowledge))
        self._scheduler = Scheduler(Cluster(self._nodes), self._policy, self._knowledge)
        self._told: dict[str, _Told] = {}  # of each job that waits or runs
        self._pinned: dict[str, Any] = {}  # waiting jobs that want certain GPUs, in order
        self._last_standing = (0, 0)
        self._confirmed: set[str] = set()
        self._time_limit_s = float(begin.get("decide_s", 5.0))

    def warm_up(self, policy_name: str = "") -> None:
        """Decide once on jobs that are not there, so that what is to be compiled is; by default with its policy."""
        from berth.cluster import Cluster
        from berth.knowledge import make_knowledge
        from berth.model import Job, RecordState, Share
        from berth.policies import Setting, make_policy
        from berth.scheduler import Scheduler

        knowledge = make_knowledge("user")
        policy = make_policy(policy_name or self._policy_name, Setting(knowledge=knowledge))
        scheduler = Scheduler(Cluster(self._nodes), policy, knowledge)
        gpus = min(1, len(self._slots))
        for at, milli in enumerate((1000, 300, 300)):
            share = Share(milli, 1024 if gpus else 0)
            scheduler.submit(
                Job(f"warm-{at}", 0, None, gpus=gpus, share=share, application="warm", time_limit_ms=60_000)
            )
        for _ in scheduler.decide(1):
            pass
        for job_id in list(scheduler.cluster.running):
            scheduler.ended(job_id, RecordState.COMPLETED, 2)
        for _ in scheduler.decide(3):
            pass

    def answers(self, message: Mapping[str, Any]) -> Iterator[Answer]:
        """What is to be said to one message."""
        if message["do"] == "decide":
            self.tell(message["notes"])
            yield from self._decide(int(message["now_ms"]), int(message["serial"]))
        elif message["do"] == "why":
            yield {"say": "why", "serial": message["serial"], **self._why(str(message["id"]))}
        elif message["do"] == "reasons":
            found = {job_id: self._reason(job_id) for job_id in message["ids"]}
            yield {"say": "why", "serial": message["serial"], "found": True, "reasons": found}

    # What happened

    def tell(self, notes: list[dict[str, Any]]) -> None:
        """Take in what happened, in its order. What is about a job that is not there any more changes nothing."""
        from berth.errors import SchedulerError

        for note in notes:
            try:
                getattr(self, f"_{note['note']}")(note)
            except SchedulerError as error:
                logging.getLogger(__name__).warning("%s: %s", note["note"], error)

    def _submit(self, note: Mapping[str, Any]) -> None:
        job = self._job(note["job"])
        standing = self._told[job.id].standing
        late = standing < self._last_standing  # it keeps a place among those that wait already
        self._last_standing = max(standing, self._last_standing)
        if self._told[job.id].pins:
            self._pinned[job.id] = job
            if late:
                in_order = sorted(self._pinned.items(), key=lambda item: self._told[item[0]].standing)
                self._pinned = dict(in_order)
            return
        ahead_of = None
        if late:
            behind = (each for each in self._scheduler.queue if self._told[each.id].standing > standing)
            ahead_of = next(behind, None)
        self._scheduler.submit(job, ahead_of=ahead_of)

    def _running(self, note: Mapping[str, Any]) -> None:
        """A job that ran before this brain began, or was starting, and then may still fail to."""
        job = self._job(note["job"])
        slots = self._slots_of(note["slots"], job)
        self._place_now(job, slots, tuple(note["share"]), bool(note["best_effort"]), int(note["start_ms"]))
        if not note.get("starting"):
            self._scheduler.started(job.id)
            self._confirmed.add(job.id)

    def _replace(self, note: Mapping[str, Any]) -> None:
        job = self._job(note["job"])
        if job.id in self._pinned:
            self._pinned[job.id] = job
            return
        if job.id in self._scheduler.cluster.running and job.id not in self._confirmed:
            self._scheduler.failed_to_start(job.id, job.submit_ms)
        if job.id in self._scheduler.cluster.running:
            run = self._scheduler.cluster.running[job.id]
            job = replace(run.job, time_limit_ms=job.time_limit_ms)
        self._scheduler.replace(job)

    def _withdraw(self, note: Mapping[str, Any]) -> None:
        job_id = str(note["id"])
        if self._pinned.pop(job_id, None) is None:
            self._scheduler.withdraw(job_id, self._now(note))
        self._forget(job_id)

    def _started(self, note: Mapping[str, Any]) -> None:
        self._scheduler.started(str(note["id"]))
        self._confirmed.add(str(note["id"]))

    def _failed(self, note: Mapping[str, Any]) -> None:
        job_id = str(note["id"])
        if job_id in self._scheduler.cluster.running and job_id not in self._confirmed:
            self._scheduler.failed_to_start(job_id, self._now(note), again=False)
            self._forget(job_id)

    def _ended(self, note: Mapping[str, Any]) -> None:
        from berth.model import RecordState

        job_id, how = str(note["id"]), str(note["how"])
        self._forget(job_id)
        if job_id not in self._scheduler.cluster.running:
            return  # evicted: its GPUs were given to another
        state = RecordState.FAILED if how == "exit-unknown" else RecordState(how)
        run = self._scheduler.cluster.running.get(job_id)
        self._scheduler.ended(job_id, state, self._now(note), held_mib=int(note.get("held_mib") or 0))
        if run is not None and note.get("peak_mib") and self._learns_memory is not None:
            self._learns_memory.measured(run.job, int(note["peak_mib"]))
        if self._scheduler.waits(job_id):  # the broker says whether it waits, and what it asks for then
            self._scheduler.withdraw(job_id, self._now(note))

    def _forget(self, job_id: str) -> None:
        self._confirmed.discard(job_id)
        if not self._scheduler.waits(job_id) and job_id not in self._pinned:
            self._told.pop(job_id, None)

    def _profile(self, note: Mapping[str, Any]) -> None:
        """A profile was recorded from life."""
        from pathlib import Path

        from berth.profiles import SHARED, read_profile

        profile = read_profile(Path(note["path"]))
        if self._learns_memory is not None and profile.kind != SHARED:
            self._learns_memory.recorded(profile)

    def _strangers(self, note: Mapping[str, Any]) -> None:
        from berth.model import GpuSlot

        for at, milli, mem_mib in note["slots"]:
            self._scheduler.strangers(GpuSlot(*self._slots[at]), milli, mem_mib)

    @staticmethod
    def _now(note: Mapping[str, Any]) -> int:
        return int(note.get("now_ms", 0))

    # What is decided

    def _decide(self, now_ms: int, serial: int) -> Iterator[Answer]:
        from berth.errors import BerthError
        from berth.model import Placement
        from berth.scheduler import Evicted, NeverFits, Refused

        began = time.perf_counter()
        limit = began + self._time_limit_s
        try:
            yield from self._decide_pinned(now_ms)
            for outcome in self._scheduler.decide(now_ms, out_of_time=lambda: time.perf_counter() > limit):
                if isinstance(outcome, Placement):
                    yield self._placed(outcome)
                elif isinstance(outcome, Evicted):
                    yield {"say": "evicted", "id": outcome.run.job.id}
                    self._scheduler.withdraw(
                        outcome.run.job.id, now_ms
                    )  # it waits when its processes are gone
                elif isinstance(outcome, Refused):
                    yield {"say": "refused", "why": outcome.why}
                elif isinstance(outcome, NeverFits):
                    yield {"say": "never", "id": outcome.job.id, "why": outcome.why}
        except BerthError as error:
            yield {"say": "error", "why": str(error).removeprefix(f"at {now_ms} ms ")}
        seconds = time.perf_counter() - began
        wake_ms = self._scheduler.next_wake_ms
        yield {"say": "decided", "serial": serial, "seconds": round(seconds, 6), "wake_ms": wake_ms}

    def _placed(self, placement: Any) -> Answer:
        job = placement.job
        at = [self._place[(slot.node, slot.index)] for slot in placement.slots] if job.gpus else []
        share = (placement.share.milli, placement.share.mem_mib)
        version, best_effort = self._told[job.id].version, placement.best_effort
        return {
            "say": "placed", "id": job.id, "version": version, "slots": at, "share": share,
            "best_effort": best_effort,
        }  # fmt: skip

    def _decide_pinned(self, now_ms: int) -> Iterator[Answer]:
        """Start the first of the jobs that want certain GPUs, where these have room."""
        from berth.errors import PlacementError

        for job_id, job in list(self._pinned.items()):
            roomy = [
                at for at in self._told[job_id].pins if at < len(self._slots) and self._has_room(at, job)
            ]
            if len(roomy) < job.gpus:
                continue
            slots = self._slots_of(roomy[: job.gpus], job)
            try:
                placed = self._place_now(job, slots, tuple(job.share), False, now_ms)
            except PlacementError:
                continue
            if placed is not None:
                del self._pinned[job_id]
                yield self._placed(placed)

    def _has_room(self, at: int, job: Any) -> bool:
        free_milli, free_mib = self._free(at)
        return bool(free_milli >= job.share.milli and free_mib >= job.share.mem_mib)

    def _free(self, at: int) -> tuple[int, int]:
        """Milli and MiB that are free of a GPU."""
        from berth.model import GpuSlot

        share = self._scheduler.cluster.free_on(GpuSlot(*self._slots[at]))
        return share.milli, share.mem_mib

    def _place_now(self, job: Any, slots: Any, share: Any, best_effort: bool, now_ms: int) -> Any:
        """Have a job placed on these slots and nowhere else; None if that cannot be."""
        from berth.model import Placement, Share

        wish = Placement(job, slots, Share(*share), best_effort, best_effort)
        return wish if self._scheduler.place(wish, now_ms) else None

    # Why

    def _why(self, job_id: str) -> Answer:
        """What stands in the way of a waiting job: each GPU with what is free of it."""
        scheduler = self._scheduler
        job = self._pinned.get(job_id) or scheduler.queue.named(job_id)
        if job is None:
            return {"found": False}
        order = [each.id for each in scheduler.queue]
        machine = self._machine_lacks(job)
        candidates = []
        for at in range(len(self._slots)):
            milli, mem_mib = self._free(at)
            lacking = []
            if self._told[job_id].pins and at not in self._told[job_id].pins:
                lacking.append("it is not among those named by --gpu")
            if milli < job.share.milli:
                lacking.append(f"{milli / 10:g} % of its compute is free, {job.share.milli / 10:g} % wanted")
            card = self._nodes[self._slots[at][0]].gpu_model
            whole_mib = card.mem_mib if card is not None and job.share.milli >= 1000 else 0
            wanted_mib = job.share.mem_mib or whole_mib
            if mem_mib < wanted_mib:
                lacking.append("{} is free, {} wanted".format(*sizes(mem_mib, wanted_mib)))
            candidates.append({
                "gpu": at, "free_milli": milli, "free_mib": mem_mib, "lacking": lacking,
                # Best fit takes the GPU that is left with least: the smaller is the better.
                "left_milli": milli - job.share.milli, "left_mib": mem_mib - wanted_mib,
            })  # fmt: skip
        run_ms, peak = self._knowledge.run_ms(job), self._knowledge.peak_mem_mib(job)
        return {
            "found": True, "policy": self._policy_name, "gpus": job.gpus if job.gpus else 0,
            "ahead": order.index(job_id) if job_id in order else 0, "waiting": len(order) + len(self._pinned),
            "first": order[:3], "candidates": candidates,
            "machine": machine, "reason": self._reason(job_id),
            "expected_ms": None if run_ms is None else run_ms.expected,
            "expected_by": "" if run_ms is None else run_ms.basis,
            "peak_mib": None if peak is None else peak.expected,
        }  # fmt: skip

    def _machine_lacks(self, job: Any) -> list[str]:
        """What the machine itself is short of for a job: CPUs and memory."""
        lacking = []
        used = [run.job for run in self._scheduler.cluster.running.values()]
        # A machine of several kinds of cards is several nodes; its CPUs are not divided among them.
        cpu, mem = self._nodes[0].cpu_milli, self._nodes[0].mem_mib
        if cpu is not None:
            free = cpu - sum(each.cpu_milli for each in used)
            if free < job.cpu_milli:
                lacking.append(
                    f"{free / 1000:g} of {cpu / 1000:g} CPUs are free, {job.cpu_milli / 1000:g} wanted"
                )
        if mem is not None:
            free = mem - sum(each.mem_mib for each in used)
            if free < job.mem_mib:
                lacking.append(
                    "{} of {} of the machine's memory is free, {} wanted".format(
                        *sizes(free, mem, job.mem_mib)
                    )
                )
        return lacking

    def _reason(self, job_id: str) -> str:
        """Why a job waits, in a few words; empty where it does not."""
        job = self._pinned.get(job_id) or self._scheduler.queue.named(job_id)
        if job is None:
            return ""
        if lacking := self._machine_lacks(job):
            return f"waits for the machine: {lacking[0]}"
        pins = self._told[job_id].pins
        among = [at for at in pins if at < len(self._slots)] if pins else range(len(self._slots))
        roomy = sum(self._has_room(at, job) for at in among)
        if roomy >= job.gpus:
            return "there is room; the policy has not placed it"
        return "waits for room"

    # Values

    def _job(self, told: Mapping[str, Any]) -> Any:
        from berth.model import Job, Share
        from berth.scheduler import Attempts

        job = Job(
            id=told["id"], submit_ms=told["submit_ms"], work_ms=None, user=told["user"],
            application=told["application"], gpus=told["gpus"], share=Share(*told["share"]),
            cpu_milli=told["cpu_milli"], mem_mib=told["mem_mib"], priority=told["priority"],
            time_limit_ms=told["time_limit_ms"], estimate_ms=told["estimate_ms"], retries=told["retries"],
        )  # fmt: skip
        self._told[job.id] = _Told(told["version"], tuple(told["pins"]), tuple(told["standing"]))
        if told["attempt"] > 1:
            self._scheduler.attempts[job.id] = Attempts(told["attempt"], 0)
        return job

    def _slots_of(self, places: Any, job: Any) -> Any:
        from berth.model import NO_GPU, GpuSlot

        if not job.gpus:
            return (GpuSlot(0, NO_GPU),)
        return tuple(GpuSlot(*self._slots[at]) for at in places)


if __name__ == "__main__":
    main()
