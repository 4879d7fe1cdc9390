"""The cluster: what is free on every node and GPU, who runs where, and how much work each has left.

Arrays inside, one row a node, one column a GPU slot (letters: N nodes, G slots of the largest node). `place`
and `release` are the only writers of what is free; both refuse what does not fit and change nothing then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from berth.arrays import IntArray, numbers
from berth.cluster import kernels
from berth.cluster.refusals import check_job, check_nodes, named, refuse
from berth.cluster.running import Part, Running, account_of, parts_of
from berth.cluster.usage import Usage
from berth.errors import ClusterError, NotRunning
from berth.model import FOREVER_MS, NO_GPU, GpuSlot, Job, Node, Placement

__all__ = ["UNCOUNTED", "Cluster", "Part", "Running", "parts_of", "spreadable_gpus"]

UNCOUNTED = 2**40
"""What a node has of a resource that nobody tells the amount of: enough for everything."""

NOBODY_HAS = 2**50
"""What asks for more asks for so much: products of it with numbers of GPUs stay within 64 bits."""


class Cluster:
    """Nodes with their GPUs, and the jobs that run on them."""

    def __init__(self, nodes: Sequence[Node], *, rank: Sequence[int] | None = None) -> None:
        """An empty cluster.

        `rank`, a permutation of the nodes, settles ties between equally good nodes: the smaller wins. It is
        the order of `nodes` by default.

        Raises ClusterError for no nodes, duplicate names, counts that are negative or a rank that is not a
        permutation.
        """
        self.nodes = tuple(nodes)
        check_nodes(self.nodes)
        n = len(self.nodes)
        width = max(1, max(node.gpus for node in self.nodes))
        self.gpus: IntArray = np.array([node.gpus for node in self.nodes], dtype=np.int64)  # (N,)
        present = np.arange(width) < self.gpus[:, None]  # (N, G)
        per_card = _amounts(
            (node.gpu_model.mem_mib or None) if node.gpu_model else None for node in self.nodes
        )
        self._block = kernels.block_of(n, width)
        self.block = _shown(self._block)
        """All of the arrays below in one, as kernels take them; `kernels.arrays_of` tells where each lies."""
        arrays = self._arrays = kernels.arrays_of(self._block)
        arrays.free_cpu[:] = _amounts(node.cpu_milli for node in self.nodes)
        arrays.free_mem[:] = _amounts(node.mem_mib for node in self.nodes)
        arrays.free_milli[:] = np.where(present, 1000, -1)
        arrays.free_gpu_mem[:] = np.where(present, per_card[:, None], -1)
        if rank is not None and sorted(rank) != list(range(n)):
            raise ClusterError(f"a rank must be a permutation of 0…{n - 1}, one number a node")
        arrays.rank[:] = np.arange(n) if rank is None else rank
        self.free_total_milli = 1000 * int(self.gpus.sum())
        """GPU milli free on the whole cluster, lost nodes included: who asks for more cannot fit."""
        self.releases = 0
        """How often something was given back: where it has not changed, what did not fit still does not."""
        self.losses = 0
        """How often a node was lost: only then does what fitted when somebody ends not fit any more."""
        self.changes = 0
        """How often anything changed."""

        self.models = tuple(sorted({node.gpu_model.name for node in self.nodes if node.gpu_model}))
        self.labels = tuple(sorted({label for node in self.nodes for label in node.labels}))
        if max(len(self.models), len(self.labels)) > 62:
            raise ClusterError(
                f"{len(self.models)} GPU models and {len(self.labels)} labels; a cluster can tell 62 of each apart"
            )
        arrays.traits[:] = [[self._model_bit(node), self._label_bits(node.labels), 1] for node in self.nodes]
        # What everybody else sees of the arrays, and cannot write to.
        self.free_cpu_milli = _shown(arrays.free_cpu)  # (N,)
        self.free_mem_mib = _shown(arrays.free_mem)  # (N,)
        self.free_milli = _shown(arrays.free_milli)  # (N, G); −1 where there is no GPU
        self.free_gpu_mem_mib = _shown(arrays.free_gpu_mem)  # (N, G)
        self.traits = _shown(arrays.traits)
        """(N, 3): bit of the model, bits of the labels, 1 if the node is up."""
        self.version = _shown(arrays.version)
        """(N,): goes up whenever the node changes."""
        self.rank = _shown(arrays.rank)
        self.held = _shown(arrays.held)
        """(N, G + 1): jobs that hold part of a GPU (column 0) or so many whole GPUs (columns 1 …)."""
        self.capacity_cpu_milli = _shown(arrays.free_cpu.copy())
        self.capacity_mem_mib = _shown(arrays.free_mem.copy())
        self.capacity_milli = _shown(arrays.free_milli.copy())
        self.capacity_gpu_mem_mib = _shown(arrays.free_gpu_mem.copy())

        self.running: dict[str, Running] = {}
        """By id of the job, in order of their start."""
        self._on: dict[GpuSlot, list[Running]] | None = None
        self._request_ids: dict[tuple[object, ...], int] = {}
        self.requests: IntArray = np.zeros((64, 7), dtype=np.int64)
        """(≥ number of request types, 7): what a job of each type takes on one node; the columns are those of
        `kernels`. Of a job that may spread (`nodes` 0), what it takes on a node that holds it whole."""
        self._totals: IntArray = np.zeros((64, 4), dtype=np.int64)
        # What is just being taken or given back, as the kernels are told it.
        self._slots: IntArray = np.zeros((n * (width + 1), 2), dtype=np.int64)
        self._slots_at = numbers(self._slots)
        self._usage: Usage | None = None
        self._width = width + 1
        self._singles: dict[int, tuple[GpuSlot]] = {}
        self._last: Job | None = None  # the one that was asked about last, and its number
        self._last_number = -1
        self._fits_empty: dict[int, bool] = {}

    def emptied(self) -> Cluster:
        """A cluster of the same nodes and rank with nothing on it and every node up."""
        return Cluster(self.nodes, rank=self.rank.tolist())

    # What is there

    def request(self, job: Job) -> int:
        """The number of the job's request type: jobs that ask for the same have the same number."""
        if job is self._last:
            return self._last_number
        key = (job.gpus, job.nodes, job.share, job.cpu_milli, job.mem_mib, job.models, job.labels)
        known = self._request_ids.get(key)
        number = self._new_request(job, key) if known is None else known
        self._last, self._last_number = job, number
        return number

    def usage(self) -> Usage:
        """Who has used how much GPU time; kept from the first call on, with what runs then from its start."""
        if self._usage is None:
            self._usage = Usage()
            for run in self.running.values():
                self._usage.start(run.job, run.taken, run.start_ms)
        return self._usage

    def jobs_on(self, slot: GpuSlot) -> tuple[Running, ...]:
        """Who runs on a GPU, in order of their start; kept from the first call on."""
        if self._on is None:
            self._on = {}
            for run in self.running.values():
                self._seat(run)
        return tuple(self._on.get(slot, ()))

    def fitting_nodes(self, job: Job) -> IntArray:
        """Numbers of the nodes that the job would fit on whole (one of its parts, for a gang), ascending."""
        number = self.request(job)  # first: a new type may grow the table
        request = self.requests[number]
        free = (self.free_cpu_milli, self.free_mem_mib, self.free_milli, self.free_gpu_mem_mib)
        found = np.empty(len(self.nodes), dtype=np.bool_)
        kernels.fitting_nodes(request, *free, self.traits, found)
        return np.flatnonzero(found)

    def fitting_gpus(self, node: int, job: Job) -> list[int]:
        """Numbers of the GPUs of a node that one GPU of the job fits on, ascending."""
        milli, mem_mib = job.share
        if not mem_mib:
            return [index for index, left in enumerate(self.free_milli[node].tolist()) if left >= milli]
        free = zip(self.free_milli[node].tolist(), self.free_gpu_mem_mib[node].tolist(), strict=True)
        return [index for index, (left, mem_left) in enumerate(free) if left >= milli and mem_left >= mem_mib]

    def slots_on(self, node: int, job: Job, *, tightest: bool = False) -> tuple[GpuSlot, ...]:
        """The slots that the job (one of its parts, for a gang) would take on a node that it fits on.

        The lowest-numbered GPUs with enough left; with `tightest`, those with the least left.
        """
        number = self.request(job)  # first: a new type may grow the table
        row = self.requests[number]
        gpus = int(row[kernels.GPUS])
        if gpus == 0:
            return (GpuSlot(node, NO_GPU),)
        chosen = np.empty(self.free_milli.shape[1], dtype=np.int64)
        kernels.choose_devices(node, row, self.free_milli, self.free_gpu_mem_mib, tightest, chosen)
        return tuple(GpuSlot(node, index) for index in chosen[:gpus].tolist())

    def slots_for(self, job: Job, nodes: Iterable[int]) -> tuple[GpuSlot, ...] | None:
        """The slots of a whole job, on the first of these nodes, best first; None where too few are named.

        The nodes are some of `fitting_nodes`: a gang takes its parts on the first so many, and a job that may
        spread and fits on no single node is spread whichever nodes are named.
        """
        wanted = max(1, job.nodes)
        chosen = [int(node) for node in islice(nodes, wanted)]
        if len(chosen) == wanted:
            return tuple(slot for node in chosen for slot in self.slots_on(node, job))
        return self.spread(job) if job.nodes == 0 else None

    def spread(self, job: Job) -> tuple[GpuSlot, ...] | None:
        """Slots for a job that may spread, on as few nodes as will hold it, or None.

        The nodes with the most room come first; the last one is the tightest that holds what remains.
        """
        if job.gpus < 2 or job.gpus * job.share.milli > self.free_total_milli:
            return None
        number = self.request(job)  # first: a new type may grow the table
        request = self.requests[number]
        fitting, chosen, takes = np.empty((3, len(self.nodes)), dtype=np.int64)
        free = (self.free_milli, self.free_gpu_mem_mib)
        if kernels.fitting_devices(request, *free, self.traits, fitting) < job.gpus:
            return None
        usable = spreadable_gpus(job, fitting, self.free_cpu_milli, self.free_mem_mib)
        nodes = kernels.spread_over_nodes(usable, job.gpus, self.rank, chosen, takes)
        slots: list[GpuSlot] = []
        for node, take in zip(chosen[:nodes].tolist(), takes[:nodes].tolist(), strict=True):
            slots.extend(GpuSlot(node, index) for index in self.fitting_gpus(node, job)[:take])
        return tuple(slots) or None

    def single(self, node: int, index: int) -> tuple[GpuSlot]:
        """The slots of a job that takes one, the same tuple each time: most jobs do."""
        place = node * self._width + index
        found = self._singles.get(place)
        if found is None:
            found = self._singles[place] = (GpuSlot(node, index),)
        return found

    def fits_when_empty(self, job: Job) -> bool:
        """Whether the job could start if nothing else ran and every node were up."""
        number = self.request(job)
        known = self._fits_empty.get(number)
        if known is None:
            known = self._fits_empty[number] = self._find_when_empty(job, number)
        return known

    def model_bits(self, models: Sequence[str]) -> int:
        """The bits of these GPU models in `traits`, all bits for no names; names that no node has are left out."""
        return (
            sum(1 << self.models.index(name) for name in set(models) if name in self.models) if models else -1
        )

    def digest(self) -> str:
        """A fingerprint of everything that can change, to see that somebody has changed nothing."""
        state = hashlib.sha256()
        state.update(self.block.tobytes())
        state.update(repr([*self.running.items()]).encode())
        state.update(repr((self.free_total_milli, self.releases, self.losses, self.changes)).encode())
        return state.hexdigest()

    # What changes it

    def place(
        self,
        placement: Placement,
        *,
        now_ms: int = 0,
        work_ms: int | None = None,
        left_ms: int | None = None,
        attempt: int = 1,
    ) -> Running:
        """Start a job on the slots and shares that the placement names.

        `work_ms` is all of its work as it is believed, the job's own by default, and `left_ms` what is left of it, all
        by default. A placement by best effort takes one of `PLACES` places of each GPU, and the memory that the job
        itself asked for. Raises DoesNotFit or NotAllowed, and then nothing has changed.
        """
        job, slots, share, shared, best_effort = placement
        account = account_of(placement) if best_effort else share
        count = len(slots)
        if job.id in self.running or (count != 1 and not self._note(slots)):
            refuse(self, placement)
        number = self.request(job)
        milli, gpu_mem = account
        node, index = slots[0]
        try:
            taken = kernels.take(
                self._block,
                self.requests,
                self._totals,
                number,
                milli,
                gpu_mem,
                node,
                index,
                self._slots,
                count,
            )
        except OverflowError:  # a number that 64 bits do not hold is none of a slot
            taken = False
        if not taken:
            refuse(self, placement)
        if work_ms is None:
            work_ms = FOREVER_MS if job.work_ms is None else job.work_ms
        work_us = work_ms * 1000
        left_us = work_us if left_ms is None else left_ms * 1000
        run = Running(
            job,
            attempt,
            slots,
            share,
            now_ms,
            left_us,
            now_ms,
            1000,
            number,
            account,
            work_us,
            shared,
            best_effort,
        )
        self.running[job.id] = run
        self.free_total_milli -= milli * job.gpus
        if self._usage is not None:
            self._usage.start(job, account, now_ms)
        if self._on is not None:
            self._seat(run)
        self.changes += 1
        return run

    def release(self, job_id: str, *, now_ms: int | None = None) -> Running:
        """End a job and give back what it held, having noted what it has done until now, where that is told.

        Raises NotRunning, and then nothing has changed.
        """
        run = self.running.pop(job_id, None)
        if run is None:
            raise NotRunning(f"job '{job_id}' cannot be released: it is not running")
        if now_ms is not None:
            run.left_us -= (now_ms - run.as_of_ms) * run.speed_milli
            run.as_of_ms = now_ms
        job, slots, account = run.job, run.slots, run.taken
        count = len(slots)
        if count > 1:
            self._note(slots)
        milli, gpu_mem = account
        node, index = slots[0]
        if not kernels.give_back(
            self._block, self._totals, run.request, milli, gpu_mem, node, index, self._slots, count
        ):
            raise ClusterError(
                f"job '{job_id}' runs on {named(slots)}, which this cluster never gave: who wrote that?"
            )
        self.free_total_milli += milli * job.gpus
        if self._usage is not None:
            self._usage.stop(job, account, run.start_ms, run.as_of_ms)
        if self._on is not None and job.gpus:
            for slot in slots:
                self._on[slot].remove(run)
        self.releases += 1
        self.changes += 1
        return run

    def advance(self, job_id: str, now_ms: int, speed_milli: int) -> Running:
        """Note what a running job has done until now, and its speed from now on."""
        run = self.running[job_id]
        run.advance(now_ms, speed_milli)
        self.changes += 1
        return run

    def lose(self, node: int) -> None:
        """Take a node out: nothing fits on it until `restore`. What runs there is released by the caller."""
        self._arrays.traits[node, 2] = 0
        self._arrays.version[node] += 1
        self.losses += 1
        self.changes += 1

    def restore(self, node: int) -> None:
        """Bring a lost node back."""
        self._arrays.traits[node, 2] = 1
        self._arrays.version[node] += 1
        self._arrays.freed[self._block[2] % len(self.nodes)] = node
        self._block[2] += 1
        self.releases += 1
        self.changes += 1

    # How

    def _note(self, slots: tuple[GpuSlot, ...]) -> bool:
        """Write down slots for the kernels; False where there are none, too many, some are the same or cannot be."""
        slots_at, count = self._slots_at, len(slots)
        if not 0 < count <= len(slots_at) or len(set(slots)) < count:
            return False
        try:
            for place, (node, index) in enumerate(slots):
                slots_at[place, 0] = node
                slots_at[place, 1] = index
        except (OverflowError, ValueError):  # a number that 64 bits do not hold is none of a slot
            return False
        return True

    def _seat(self, run: Running) -> None:
        """Note who runs on its GPUs."""
        if self._on is not None and run.job.gpus:
            for slot in run.slots:
                self._on.setdefault(slot, []).append(run)

    def _new_request(self, job: Job, key: tuple[object, ...]) -> int:
        check_job(job)
        number = len(self._request_ids)
        if number == len(self.requests):
            self.requests = np.concatenate([self.requests, np.zeros_like(self.requests)])
            self._totals = np.concatenate([self._totals, np.zeros_like(self._totals)])
        nodes = max(1, job.nodes)
        models = self.model_bits(job.models)
        known = all(label in self.labels for label in job.labels)
        labels = self._label_bits(job.labels) if known else 1 << 62  # a bit that no node has
        all_cpu, all_mem = min(job.cpu_milli, NOBODY_HAS), min(job.mem_mib, NOBODY_HAS)
        cpu_milli, mem_mib = -(-all_cpu // nodes), -(-all_mem // nodes)
        gpus = job.gpus // nodes
        self.requests[number] = (gpus, job.share.milli, job.share.mem_mib, cpu_milli, mem_mib, models, labels)
        self._totals[number] = (job.gpus, job.nodes, all_cpu, all_mem)
        self._request_ids[key] = number
        return number

    def _find_when_empty(self, job: Job, number: int) -> bool:
        row = self.requests[number]
        up = self.traits.copy()
        up[:, 2] = 1
        gpus = (self.capacity_milli, self.capacity_gpu_mem_mib, up)
        found = np.empty(len(self.nodes), dtype=np.bool_)
        kernels.fitting_nodes(row, self.capacity_cpu_milli, self.capacity_mem_mib, *gpus, found)
        if found.sum() >= max(1, job.nodes):
            return True
        if job.nodes:
            return False
        devices = np.empty(len(self.nodes), dtype=np.int64)
        kernels.fitting_devices(row, *gpus, devices)
        usable = spreadable_gpus(job, devices, self.capacity_cpu_milli, self.capacity_mem_mib)
        return int(usable.sum()) >= job.gpus > 0

    def _model_bit(self, node: Node) -> int:
        return 1 << self.models.index(node.gpu_model.name) if node.gpu_model else 1 << 62

    def _label_bits(self, labels: Sequence[str]) -> int:
        return sum(1 << self.labels.index(label) for label in set(labels))


def spreadable_gpus(job: Job, fitting: IntArray, cpu_milli: IntArray, mem_mib: IntArray) -> IntArray:
    """(N,): how many GPUs of a job that may spread each node can take, its part of CPU and memory included.

    `fitting` (N,) has the number of GPUs on each node that one GPU of the job fits on.
    """
    usable = fitting
    if job.cpu_milli:
        usable = np.minimum(usable, cpu_milli * job.gpus // job.cpu_milli)
    if job.mem_mib:
        usable = np.minimum(usable, mem_mib * job.gpus // job.mem_mib)
    return usable


def _shown(array: IntArray) -> IntArray:
    """The same array, to be read only."""
    view = array.view()
    view.flags.writeable = False
    return view


def _amounts(values: Iterable[int | None]) -> IntArray:
    return np.array([UNCOUNTED if value is None else value for value in values], dtype=np.int64)
