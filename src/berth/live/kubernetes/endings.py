"""Pods that have ended: what is learned of them, so that the owner of one that ran out of GPU memory gets more."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass

from berth.errors import AskError
from berth.knowledge import Knowledge
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.asks import ask_of, created_ms, pod_group
from berth.live.kubernetes.entries import Entry, Settings, State
from berth.live.kubernetes.gangs import GangBook
from berth.live.kubernetes.jobs import job_of
from berth.live.kubernetes.memories import Measured, Memories, killed_by_kernel, measured_of
from berth.live.kubernetes.node_book import NodeBook
from berth.live.kubernetes.pod_queue import PodQueue
from berth.live.kubernetes.steps import Tell
from berth.model import RecordState
from berth.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Ending:
    """How a pod ended, as its status and its annotations say."""

    is_ours: bool
    how: RecordState
    measured: Measured | None
    """What its node's agent measured, which may be written into it later."""

    @property
    def held_mib(self) -> int:
        """The GPU memory that it held, or would have held; 0 if nothing was measured."""
        return 0 if self.measured is None else max(self.measured.peak_mib, self.measured.needed_mib)


class Endings:
    """Learns from pods that have ended, once from each."""

    def __init__(
        self,
        settings: Settings,
        knowledge: Knowledge,
        scheduler: Scheduler,
        entries: dict[str, Entry],
        nodes: NodeBook,
        gangs: GangBook,
        memories: Memories,
        queue: PodQueue,
    ) -> None:
        self._settings = settings
        self._knowledge = knowledge
        self._scheduler = scheduler
        self._entries = entries
        self._nodes = nodes
        self._gangs = gangs
        self._memories = memories
        self._queue = queue
        self._learned: set[str] = set()  # pods of which it is known that they ran out of memory
        self.messages: deque[Tell] = deque()
        """To be handed out with the next decision."""

    def of(self, pod: api.Pod) -> Ending:
        """How a pod ended."""
        completed = pod.status.phase == "Succeeded"
        ours = pod.spec.scheduler_name == self._settings.scheduler_name
        measured = measured_of(pod.metadata.annotations) if ours else None
        if completed:
            how = RecordState.COMPLETED
        elif measured is not None and measured.refused > 0:
            how = RecordState.OUT_OF_MEMORY
        else:
            how = RecordState.FAILED
        return Ending(ours, how, measured)

    def count_in_gang(self, pod: api.Pod, ending: Ending) -> None:
        """A pod had completed when this scheduler began: it may be one of a gang that others of run or wait."""
        meta = pod.metadata
        if ending.how is not RecordState.COMPLETED or not (ending.is_ours and pod.spec.node_name):
            return
        if names.GANG not in meta.annotations and pod_group(pod) is None:
            return
        with contextlib.suppress(AskError):
            ask = ask_of(pod, self._settings.compat)
            if ask.gang is not None:
                self._gangs.join(ask.gang, meta.uid).done(meta.uid)
                self._entries[meta.uid] = Entry(
                    meta.uid, meta.namespace, meta.name, ask, State.DONE, pod.spec.node_name
                )

    def learn(self, pod: api.Pod, entry: Entry | None, ending: Ending, now: bool) -> None:
        """Learn from a pod of ours that failed; `now`: the scheduler was told of this ending just now."""
        meta, measured = pod.metadata, ending.measured
        if ending.how is RecordState.COMPLETED or not ending.is_ours or meta.uid in self._learned:
            return
        if ending.how is RecordState.OUT_OF_MEMORY and measured is not None:
            self._learned.add(meta.uid)
            message = self._more_for_owner(pod, entry, measured, ending.held_mib, is_known=now)
            if entry is not None:  # else it ended before this scheduler began, and another has said so
                self._say(meta, message)
        elif now and killed_by_kernel(pod):
            self._say(
                meta, "a container exceeded its own limit of the node's memory: raise resources.limits.memory"
            )

    def forget(self, uid: str) -> None:
        """A pod is gone from the cluster."""
        self._learned.discard(uid)

    def _more_for_owner(
        self, pod: api.Pod, entry: Entry | None, measured: Measured, held_mib: int, *, is_known: bool
    ) -> str:
        """Give the next pod of the owner more than this one had, and return what there is to say. `is_known`: the
        knowledge was told by the scheduler."""
        meta = pod.metadata
        ask = entry.ask if entry is not None else None
        if ask is None:
            with contextlib.suppress(AskError):
                ask = ask_of(pod, self._settings.compat)
        message = f"it ran out of GPU memory: {measured.refused} allocations were refused at {measured.peak_mib} MiB"
        if ask is None or not ask.owner:
            return message
        if not is_known and self._knowledge.learns:
            job = job_of(meta.uid, meta.namespace, created_ms(meta), ask, (), self._nodes.cards)
            self._knowledge.ran_out_of_memory(job, held_mib)
        owner = (meta.namespace, ask.owner)
        need = self._memories.ran_out(owner, measured)
        for other in [each for each in self._entries.values() if each.state is State.WAITING]:
            mine = other.ask is not None and (other.namespace, other.ask.owner) == owner
            if mine and self._scheduler.waits(other.uid):
                self._queue.job_changed(other)
        gets = "whole GPUs" if need.alone else f"{need.mib} MiB of each GPU"
        return f"{message}; the next pod of {ask.owner} gets {gets}"

    def _say(self, meta: api.Meta, message: str) -> None:
        self.messages.append(Tell(meta.uid, meta.namespace, meta.name, "OutOfMemory", message, False))
