"""The cluster: what is free on every node and GPU, what runs where, and how much work each has left.

`place` and `release` refuse what does not fit and change nothing then. What is free lies in arrays (`rows`); they tell
where a job fits (`room`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from types import MappingProxyType
from typing import Any

import numpy as np

from berth.arrays import not_an_int64
from berth.cluster import kernels
from berth.cluster.amounts import UNCOUNTED
from berth.cluster.node_changes import NodeChanges, difference
from berth.cluster.refusals import named, refuse, refuse_resize
from berth.cluster.room import Room
from berth.cluster.running import Running, account_of
from berth.cluster.usage import Usage
from berth.errors import ClusterError, DoesNotFit, NotAllowed, NotRunning, PlacementError
from berth.model import FOREVER_MS, NO_GPU, WHOLE_GPU, GpuSlot, Job, Node, Placement, Share


class _Singles(dict[tuple[int, int], tuple[GpuSlot]]):
    """Makes what is asked for the first time; afterwards no function of Python is called."""

    def __missing__(self, place: tuple[int, int]) -> tuple[GpuSlot]:
        found = self[place] = (GpuSlot(*place),)
        return found


class Cluster(Room):
    """Nodes with their GPUs, and the jobs that run on them."""

    __slots__ = (
        "_on",
        "_running",
        "_suspended",
        "_usage",
        "changes",
        "losses",
        "memo",
        "openings",
        "reopened",
        "reserving",
        "running",
        "singles",
        "suspended",
    )

    def __init__(
        self, nodes: Sequence[Node], *, rank: Sequence[int] | None = None, owners: Iterable[str] = ()
    ) -> None:
        """An empty cluster.

        `rank`, a permutation of the nodes, settles ties between equally good nodes: the smaller wins. It is
        the order of `nodes` by default. `owners` are users for whom nodes may be reserved, now or later.

        Raises ClusterError for no nodes, duplicate names, counts that are negative or a rank that is not a
        permutation.
        """
        super().__init__(nodes, rank, owners)
        self.reserving = frozenset(user for node in self.nodes for user in node.reserved_for)
        """The users for whom nodes are reserved now."""
        self.openings = 0
        """How often something may have come to fit: something was given back, a node came, grew or came back, a
        stranger left, or a caller said so. Where it has not changed, what did not fit still does not."""
        self.reopened = 0
        """How often `reopen` was called: what was expected of running jobs may not hold any more."""
        self.losses = 0
        """How often something may have ceased to fit without a job that takes it: a node was lost, changed or vanished,
        or a stranger came. Only then may what fitted no longer fit when a job ends."""
        self.changes = 0
        """How often anything changed."""
        self.memo: dict[Any, Any] = {}
        """What policies keep of these nodes and of request types, each under itself: emptied when any node comes,
        changes or vanishes and when request types are numbered anew, and never else. Jobs that start or end, lost
        nodes and strangers leave it as it is."""

        self._running: dict[str, Running] = {}
        self.running: Mapping[str, Running] = MappingProxyType(self._running)
        """By id of the job, in order of their start."""
        self._suspended: dict[str, Running] = {}
        self.suspended: Mapping[str, Running] = MappingProxyType(self._suspended)
        """Jobs that hold no GPU and keep what they have done, by id, in order of their suspension."""
        self._on: dict[GpuSlot, list[Running]] | None = None
        self._usage: Usage | None = None
        self.singles = _Singles()
        """The slots of a job that takes one, by node and index, the same tuple each time: most jobs do."""

    def several(self, node: int, indices: Iterable[int]) -> tuple[GpuSlot, ...]:
        """The slots of these numbers on a node, each the same object each time."""
        singles = self.singles
        return tuple([singles[node, index][0] for index in indices])

    def emptied(self, owners: Iterable[str] = ()) -> Cluster:
        """A cluster of the same nodes and rank with nothing on it and every node up; `owners` as in `Cluster`."""
        if self._gone:
            rows = [row for row in range(len(self.nodes)) if row not in self._gone]
            place = np.argsort(np.argsort(self.rank[rows], kind="stable"), kind="stable")
            return Cluster([self.nodes[row] for row in rows], rank=place.tolist(), owners=owners)
        return Cluster(self.nodes, rank=self.rank.tolist(), owners=owners)

    # What is there

    def usage(self) -> Usage:
        """GPU time used by each user; kept from the first call on, with what runs then from its start."""
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

    def digest(self) -> str:
        """A fingerprint of everything that can change, to see that a caller has changed nothing."""
        state = hashlib.sha256()
        state.update(self.block[: -self._arrays.slots.size].tobytes())  # slots are those of the last call
        state.update(repr([*self.running.items(), *self.suspended.items()]).encode())
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
        self._forget_requests()
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
        by default. The share may have more compute than the job asks for. A placement by best effort takes one of
        `PLACES` places of each GPU, and the memory that the job itself asked for. Raises DoesNotFit or NotAllowed, and
        then nothing has changed.
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
                refuse(self, placement, runs=placement.job.id in self._running)
        running, job_id = self._running, job.id
        if job_id in running or (count != 1 and not self._note(slots)):
            refuse(self, placement, runs=placement.job.id in self._running)
        # One that is given more of a GPU than it asks for counts as a job that asks for that.
        more = job.share[0] < share[0] <= WHOLE_GPU.milli and 0 <= share[1] <= job.share[1] and job.gpus > 0
        number = self.request(replace(job, share=Share(*share)) if more and not best_effort else job)
        milli, gpu_mem = account
        hash(slots)  # a list is no tuple of slots: what runs is looked up by its slots
        node, index = slots[0]
        try:
            taken = kernels.take(self._block, self.requests, number, milli, gpu_mem, node, index, count)
        except not_an_int64():  # a number that 64 bits do not hold is none of a slot
            taken = False
        if not taken:
            refuse(self, placement, runs=placement.job.id in self._running)
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
        """End a job, which runs or is suspended, and give back what it held, having noted what it has done until now,
        where that is told.

        Raises NotRunning, and then nothing has changed.
        """
        run = self._running.pop(job_id, None)
        if run is None and (run := self._suspended.pop(job_id, None)) is not None:
            self._park(run, -1)
            if now_ms is not None:
                run.wake(now_ms)
            self.openings += 1
            self.changes += 1
            return run
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

    def resize(self, job_id: str, share: Share, *, now_ms: int) -> Running:
        """Give a running job another share of each of its GPUs.

        Raises NotRunning, NotAllowed or DoesNotFit, and then nothing has changed.
        """
        run = self._running.get(job_id)
        if run is None:
            raise NotRunning(f"job '{job_id}' cannot be resized: it is not running")
        refuse_resize(self, run, share)
        job, before = run.job, run.taken
        taken = account_of(Placement(job, run.slots, share, run.shared, run.best_effort))
        for slot in run.slots:
            left = self._debts.left(slot)
            self._let_be_left(
                slot, left[0] + before.milli - taken.milli, left[1] + before.mem_mib - taken.mem_mib
            )
        for part in run.parts:
            held = self._arrays.held[part.node]
            held[part.gpus if before.milli == 1000 else 0] -= 1
            held[part.gpus if taken.milli == 1000 else 0] += 1
            self._touch(part.node)
        run.share, run.taken = share, taken
        if self._usage is not None:
            self._usage.resize(job, before, taken, run.start_ms, now_ms)
        self.reopened += 1
        self.openings += 1
        self.losses += 1
        self.changes += 1
        return run

    def suspend(self, job_id: str, *, now_ms: int, held_mib: int | None = None) -> Running:
        """Take a running job off its GPUs with what it has done. Its nodes keep its memory, and `held_mib` more for
        each of its GPUs: by default what it was given of it.

        Raises NotRunning, or DoesNotFit if that memory is not free, and then nothing has changed.
        """
        run = self._running.get(job_id)
        if run is None:
            raise NotRunning(f"job '{job_id}' cannot be suspended: it is not running")
        if held_mib is None:
            held_mib = self._given_mib(run)
        for part in run.parts:
            free_mib = self._debts.left(GpuSlot(part.node, NO_GPU))[1]
            if part.gpus * held_mib > free_mib:
                raise DoesNotFit(
                    f"job '{job_id}' cannot be suspended: it holds {part.gpus * held_mib} MiB of GPU memory, and node"
                    f" '{self.nodes[part.node].name}' has {max(0, free_mib)} MiB free to take it"
                )
        self.release(job_id, now_ms=now_ms)
        run.speed_milli, run.parked_mib = 0, held_mib
        self._park(run, 1)
        self._suspended[job_id] = run
        return run

    def adopt_suspended(
        self, placement: Placement, *, start_ms: int, now_ms: int, work_ms: int, left_ms: int | None, attempt: int,
        held_mib: int | None = None,
    ) -> Running:  # fmt: skip
        """Note a suspended job that was suspended before this cluster was made, as `suspend` would have left it. There
        may be less memory than it takes: the rest is owed. Raises NotAllowed for slots that there are not."""
        job, slots, share, shared, best_effort = placement
        for node, index in slots:
            if not (0 <= node < len(self.nodes) and index < self.nodes[node].gpus):
                raise NotAllowed(f"there is no {named(slots)}, on which job '{job.id}' could run")
        work_us, left_us = work_ms * 1000, (work_ms if left_ms is None else left_ms) * 1000
        run = self._suspended[job.id] = Running(
            job, attempt, slots, share, start_ms, left_us, now_ms, 0, self.request(job), account_of(placement),
            work_us, shared, best_effort,
        )  # fmt: skip
        run.parked_mib = self._given_mib(run) if held_mib is None else held_mib
        self._park(run, 1)
        self.changes += 1
        return run

    def can_resume(self, job_id: str) -> bool:
        """Whether there is room for a suspended job on the GPUs that it had."""
        run = self._suspended[job_id]
        for slot in run.slots:
            free = self.free_on(slot) if slot.index != NO_GPU else run.taken
            if not self._up[slot.node] or free.milli < run.taken.milli or free.mem_mib < run.taken.mem_mib:
                return False
        return all(self._debts.left(GpuSlot(part.node, NO_GPU))[0] >= part.cpu_milli for part in run.parts)

    def resume(self, job_id: str, *, now_ms: int) -> Running:
        """Let a suspended job run on where it ran. Returns the run, which is another object than before.

        Raises NotRunning, NotAllowed or DoesNotFit, and then nothing has changed.
        """
        before = self._suspended.get(job_id)
        if before is None:
            raise NotRunning(f"job '{job_id}' cannot be resumed: it is not suspended")
        job, share = before.job, before.share
        if not before.best_effort:  # it may have grown since it was placed
            share = Share(min(share.milli, job.share.milli), min(share.mem_mib, job.share.mem_mib))
        self._park(before, -1)
        try:
            wish = Placement(job, before.slots, share, before.shared, before.best_effort)
            run = self.place(wish, now_ms=now_ms, attempt=before.attempt)
            if share != before.share:
                self.resize(job_id, before.share, now_ms=now_ms)
        except PlacementError:
            if job_id in self._running:
                self.release(job_id, now_ms=now_ms)
            self._park(before, 1)
            raise
        del self._suspended[job_id]
        before.wake(now_ms)
        run.work_us, run.left_us = before.work_us, before.left_us
        run.start_ms, run.suspended_ms, run.parked_mib = (
            before.start_ms,
            before.suspended_ms,
            before.parked_mib,
        )
        if self._usage is not None:
            self._usage.go_on(run.job, run.taken, run.start_ms, now_ms)
        return run

    def _given_mib(self, run: Running) -> int:
        """What a run was given of the memory of each of its GPUs; 0 if that is not accounted for."""
        given_mib = run.taken.mem_mib or self._least_card_mib(run.slots)
        return given_mib if 0 < given_mib < UNCOUNTED else 0

    def _park(self, run: Running, sign: int) -> None:
        """Have the run's nodes take what it holds while it is suspended, or with −1 give it back."""
        for part in run.parts:
            place = GpuSlot(part.node, NO_GPU)
            cpu_milli, mem_mib = self._debts.left(place)
            self._let_be_left(place, cpu_milli, mem_mib - sign * (part.mem_mib + part.gpus * run.parked_mib))
            self._touch(part.node)

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
        self._take_over(added, changed, vanished)
        if self._owners:
            self.reserving = frozenset(user for node in now for user in node.reserved_for)
        if changed or vanished:
            self._fits_empty.clear()
        else:
            self._fits_empty = {number: True for number, fits in self._fits_empty.items() if fits}
        self.memo.clear()
        self.openings += bool(come)
        self.losses += bool(changed or vanished)
        self.changes += 1
        return NodeChanges(tuple(sorted(added)), tuple(sorted(changed)), tuple(vanished))

    def _seat(self, run: Running) -> None:
        """Note what runs on its GPUs."""
        if self._on is not None and run.job.gpus:
            for slot in run.slots:
                self._on.setdefault(slot, []).append(run)
