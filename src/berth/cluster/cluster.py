"""The cluster: what is free on every node and GPU, what runs where, and how much work each has left.

Arrays inside, one row a node, one column a GPU slot (letters: N nodes, G slots of the largest node). Others see what
is free and what there is by name (`free`, `capacity`, `up`, `row`), and hand `block` and `requests` on to kernels.
`place` and `release` refuse what does not fit and change nothing then. Nodes may come, change and go; a row keeps its
number as long as anything runs there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from numbers import Integral
from types import MappingProxyType
from typing import Any

import numpy as np
from numba.core.errors import TypingError

from berth.arrays import BoolArray, IntArray, numbers
from berth.cluster import kernels
from berth.cluster.amounts import UNCOUNTED, Amounts, Request, amount_of, amounts_of, card_mem_mib, shown
from berth.cluster.debts import Debts
from berth.cluster.kinds import WORD, NodeKinds, numbers_as_words
from berth.cluster.node_changes import NodeChanges, difference, vanished_node
from berth.cluster.refusals import check_job, check_nodes, named, refuse
from berth.cluster.running import Part, Running, account_of, parts_of
from berth.cluster.usage import Usage
from berth.errors import ClusterError, NotAllowed, NotRunning
from berth.model import FOREVER_MS, NO_GPU, GpuSlot, Job, Node, Placement, Share

__all__ = ["UNCOUNTED", "Cluster", "NodeChanges", "Part", "Running", "parts_of", "spreadable_gpus"]

MORE_THAN_ANY_NODE = 2**50
"""What asks for more asks for so much: products of it with numbers of GPUs stay within 64 bits."""


class _Singles(dict[tuple[int, int], tuple[GpuSlot]]):
    """Makes what is asked for the first time; afterwards no function of Python is called."""

    def __missing__(self, place: tuple[int, int]) -> tuple[GpuSlot]:
        found = self[place] = (GpuSlot(*place),)
        return found


class Cluster:
    """Nodes with their GPUs, and the jobs that run on them."""

    # More than thirty attributes of an object without slots are looked up in twice the time.
    __slots__ = (
        "_arrays", "_block", "_capacity", "_debts", "_fits_empty", "_gone", "_kinds", "_last", "_last_number",
        "_on", "_owners", "_request_ids", "_rows", "_running", "_slots_at", "_strangers", "_up", "_usage",
        "_when_up", "block", "capacity", "changes", "free", "free_total_milli", "losses", "memo", "models",
        "node_models", "nodes", "openings", "rank", "reopened", "request_types", "requests", "reserving", "running",
        "singles", "traits", "up",
    )  # fmt: skip

    def __init__(
        self, nodes: Sequence[Node], *, rank: Sequence[int] | None = None, owners: Iterable[str] = ()
    ) -> None:
        """An empty cluster.

        `rank`, a permutation of the nodes, settles ties between equally good nodes: the smaller wins. It is
        the order of `nodes` by default. `owners` are users for whom nodes may be reserved, now or later.

        Raises ClusterError for no nodes, duplicate names, counts that are negative or a rank that is not a
        permutation.
        """
        self.nodes = tuple(nodes)
        """By their rows. A node that has vanished is here without GPUs, CPU and memory until another takes its row."""
        check_nodes(self.nodes)
        n = len(self.nodes)
        if rank is not None and sorted(rank) != list(range(n)):
            raise ClusterError(f"a rank must be a permutation of 0…{n - 1}, one number a node")
        self._owners = frozenset(owners).union(*(node.reserved_for for node in self.nodes))
        self._kinds = NodeKinds(self.nodes)
        self.reserving = frozenset(user for node in self.nodes for user in node.reserved_for)
        """The users for whom nodes are reserved now."""
        self.models: dict[str, int] = {}
        """Numbers of the GPU models that nodes have had, from 1 on; 0 is that of a node without."""
        self.free_total_milli = 1000 * sum(node.gpus for node in self.nodes)
        """GPU milli free on the whole cluster, lost nodes included: a job that asks for more cannot fit."""
        self.openings = 0
        """How often something may have come to fit: something was given back, a node came, grew or came back, a
        stranger left, or a caller said so. Where it has not changed, what did not fit still does not."""
        self.reopened = 0
        """How often `reopen` was called: what was expected of running jobs may not hold any more."""
        self.losses = 0
        """How often something may have ceased to fit without a job that takes it: a node was lost, changed or vanished,
        or a stranger came. Only then does what fitted when somebody ends not fit any more."""
        self.changes = 0
        """How often anything changed."""
        self.memo: dict[Any, Any] = {}
        """What policies keep of these nodes and of request types, each under itself: emptied when any node comes,
        changes or vanishes and when request types are numbered anew, and never else. Jobs that start or end, lost
        nodes and strangers leave it as it is."""

        width = max(1, max(node.gpus for node in self.nodes))
        self._show(kernels.block_of(n, width), amounts_of(self.nodes, width))
        arrays = self._arrays
        for free, most in zip(arrays[:4], self.capacity, strict=True):
            free[:] = most
        arrays.rank[:] = np.arange(n) if rank is None else rank
        arrays.traits[:] = [self._traits(node, True) for node in self.nodes]
        self._up[:] = True
        self._rows = {node.name: row for row, node in enumerate(self.nodes)}
        self._gone: set[int] = set()  # rows of nodes that have vanished
        self._strangers: dict[GpuSlot, Share] = {}

        self._running: dict[str, Running] = {}
        self.running: Mapping[str, Running] = MappingProxyType(self._running)
        """By id of the job, in order of their start."""
        self._on: dict[GpuSlot, list[Running]] | None = None
        self._request_ids: dict[tuple[Any, ...], int] = {}
        self.requests: IntArray = self._request_table()
        """(≥ number of request types, ≥ 10): what a job of each type takes on one node, as `Request` says; for kernels.
        A new type may put another array in its place: ask for the type's number first."""
        self.request_types = 0
        """How many request types are known: those of all jobs that were ever asked about, until `keep_requests`."""
        self._usage: Usage | None = None
        self.singles = _Singles()
        """The slots of a job that takes one, by node and index, the same tuple each time: most jobs do."""
        self._last: Job | None = None  # the one that was asked about last, and its number
        self._last_number = -1
        self._fits_empty: dict[int, bool] = {}
        self._when_up: IntArray | None = None

    def emptied(self, owners: Iterable[str] = ()) -> Cluster:
        """A cluster of the same nodes and rank with nothing on it and every node up; `owners` as in `Cluster`."""
        if self._gone:
            kept = [row for row in range(len(self.nodes)) if row not in self._gone]
            place = np.argsort(np.argsort(self.rank[kept], kind="stable"), kind="stable")
            return Cluster([self.nodes[row] for row in kept], rank=place.tolist(), owners=owners)
        return Cluster(self.nodes, rank=self.rank.tolist(), owners=owners)

    # What is there

    def request(self, job: Job) -> int:
        """The number of the job's request type: jobs that ask for the same have the same number."""
        if job is self._last:
            return self._last_number
        owner = job.user if self._owners and job.user in self._owners else ""
        key = (job.gpus, job.nodes, job.share, job.cpu_milli, job.mem_mib, job.models, job.labels, owner)
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

    def free_on(self, slot: GpuSlot) -> Share:
        """What is free on a GPU; nothing where there is no such GPU."""
        node, index = slot
        rows, width = self.free.milli.shape
        if not (0 <= node < rows and 0 <= index < width):
            return Share(0, 0)
        return Share(max(0, int(self.free.milli[slot])), max(0, int(self.free.gpu_mem_mib[slot])))

    def allows(self, job: Job, node: int) -> bool:
        """Whether the node has a GPU model and the labels that the job asks for and is not reserved for others, however
        little is free there."""
        number = self.request(job)  # first: a new type may grow the table
        return node not in self._gone and kernels.is_allowed(self.requests[number], self._arrays.traits, node)

    def with_model(self, job: Job) -> BoolArray:
        """(N,): whether each node is of a GPU model that the job may run on."""
        return self._of_kinds(self._kinds.with_models(job.models))

    def with_labels(self, job: Job) -> BoolArray:
        """(N,): whether each node carries all labels that the job asks for."""
        return self._of_kinds(self._kinds.with_labels(job.labels))

    def marks(self) -> IntArray:
        """(N,): the state that each node is in, to be handed to `changed_since`."""
        return self._arrays.version.copy()

    def changed_since(self, marks: IntArray) -> IntArray:
        """Numbers of the nodes that have changed since these marks were made, ascending; brings them up to date.

        The marks are of the same nodes: keep them in `memo`.
        """
        version = self._arrays.version
        changed = np.flatnonzero(version != marks)
        if len(changed):
            np.copyto(marks, version)
        return changed

    def usage(self) -> Usage:
        """Who has used how much GPU time; kept from the first call on, with what runs then from its start."""
        if self._usage is None:
            self._usage = Usage()
            for run in self._running.values():
                self._usage.start(run.job, run.taken, run.start_ms)
        return self._usage

    def jobs_on(self, slot: GpuSlot) -> tuple[Running, ...]:
        """The jobs that run on a GPU, in order of their start; kept from the first call on."""
        if self._on is None:
            self._on = {}
            for run in self._running.values():
                self._seat(run)
        return tuple(self._on.get(slot, ()))

    def fitting_nodes(self, job: Job) -> IntArray:
        """Numbers of the nodes that the job would fit on whole (one of its parts, for a gang), ascending."""
        number = self.request(job)  # first: a new type may grow the table
        found = np.empty(len(self.nodes), dtype=np.bool_)
        kernels.fitting_nodes(self.requests[number], *self.free, self._arrays.traits, found)
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
        if not mem_mib:
            return [index for index, left in enumerate(self.free.milli[node].tolist()) if left >= milli]
        free = zip(self.free.milli[node].tolist(), self.free.gpu_mem_mib[node].tolist(), strict=True)
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
        chosen = np.empty(self.free.milli.shape[1], dtype=np.int64)
        kernels.choose_devices(node, row, self.free.milli, self.free.gpu_mem_mib, tightest, chosen)
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
        free = (self.free.milli, self.free.gpu_mem_mib)
        if kernels.fitting_devices(request, *free, self._arrays.traits, fitting) < job.gpus:
            return None
        usable = spreadable_gpus(job, fitting, self.free.cpu_milli, self.free.mem_mib)
        nodes = kernels.spread_over_nodes(usable, job.gpus, self.rank, chosen, takes)
        slots: list[GpuSlot] = []
        for node, take in zip(chosen[:nodes].tolist(), takes[:nodes].tolist(), strict=True):
            slots.extend(GpuSlot(node, index) for index in self.fitting_gpus(node, job)[:take])
        return tuple(slots) or None

    def fits_when_empty(self, job: Job) -> bool:
        """Whether the job could start if nothing else ran and every node were up."""
        number = self.request(job)
        known = self._fits_empty.get(number)
        if known is None:
            known = self._fits_empty[number] = self._find_when_empty(job, number)
        return known

    @property
    def has_labels(self) -> bool:
        """Whether any node carries a label, or one of those that were there did."""
        return self._kinds.has_labels

    @property
    def names(self) -> dict[str, int]:
        """The row of each node by its name; of nodes that are lost too, and of none that has vanished."""
        return {name: row for name, row in self._rows.items() if row not in self._gone}

    def row_of(self, name: str) -> int | None:
        """The row of the node of that name; None where there is none."""
        row = self._rows.get(name)
        return None if row is None or row in self._gone else row

    def strangers_on(self, slot: GpuSlot) -> Share:
        """What processes that are not jobs of this cluster use of a GPU."""
        return self._strangers.get(slot, Share(0, 0))

    @property
    def is_indebted(self) -> bool:
        """Whether anything is used beyond what there is."""
        return bool(self._debts.owed)

    def owed(self) -> Amounts:
        """What jobs and strangers use beyond what there is, after nodes shrank or strangers came; as new arrays."""
        return self._debts.amounts()

    def digest(self) -> str:
        """A fingerprint of everything that can change, to see that somebody has changed nothing."""
        state = hashlib.sha256()
        state.update(self.block[: -self._arrays.slots.size].tobytes())  # slots are those of the last call
        state.update(repr([*self.running.items()]).encode())
        state.update(repr((self.free_total_milli, self.openings, self.losses, self.changes)).encode())
        state.update(repr((self._strangers, self._debts.owed)).encode())
        return state.hexdigest()

    # What changes it

    def forget(self, job_id: str) -> None:
        """Let go of what a job that will not come again has used."""
        if self._usage is not None:
            self._usage.jobs.pop(job_id, None)

    def keep_requests(self, jobs: Iterable[Job]) -> None:
        """Forget all request types but those of these jobs and of what runs, and number them anew. No number from
        before holds any more, so that the scheduler alone may call it, and while no policy decides."""
        self._request_ids.clear()
        self.request_types = 0
        self.requests = self._request_table()
        self._last, self._last_number = None, -1
        self._fits_empty.clear()
        self.memo.clear()
        for run in self._running.values():
            run.request = self.request(run.job)
        for job in jobs:
            self.request(job)

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
        account = share
        count = len(slots)
        if best_effort:
            account = account_of(placement)
            if (
                not shared
                or not 0 < share[0] <= job.share[0]
                or not 0 <= share[1] <= self._least_card_mib(slots)
            ):
                refuse(self, placement)
        running, job_id = self._running, job.id
        if job_id in running or (count != 1 and not self._note(slots)):
            refuse(self, placement)
        number = self.request(job)
        milli, gpu_mem = account
        hash(slots)  # a list is no tuple of slots: what runs is looked up by its slots
        node, index = slots[0]
        try:
            taken = kernels.take(self._block, self.requests, number, milli, gpu_mem, node, index, count)
        except (OverflowError, TypingError):  # a number that 64 bits do not hold is none of a slot
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
        running[job_id] = run
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
        run = self._running.pop(job_id, None)
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
        if not kernels.give_back(self._block, self.requests, run.request, milli, gpu_mem, node, index, count):
            raise ClusterError(
                f"job '{job_id}' runs on {named(slots)}, which this cluster never gave: the run was written to from"
                " outside"
            )
        self.free_total_milli += milli * job.gpus
        if self._usage is not None:
            self._usage.stop(job, account, run.start_ms, run.as_of_ms)
        if self._on is not None and job.gpus:
            for slot in slots:
                self._on[slot].remove(run)
        if self._debts.owed:
            self.free_total_milli -= self._debts.pay(slots)
        self.openings += 1
        self.changes += 1
        return run

    def lose(self, node: int) -> None:
        """Take a node out: nothing fits on it until `restore`. What runs there is released by the caller."""
        self._arrays.traits[node, kernels.UP] = 0
        self._up[node] = False
        self._arrays.version[node] += 1
        self.losses += 1
        self.changes += 1

    def restore(self, node: int) -> None:
        """Bring a lost node back; one that has vanished since stays away."""
        if node in self._gone:
            return
        self._arrays.traits[node, kernels.UP] = 1
        self._up[node] = True
        self._touch(node)
        self.openings += 1
        self.changes += 1

    def reopen(self) -> None:
        """Say that something may fit now that did not, for a reason that the cluster does not see."""
        self.reopened += 1
        self.openings += 1
        self.changes += 1

    def strangers(self, slot: GpuSlot, milli: int, mem_mib: int) -> None:
        """Note all that processes which are not jobs of this cluster use of a GPU; 0 and 0 when they have left.

        Less is free then, never below 0: what jobs hold beyond that is owed, and paid back first when something leaves.
        Raises NotAllowed for a GPU that there is not or amounts that cannot be, and then nothing has changed.
        """
        node, index = slot
        rows, width = self.free.milli.shape
        numbers_given = isinstance(node, Integral) and isinstance(index, Integral)
        if (
            not numbers_given
            or not (0 <= node < rows and 0 <= index < width)
            or self.capacity.milli[slot] < 0
        ):
            raise NotAllowed(
                f"there is no {named([slot])} on which strangers could be; take one of a node's GPUs"
            )
        whole = isinstance(milli, Integral) and isinstance(mem_mib, Integral)
        if not (whole and 0 <= milli <= 1000 and 0 <= mem_mib <= UNCOUNTED):
            raise NotAllowed(
                f"strangers on {named([slot])} use {milli!r} milli and {mem_mib!r} MiB; expected 0…1000 milli and"
                " 0 MiB or more, whole numbers"
            )
        before = self._strangers.pop(slot, Share(0, 0))
        if milli or mem_mib:
            self._strangers[slot] = Share(milli, mem_mib)
        if before == (milli, mem_mib):
            return
        left = self._debts.left(slot)
        self._let_be_left(slot, left[0] + before.milli - milli, left[1] + before.mem_mib - mem_mib)
        self._touch(node)
        self.openings += milli < before.milli or mem_mib < before.mem_mib
        self.losses += milli > before.milli or mem_mib > before.mem_mib
        self.changes += 1

    def nodes_changed(self, nodes: Iterable[Node]) -> NodeChanges:
        """Take over the nodes that there are now, compared by name with those that there were.

        New ones get rows: that of a vanished node on which nothing runs, or one behind all others. One that vanishes
        keeps its row while jobs run there, and nothing fits on it; if it comes back it is up, in its old row. Others
        change in their rows. What runs stays, also where it holds more than there is: nothing is free then, and the
        rest is owed. Strangers on GPUs that vanish are forgotten.

        Raises ClusterError as the constructor does, except that there may be no nodes, and then nothing has changed.
        """
        now = tuple(nodes)
        new, changed, vanished = difference(self.nodes, self._rows, self._gone, now)
        if not (new or changed or vanished):
            return NodeChanges()
        come = [*new, *changed.values()]
        for node in come:
            if unknown := set(node.reserved_for).difference(self._owners):
                raise ClusterError(
                    f"node '{node.name}' is reserved for {', '.join(sorted(unknown))}, for whom this cluster"
                    " was not made; name them as its owners"
                )
        # From here on nothing is refused.
        added = dict(zip(self._rows_for(new), new, strict=True))
        self._make_room(max(added, default=0) + 1, max((node.gpus for node in come), default=0))
        self._know_kinds(come, now)
        by_row = [*self.nodes, *added.values()][: self.free.milli.shape[0]]
        for row in vanished:
            self._gone.add(row)
            by_row[row] = vanished_node(by_row[row])
            self._set_node(row, by_row[row], False)
        for row, node in added.items():
            if row < len(self.nodes):
                self._rows.pop(by_row[row].name)
                self._gone.discard(row)
            self._rows[node.name] = row
            by_row[row] = node
            self._set_node(row, node, True)
        for row, node in changed.items():
            by_row[row] = node
            self._set_node(row, node, bool(self._up[row]))
        self.nodes = tuple(by_row)
        if self._owners:
            self.reserving = frozenset(user for node in now for user in node.reserved_for)
        self._when_up = None
        if changed or vanished:
            self._fits_empty.clear()
        else:
            self._fits_empty = {number: True for number, fits in self._fits_empty.items() if fits}
        self.memo.clear()
        self.openings += bool(come)
        self.losses += bool(changed or vanished)
        self.changes += 1
        return NodeChanges(tuple(sorted(added)), tuple(sorted(changed)), tuple(vanished))

    # How

    def _show(self, block: IntArray, capacity: Amounts) -> None:
        """Work on these arrays, and show what others may see of them but not write to."""
        self._block = block
        self.block = block
        """All arrays in one, for kernels alone, which know what lies where. It is the only one that is not read-only:
        a call of a kernel takes 0.33 µs longer with a read-only array."""
        arrays = self._arrays = kernels.arrays_of(block)
        self.free = Amounts(*(shown(array) for array in arrays[:4]))
        """What is free on each node and GPU."""
        self._capacity = capacity
        self.capacity = Amounts(*(shown(array) for array in capacity))
        """What there is on each node and GPU, lost nodes included; 0 of all, and no GPU, where one has vanished."""
        self._debts = Debts(Amounts(*arrays[:4]), capacity)
        n = len(arrays.free_milli)
        self._up: BoolArray = np.zeros(n, dtype=np.bool_)
        self.up: BoolArray = self._up.view()
        """(N,): whether each node is there and not lost."""
        self.up.flags.writeable = False
        self.traits = shown(arrays.traits)
        """(N, 4): what kernels tell nodes apart by, for those of this package; others ask `up` and `allows`."""
        self.node_models = shown(arrays.traits[:, kernels.MODEL])
        """(N,): the number of each node's GPU model; `models` has those of names."""
        self.rank = shown(arrays.rank)
        """(N,): a permutation; the smaller wins a tie between equally good nodes."""
        self._slots_at = numbers(arrays.slots)

    def _make_room(self, rows: int, width: int) -> None:
        """Have at least so many rows and GPU slots on each; all that there was stays where it was."""
        n, g = self.free.milli.shape
        rows, width = max(rows, n), max(width, g)
        if (rows, width) == (n, g):
            return
        old, old_capacity, old_up, owed = self._arrays, self._capacity, self._up, self._debts.owed
        block = kernels.block_of(rows, width)
        block[2] = self._block[2]
        capacity = Amounts(
            *(np.zeros(rows, dtype=np.int64) for _ in range(2)),
            *(np.full((rows, width), -1, dtype=np.int64) for _ in range(2)),
        )
        self._show(block, capacity)
        for array in self._arrays[2:4]:
            array[:] = -1
        for before, array in (
            *zip(old, self._arrays, strict=True),
            *zip(old_capacity, capacity, strict=True),
        ):
            array[tuple(slice(size) for size in before.shape)] = before
        self._up[:n] = old_up
        self._arrays.rank[n:] = np.arange(n, rows)
        self._debts.owed.update(owed)

    def _rows_for(self, new: Sequence[Node]) -> list[int]:
        """A row for each new node: that which it had, else one that is empty, else one behind all others."""
        named = {self._rows[node.name] for node in new if node.name in self._rows}
        empty = [row for row in sorted(self._gone - named, reverse=True) if not self._arrays.jobs[row]]
        rows: list[int] = []
        behind = len(self.nodes)
        for node in new:
            row = self._rows.get(node.name)
            if row is None and empty:
                row = empty.pop()
            elif row is None:
                row, behind = behind, behind + 1
            rows.append(row)
        return rows

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

    def _set_node(self, row: int, node: Node, up: bool) -> None:
        """Let this node be in the row; what runs there goes on."""
        arrays, capacity = self._arrays, self._capacity
        place = GpuSlot(row, NO_GPU)
        cpu, mem = self._debts.left(place)
        cpu -= int(capacity.cpu_milli[row])
        mem -= int(capacity.mem_mib[row])
        capacity.cpu_milli[row], capacity.mem_mib[row] = amount_of(node.cpu_milli), amount_of(node.mem_mib)
        self._let_be_left(place, cpu + amount_of(node.cpu_milli), mem + amount_of(node.mem_mib))
        card_mib = card_mem_mib(node)
        for index in range(self.free.milli.shape[1]):
            slot = GpuSlot(row, index)
            there = index < node.gpus
            has = (1000, card_mib) if there else (0, 0)
            had = int(capacity.milli[slot]), int(capacity.gpu_mem_mib[slot])
            if not there and had[0] < 0:
                continue
            strangers = Share(0, 0) if there else self._strangers.pop(slot, Share(0, 0))
            milli, mem = self._debts.left(slot)
            before = max(0, int(arrays.free_milli[slot]))
            capacity.milli[slot], capacity.gpu_mem_mib[slot] = has if there else (-1, -1)
            milli += has[0] - max(had[0], 0) + strangers.milli
            mem += has[1] - max(had[1], 0) + strangers.mem_mib
            self._debts.set(slot, milli, mem)
            self.free_total_milli += max(0, milli) - before
        arrays.traits[row] = 0 if row in self._gone else self._traits(node, up)
        self._up[row] = up
        self._touch(row)

    def _let_be_left(self, place: GpuSlot, first: int, second: int) -> None:
        """Let so much be left of both amounts of a place, below 0 for what is owed."""
        before = 0 if place.index == NO_GPU else self.free_on(place).milli
        self._debts.set(place, first, second)
        if place.index != NO_GPU:
            self.free_total_milli += max(0, first) - before

    def _touch(self, node: int) -> None:
        """Tell whatever is kept of the node that more may be free there."""
        self._arrays.version[node] += 1
        self._arrays.freed[self._block[2] % len(self._arrays.freed)] = node
        self._block[2] += 1

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

    def _least_card_mib(self, slots: tuple[GpuSlot, ...]) -> int:
        """The memory of the smallest of these GPUs; −1 where one of them is none."""
        mem_mib = self._capacity.gpu_mem_mib
        rows, width = mem_mib.shape
        there = all(0 <= node < rows and 0 <= index < width for node, index in slots)
        return min((int(mem_mib[slot]) for slot in slots), default=-1) if there else -1

    def _seat(self, run: Running) -> None:
        """Note what runs on its GPUs."""
        if self._on is not None and run.job.gpus:
            for slot in run.slots:
                self._on.setdefault(slot, []).append(run)

    def _new_request(self, job: Job, key: tuple[Any, ...]) -> int:
        check_job(job)
        number = len(self._request_ids)
        if number == len(self.requests):
            self.requests = np.concatenate([self.requests, np.zeros_like(self.requests)])
        nodes = max(1, job.nodes)
        all_cpu, all_mem = min(job.cpu_milli, MORE_THAN_ANY_NODE), min(job.mem_mib, MORE_THAN_ANY_NODE)
        cpu_milli, mem_mib = -(-all_cpu // nodes), -(-all_mem // nodes)
        gpus = job.gpus // nodes
        on_one = gpus, job.share.milli, job.share.mem_mib, cpu_milli, mem_mib
        words = self._words_of_kinds(job.models, job.labels, job.gpus, key[7])
        self.requests[number] = *on_one, job.nodes, job.gpus, all_cpu, all_mem, *words
        self._request_ids[key] = number
        self.request_types = number + 1
        return number

    def _find_when_empty(self, job: Job, number: int) -> bool:
        row = self.requests[number]
        if self._owners:  # what is reserved will not be for ever
            row = row.copy()
            row[kernels.ALLOWED :] = self._words_of_kinds(job.models, job.labels, job.gpus, None)
        cpu_milli, mem_mib, milli, gpu_mem_mib = self._capacity
        gpus = (milli, gpu_mem_mib, self._traits_when_up())
        if kernels.fits_on_some(row, cpu_milli, mem_mib, *gpus, max(1, job.nodes)):
            return True
        if job.nodes:
            return False
        devices = np.empty(len(self.nodes), dtype=np.int64)
        kernels.fitting_devices(row, *gpus, devices)
        usable = spreadable_gpus(job, devices, cpu_milli, mem_mib)
        return int(usable.sum()) >= job.gpus > 0

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

    def _of_kinds(self, bits: int) -> BoolArray:
        """(N,): whether each node is of one of these kinds."""
        words = np.array(numbers_as_words(bits, self._kinds.words), dtype=np.int64)
        traits = self._arrays.traits
        there = traits[:, kernels.KIND_AT] > 0  # 0 where a node has vanished
        word = np.where(there, traits[:, kernels.KIND_AT] - kernels.ALLOWED, 0)
        return np.asarray(words[word] & traits[:, kernels.KIND_BIT] != 0)

    def _traits(self, node: Node, up: bool) -> tuple[int, int, int, int]:
        """The columns of the node's traits."""
        word, bit = divmod(self._kinds.number(node), WORD)
        model = self.models.setdefault(node.gpu_model.name, len(self.models) + 1) if node.gpu_model else 0
        return kernels.ALLOWED + word, 1 << bit, int(up), model

    def _traits_when_up(self) -> IntArray:
        """(N, 4): the traits if no node were lost; the same array until the nodes change."""
        if self._when_up is None:
            traits = self._when_up = self._arrays.traits.copy()
            traits[:, kernels.UP] = 1
            if self._gone:
                traits[sorted(self._gone), kernels.UP] = 0
        return self._when_up


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
