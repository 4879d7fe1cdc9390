"""Where jobs fit on a cluster: what they ask for, by type, and the nodes and GPUs with room for it.

Jobs that ask for the same have the same request type, a number, and are looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from berth.arrays import IntArray
from berth.cluster import kernels
from berth.cluster.amounts import Request
from berth.cluster.checks import check_job
from berth.cluster.kinds import WORD, NodeKinds, numbers_as_words
from berth.cluster.rows import NodeRows
from berth.model import NO_GPU, GpuSlot, Job, Node, starting_tasks

MORE_THAN_ANY_NODE = 2**50
"""Larger requests count as this; products of it with numbers of GPUs stay within 64 bits."""


class Room(NodeRows):
    """Nodes, and which of them have room for a job."""

    __slots__ = (
        "_fits_empty",
        "_last",
        "_last_number",
        "_owners",
        "_request_ids",
        "request_types",
        "requests",
    )

    def __init__(self, nodes: Sequence[Node], rank: Sequence[int] | None, owners: Iterable[str]) -> None:
        super().__init__(nodes, rank)
        self._owners = frozenset(owners).union(*(node.reserved_for for node in self.nodes))
        self._request_ids: dict[tuple[Any, ...], int] = {}
        self.requests: IntArray = self._request_table()
        """(≥ number of request types, ≥ 10): what a job of each type takes on one node, as `Request` says; for kernels.
        A new type may put another array in its place: ask for the type's number first."""
        self.request_types = 0
        """How many request types are known: those of all jobs that were ever asked about, until `keep_requests`."""
        self._last: Job | None = None  # the one that was asked about last, and its number
        self._last_number = -1
        self._fits_empty: dict[int, bool] = {}

    # What jobs ask for

    def request(self, job: Job) -> int:
        """The number of the job's request type: jobs that ask for the same have the same number."""
        if job is self._last:
            return self._last_number
        owner = job.user if self._owners and job.user in self._owners else ""
        key: tuple[Any, ...]
        key = (job.gpus, job.nodes, job.share, job.cpu_milli, job.mem_mib, job.models, job.labels, owner)
        if job.tasks:
            key = (*key, job.apart, *(self.request(task) for task in starting_tasks(job)))
        known = self._request_ids.get(key)
        number = self._new_request(job, key) if known is None else known
        self._last, self._last_number = job, number
        return number

    def row(self, job: Job) -> Request:
        """What the job takes on one node."""
        number = self.request(job)  # first: a new type may grow the table
        return Request(*self.requests[number, : len(Request._fields)].tolist())

    def request_rows(self, numbers: Sequence[int]) -> IntArray:
        """(T, 5): copies of the rows of these request types; the columns are those of `Request`."""
        return self.requests[np.array(numbers, dtype=np.int64), : len(Request._fields)]

    def request_gpus(self, numbers: IntArray) -> IntArray:
        """(T,): how many GPUs a job of each of these request types takes on all its nodes together."""
        gpus: IntArray = self.requests[numbers, kernels.ALL_GPUS]
        return gpus

    def allows(self, job: Job, node: int) -> bool:
        """Whether the node has a GPU model and the labels that the job asks for and is not reserved for others, however
        little is free there."""
        number = self.request(job)  # first: a new type may grow the table
        return node not in self._gone and kernels.is_allowed(self.requests[number], self._arrays.traits, node)

    # Where there is room

    def fitting_nodes(self, job: Job) -> IntArray:
        """Numbers of the nodes that the job would fit on whole (one of its parts, for a gang), ascending."""
        number = self.request(job)  # first: a new type may grow the table
        found = np.empty(len(self.nodes), dtype=np.bool_)
        kernels.fitting_nodes(self.requests[number], *self._arrays[:5], found)
        return np.flatnonzero(found)

    def fitting_nodes_when_empty(self, job: Job) -> IntArray:
        """Numbers of the nodes that it would fit on so if nothing else ran and every node were up, ascending."""
        number = self.request(job)  # first: a new type may grow the table
        found = np.empty(len(self.nodes), dtype=np.bool_)
        kernels.fitting_nodes(self.requests[number], *self._capacity, self._traits_when_up(), found)
        return np.flatnonzero(found)

    def fitting_gpus(self, node: int, job: Job) -> list[int]:
        """Numbers of the GPUs of a node that one GPU of the job fits on, ascending."""
        milli, mem_mib = job.share
        fits = (self.free.milli[node] >= milli) & (self.free.gpu_mem_mib[node] >= mem_mib)
        found: list[int] = np.flatnonzero(fits).tolist()
        return found

    def slots_on(self, node: int, job: Job, *, tightest: bool = False) -> tuple[GpuSlot, ...]:
        """The slots that the job (one of its parts, for a gang) would take on a node that it fits on.

        The lowest-numbered GPUs with enough left; with `tightest`, those with the least left.
        """
        number = self.request(job)  # first: a new type may grow the table
        row = self.requests[number]
        gpus = int(row[kernels.GPUS])
        if gpus == 0:
            return (GpuSlot(node, NO_GPU),)
        chosen = np.empty(self.free.milli.shape[1], dtype=np.int64)
        kernels.choose_devices(node, row, *self._arrays[2:4], tightest, chosen)
        return tuple(GpuSlot(node, index) for index in chosen[:gpus].tolist())

    def slots_for(self, job: Job, nodes: Iterable[int]) -> tuple[GpuSlot, ...] | None:
        """The slots of a whole job, on the first of these nodes, best first; None where too few are named.

        The nodes are some of `fitting_nodes`: a job of several parts takes them on the first of them. A job that may
        spread and fits on no single node is spread whichever nodes are named, and so is a gang of tasks.
        """
        if job.tasks:
            return self.spread(job)
        wanted = max(1, job.nodes)
        chosen = [int(node) for node in islice(nodes, wanted)]
        if len(chosen) == wanted:
            return tuple(slot for node in chosen for slot in self.slots_on(node, job))
        return self.spread(job) if job.nodes == 0 else None

    def spread(self, job: Job) -> tuple[GpuSlot, ...] | None:
        """Slots for a job that may spread, on as few nodes as will hold it, or None.

        The nodes with the most room come first; the last one is the tightest that holds what remains. The tasks of a
        gang are placed one after the other, each where the least GPU is free.
        """
        if job.tasks:
            return self.slots_of_gang(job, _tightest)
        if job.gpus < 2 or job.gpus * job.share.milli > self.free_total_milli:
            return None
        number = self.request(job)  # first: a new type may grow the table
        slots = np.empty((job.gpus, 2), dtype=np.int64)
        scratch = np.empty((3, len(self.nodes)), dtype=np.int64)
        count = kernels.spread_now(self._block, self.requests, number, slots, scratch)
        return tuple(map(GpuSlot._make, slots[:count].tolist())) or None

    def slots_of_gang(
        self, job: Job, place: Callable[[Job, Any], tuple[GpuSlot, ...] | None]
    ) -> tuple[GpuSlot, ...] | None:
        """The slots of the tasks of a gang that start together, one after the other; None if one has no room.

        `place` says where one task goes, in `placing_order`, with the ones before it in their places.
        Nothing has changed then but the versions of nodes, by which what is remembered of them is looked at again.
        """
        tasks = starting_tasks(job)
        found: dict[int, tuple[GpuSlot, ...]] = {}
        order = placing_order(job, lambda task: len(self.fitting_nodes(task)))
        try:
            for at in order:
                slots = place(tasks[at], self)
                taken = {slot.node for its in found.values() for slot in its} if job.apart else set()
                if slots is None or not taken.isdisjoint(slot.node for slot in slots):
                    return None
                if not self._hold(tasks[at], slots, 1):
                    return None
                found[at] = slots
                if job.apart:
                    self._let_in(slots, False)
        finally:
            for at, slots in reversed(found.items()):
                self._hold(tasks[at], slots, -1)
                if job.apart:
                    self._let_in(slots, True)
        return tuple(slot for at in range(len(tasks)) for slot in found[at])

    def fits_when_empty(self, job: Job) -> bool:
        """Whether the job could start if nothing else ran and every node were up."""
        number = self.request(job)
        known = self._fits_empty.get(number)
        if known is None:
            known = self._fits_empty[number] = self._find_when_empty(job, number)
        return known

    # How

    def _hold(self, job: Job, slots: tuple[GpuSlot, ...], sign: int) -> bool:
        """Take for a job that is not noted what it asks for, or give it back; False if it cannot be taken."""
        if not self._note(slots):
            return False
        number, (milli, mem_mib) = self.request(job), job.share
        change = kernels.take if sign > 0 else kernels.give_back
        if not change(self._block, self.requests, number, milli, mem_mib, *slots[0], len(slots)):
            return False
        self.free_total_milli -= sign * milli * job.gpus
        return True

    def _let_in(self, slots: Sequence[GpuSlot], lets: bool) -> None:
        """Whether other tasks of a gang fit on the nodes of one, for as long as its slots are looked for."""
        for node in {slot.node for slot in slots}:
            self._arrays.traits[node, kernels.UP] = lets and self._up[node]
            self._arrays.version[node] += 1

    def _new_request(self, job: Job, key: tuple[Any, ...]) -> int:
        check_job(job)
        number = len(self._request_ids)
        if number == len(self.requests):
            self.requests = np.concatenate([self.requests, np.zeros_like(self.requests)])
        nodes = max(1, job.nodes)
        all_cpu, all_mem = min(job.cpu_milli, MORE_THAN_ANY_NODE), min(job.mem_mib, MORE_THAN_ANY_NODE)
        cpu_milli, mem_mib = -(-all_cpu // nodes), -(-all_mem // nodes)
        all_gpus, asked_nodes = min(job.gpus, MORE_THAN_ANY_NODE), min(job.nodes, MORE_THAN_ANY_NODE)
        gpu_mem_mib = min(job.share.mem_mib, MORE_THAN_ANY_NODE)
        gpus = min(job.gpus // nodes, MORE_THAN_ANY_NODE)
        on_one = gpus, job.share.milli, gpu_mem_mib, cpu_milli, mem_mib
        words = self._words_of_kinds(job.models, job.labels, job.gpus, key[7])
        self.requests[number] = *on_one, asked_nodes, all_gpus, all_cpu, all_mem, *words
        self._request_ids[key] = number
        self.request_types = number + 1
        return number

    def _forget_requests(self) -> None:
        """Forget all request types; no number from before holds any more."""
        self._request_ids.clear()
        self.request_types = 0
        self.requests = self._request_table()
        self._last, self._last_number = None, -1
        self._fits_empty.clear()

    def _find_when_empty(self, job: Job, number: int) -> bool:
        if job.tasks:
            there = [row for row in range(len(self.nodes)) if row not in self._gone]
            nodes = [replace(self.nodes[row], reserved_for=()) for row in there]
            return bool(nodes) and Room(nodes, None, ()).spread(job) is not None
        row = self.requests[number]
        if self._owners:  # what is reserved will not be for ever
            row = row.copy()
            row[kernels.ALLOWED :] = self._words_of_kinds(job.models, job.labels, job.gpus, None)
        amounts = (*self._capacity, self._traits_when_up())
        found = np.empty(len(self.nodes), dtype=np.bool_)
        kernels.fitting_nodes(row, *amounts, found)
        if found.sum() >= max(1, job.nodes):
            return True
        if job.nodes or job.gpus > self._capacity.milli.size:
            return False
        slots, scratch = np.empty((job.gpus, 2), dtype=np.int64), np.empty((3, len(found)), dtype=np.int64)
        return int(kernels.spread_slots(row, self._arrays.rank, *amounts, slots, scratch)) > 0

    def _request_table(self, rows: int = 64) -> IntArray:
        """Room for this many request types."""
        return np.zeros((rows, kernels.ALLOWED + self._kinds.words), dtype=np.int64)

    def _words_of_kinds(
        self, models: Sequence[str], labels: Sequence[str], gpus: int, owner: str | None
    ) -> list[int]:
        """The kinds of nodes that a job may run on; one without GPUs whatever models it names. None for the owner: as
        if nothing were reserved."""
        kinds = self._kinds
        allowed = kinds.with_labels(labels) & kinds.with_models(models if gpus else ())
        if owner is not None:
            allowed &= kinds.open_to(owner)
        return numbers_as_words(allowed, kinds.words)

    def _know_kinds(self, come: Sequence[Node], now: Sequence[Node]) -> None:
        """Number the kinds of nodes that come, in the request table and on nodes that are there.

        Kinds keep their numbers until more than half of many are of no node any more.
        """
        before = len(self._kinds)
        for node in come:
            self._kinds.number(node)
        if len(self._kinds) == before:
            return
        if renumbered := len(self._kinds) > max(WORD, 2 * len(now)):
            self._kinds = NodeKinds(now)
        if self.requests.shape[1] != kernels.ALLOWED + self._kinds.words:
            grown = self._request_table(len(self.requests))
            grown[:, : kernels.ALLOWED] = self.requests[:, : kernels.ALLOWED]
            self.requests = grown
        for key, number in self._request_ids.items():
            self.requests[number, kernels.ALLOWED :] = self._words_of_kinds(key[5], key[6], key[0], key[7])
        for node in now if renumbered else ():
            row = self._rows.get(node.name)
            if row is not None and row not in self._gone:
                self._arrays.traits[row] = self._traits(node, bool(self._up[row]))


def placing_order(job: Job, fitting: Callable[[Job], int]) -> list[int]:
    """The places of a gang's starting tasks in the order in which nodes are found for them: the largest first.

    If no two may have one node, those that fit on the fewest nodes come before, by `fitting`: a large one that fits
    anywhere does not take the only node of another. Where sets of nodes overlap in three ways it may find none.
    """
    tasks = starting_tasks(job)
    by_size = sorted(range(len(tasks)), key=lambda at: _size_of_task(tasks[at]), reverse=True)
    return sorted(by_size, key=lambda at: fitting(tasks[at])) if job.apart else by_size


def _size_of_task(task: Job) -> tuple[int, ...]:
    return task.gpus * task.share.milli, task.gpus, task.share.mem_mib, task.cpu_milli, task.mem_mib


def _tightest(job: Job, room: Room) -> tuple[GpuSlot, ...] | None:
    """Slots for a task on the nodes that fit with the least GPU and CPU free, the first by rank on ties."""
    nodes = room.fitting_nodes(job)
    free_milli = np.maximum(room.free.milli[nodes], 0).sum(axis=1)
    return room.slots_for(job, nodes[np.lexsort((room.rank[nodes], room.free.cpu_milli[nodes], free_milli))])
