"""Which job on which GPU: every waiting application with every GPU, the best pair first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import nsmallest
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from sortedcontainers import SortedList

from berth.arrays import BoolArray, IntArray
from berth.cluster import PLACE_MILLI, Cluster, Queue, Running
from berth.model import GpuModel, GpuSlot, Job, Placement
from berth.network.pair_network import INPUTS, NO_NETWORK, PairNetwork
from berth.policies.colocation.colocating import Colocating
from berth.policies.colocation.forecast import Candidate, Offer
from berth.policies.colocation.open_gpus import all_have_room, look_again_ms
from berth.policies.colocation.pair_board import Member, PairBoard
from berth.policies.colocation.pair_kernels import (
    FITS,
    NO_CLASS,
    NO_SCORE,
    NOT_FIT,
    UNKNOWN,
    Rows,
    start_best,
)
from berth.policies.colocation.scene import Chooser, holding
from berth.policies.protocol import Setting
from berth.policies.sort_keys import as_queued

MOST_ROWS = 64
"""Rows of waiting jobs that are compared, those whose first job came first."""
FEW = 4
"""Jobs of a row that are looked at while no GPU is idle."""
IN_ORDER = 5
"""Jobs for each GPU that are compared if an order says which come first."""
EXPLORED = 2
"""One in so many GPUs may run applications without a profile for the first time."""
PAUSE_MS = 2000
"""The least time after which a policy asks to be called again."""

_row_of = attrgetter(
    "application", "gpus", "tasks", "share", "cpu_milli", "mem_mib", "nodes", "models", "labels"
)
"""Jobs that are equal in this wait in one row."""


class _Row(NamedTuple):
    """Waiting jobs of one application that ask for the same."""

    jobs: list[Job]
    more: bool
    """Whether others wait behind them."""


class Pairs(Colocating):
    """Start the best pair of a waiting application and a GPU first, by cost per work started.

    The cost is the delay of the GPU's tenants, the job's own delay, and the extra time for which the GPU is in use,
    times the waiting jobs per GPU, without those whose applications are still unknown. A pair is not started if it
    costs more than waiting for an empty GPU. Jobs of one application with the same request share a row of the matrix,
    and GPUs with similar tenants a column. A cost is computed again only if something has changed.
    """

    def __init__(
        self,
        setting: Setting | None = None,
        *,
        choose: Chooser | None = None,
        window: int = 5,
    ) -> None:
        """Policies that compare all pairs on some clusters only choose by themselves on others."""
        knowledge = (setting or Setting()).knowledge
        super().__init__(choose or holding, knowledge, window=window)
        self.network: PairNetwork | None = None
        """What corrects the costs; None: the rule decides."""
        self._scratch = np.zeros(INPUTS), np.zeros(2)

    def compares(self, cluster: Cluster) -> bool:
        """Whether it compares all pairs on this cluster."""
        return True

    def _next_ms(self, now_ms: int) -> int | None:
        board = self._cache.pairs
        if board is None:
            return super()._next_ms(now_ms)
        taken = board.until_ms[board.of == np.arange(len(board.of))]
        soonest = taken.min(initial=1 << 60)
        return max(int(soonest), now_ms + PAUSE_MS) if soonest < 1 << 60 else None

    def _shared(
        self, queue: Queue, cluster: Cluster, now_ms: int, closed: set[GpuSlot]
    ) -> Iterator[Placement]:
        """Start the best pairs. The first job that takes whole GPUs has those that empty first kept for it."""
        if not self.compares(cluster):
            yield from super()._shared(queue, cluster, now_ms, closed)
            return
        board = self._cache.pairs
        if board is None:
            board = self._cache.pairs = PairBoard(cluster, self._cache.alike, self._uses)
        board.make_room()
        yield from self._explore(queue, cluster, board, now_ms)
        yield from self._start_due(queue, cluster, now_ms, closed)
        while len(queue) and board.slots:
            board.look(cluster, now_ms, self._left_ms(now_ms), certain=self._certain)
            rows = self._rows(queue, cluster, board, now_ms)
            if not rows:
                return
            some = False
            for gpu, job, then in self._best_pairs(rows, queue, cluster, board, now_ms, closed):
                slot = board.slots[gpu]
                if job not in queue or not all_have_room([job], slot, cluster):
                    break  # others have changed what was planned on
                some = True
                yield self.shared_placement(job, cluster.singles[slot])
                if job.id not in cluster.running:
                    closed.add(slot)
                    board.forget(gpu)
                    break
                board.started(gpu, cluster.jobs_on(slot), then)
                self._has_started(job)
            if not some:
                return

    def _is_cold(self, job: Job) -> bool:
        """Whether nothing is known of the job's application yet, which one run alone will tell."""
        return bool(
            self.knowledge.learns
            and job.gpus == 1
            and not job.tasks
            and job.share.milli == 1000
            and job.application
            and job.application not in self.known
            and job.application not in self.whole.tried
            and self._cluster is not None
            and self.compares(self._cluster)
        )

    def _cold(self, queue: Queue) -> list[SortedList]:
        """The waiting jobs of unknown applications, grouped by what they ask for."""
        if not self.knowledge.learns:
            return []
        lanes = queue.lanes(_row_of, as_queued)
        return [entries for entries in lanes.values() if self._is_cold(entries[0][2])]

    def _explore(self, queue: Queue, cluster: Cluster, board: PairBoard, now_ms: int) -> Iterator[Placement]:
        """Run one job of each application without a profile alone, on an idle GPU or the next that is empty, before all
        others: as long as nothing is known of it, its jobs take whole GPUs."""
        cold = sorted(self._cold(queue), key=lambda entries: entries[0][1])
        kept, board.kept = board.kept, {}
        if not cold:
            return
        board.look(cluster, now_ms, self._left_ms(now_ms), certain=self._certain)
        begun = self.whole.alone(cluster)
        left = max(1, len(board.slots) // EXPLORED) - len(begun)
        for job in [entries[0][2] for entries in cold]:
            if left <= 0:
                return
            if job.application in begun:
                continue
            begun.add(job.application)
            left -= 1
            placement = self.whole.place(job, cluster)
            if placement is not None:
                yield placement
                self._noted(job, cluster)
                continue
            gpu = kept.get(job.application)
            if gpu is None or board.of[gpu] < 0 or gpu in board.kept.values():
                open_ = [
                    at
                    for at in np.flatnonzero(board.of >= 0).tolist()
                    if at not in board.kept.values() and cluster.allows(job, board.slots[at].node)
                ]
                gpu = min(open_, key=lambda at: (board.empty_ms[at], at), default=None)
            if gpu is not None:
                board.kept[job.application] = gpu

    def _start_due(
        self, queue: Queue, cluster: Cluster, now_ms: int, closed: set[GpuSlot]
    ) -> Iterator[Placement]:
        """Start the job whose turn it is on the GPU that is kept for it, if it fits there and ends in time."""
        due, slot = self._due, self._overtaking.kept
        if due is None or slot is None or slot in closed or not self._shares(due):
            return
        tenants = cluster.jobs_on(slot)
        if (
            not cluster.up[slot.node]
            or not all(run.best_effort for run in tenants)
            or cluster.free.milli[slot] < PLACE_MILLI
            or not self._may_run(due, slot, cluster)
            or not all_have_room([due], slot, cluster)
        ):
            return
        if tenants:
            offer = Offer(tuple([self._tenant(run, now_ms) for run in tenants]), (self._candidate(due),))
            jobs = [([run.job for run in tenants], [due])]
            if not self._scored([offer], jobs, self._cache.models[slot.node]).fits[0]:
                return
        yield self.shared_placement(due, cluster.singles[slot])
        if due.id in cluster.running:
            self._has_started(due)
        else:
            closed.add(slot)

    def _left_ms(self, now_ms: int) -> Callable[[Running], int]:
        """How long a run still takes, as is believed."""
        return lambda run: self._tenant(run, now_ms).left_us // 1000

    # Waiting jobs

    def _rows(self, queue: Queue, cluster: Cluster, board: PairBoard, now_ms: int) -> list[_Row]:
        """The waiting jobs that may share, up to one that holds up those behind it."""
        if self.queue_order is not None:
            return self._rows_in_order(queue, cluster, board, now_ms)
        lanes = queue.lanes(_row_of, as_queued)
        firsts = [(entries[0][1], lane) for lane, entries in lanes.items()]
        end, head = min(
            ((serial, job) for serial, lane in firsts if self._holds_up(job := lanes[lane][0][2])),
            key=lambda one: one[0],
            default=(None, None),
        )
        if board.reserve(head, cluster, now_ms):
            end = None
        idle = int(np.count_nonzero(board.classes.idle[board.of] & (board.of >= 0)))
        looked_at = FEW * (1 + idle)
        rows: list[_Row] = []
        for _, lane in nsmallest(MOST_ROWS, firsts):
            entries = lanes[lane]
            jobs = []
            all_share = self._certain and self._shares(entries[0][2])
            for _, serial, job in entries.islice(0, looked_at):
                if (end is not None and serial > end) or not (all_share or self._shares(job)):
                    break
                jobs.append(job)
            if jobs:
                rows.append(_Row(jobs, len(jobs) == looked_at < len(entries)))
        return rows

    def _rows_in_order(self, queue: Queue, cluster: Cluster, board: PairBoard, now_ms: int) -> list[_Row]:
        """The same of the first jobs in an order."""
        rows: dict[object, list[Job]] = {}
        left = IN_ORDER * len(board.slots)
        head: Job | None = None
        for job in self._in_order(queue):
            if not self._shares(job):
                if head is None and self._holds_up(job):
                    head = job
                    if not board.reserve(head, cluster, now_ms):
                        break
                continue
            rows.setdefault(_row_of(job), []).append(job)
            left -= 1
            if not left:
                break
        if head is None:
            board.reserve(None, cluster, now_ms)
        return [_Row(jobs, False) for jobs in rows.values()]

    def _holds_up(self, job: Job) -> bool:
        """Whether those behind it wait for it to start if no GPUs are kept for it."""
        return not self._shares(job) and not self._is_cold(job) and job.patience_ms != 0

    # The matrix

    def _best_pairs(
        self,
        rows: Sequence[_Row],
        queue: Queue,
        cluster: Cluster,
        board: PairBoard,
        now_ms: int,
        closed: set[GpuSlot],
    ) -> list[tuple[int, Job, int]]:
        """GPU, job and the GPU's class from then on, of the pairs that start, in order."""
        kinds = [self._kinds(row.jobs, cluster, board) for row in rows]
        longest = max(map(len, kinds))
        kind = np.zeros((len(rows), longest), np.int64)
        turn = np.zeros((len(rows), longest))
        for at, row in enumerate(rows):
            kind[at, : len(row.jobs)] = kinds[at]
            turn[at, : len(row.jobs)] = [job.submit_ms for job in row.jobs]
        members = board.members
        shares = [one.job for one in members]
        lines: dict[tuple[int, ...], int] = {}
        line_of = [lines.setdefault(self._allowed(row.jobs[0], cluster), len(lines)) for row in rows]
        empty_ms = np.zeros((len(lines), len(board.slots)), np.int64)
        many = np.zeros(len(lines), np.int64)
        for alike, at in lines.items():
            found = board.line(now_ms, alike)
            empty_ms[at, : len(found)], many[at] = found, len(found)
        work_ms = np.array([-(-one.seen.work_us // 1000) for one in members], np.int64)
        table = Rows(
            kind,
            turn,
            np.array(list(map(len, kinds)), np.int64),
            np.array([row.more for row in rows], np.bool_),
            np.array(line_of, np.int64),
            np.array(
                [
                    (min(PLACE_MILLI, job.share.milli), job.cpu_milli, job.mem_mib, job.share.mem_mib)
                    for job in shares
                ],
                np.int64,
            ),
            work_ms,
            board.needs,
        )
        gpus = board.gpus(cluster)
        counts, asked = np.zeros((2, 2), np.int64)
        shut = [*(board.numbers[slot] for slot in closed), *board.kept.values()]
        if self._due is not None and self._shares(self._due) and self._overtaking.kept is not None:
            shut.append(board.numbers[self._overtaking.kept])
        board.lists(gpus, counts, shut)
        at_row = np.zeros(len(rows), np.int64)
        found = np.zeros((int(table.length.sum()), 3), np.int64)
        blocked = np.zeros((len(board.classes.many), len(rows)), np.bool_)
        # Jobs of unknown applications run alone first: what starts here does not shorten their wait.
        waiting = len(queue) - sum(map(len, self._cold(queue)))
        why = NO_SCORE
        while why in (NO_SCORE, NO_CLASS):
            why = start_best(
                board.classes, gpus, table, empty_ms, many, waiting, 1 / len(board.slots),
                int(work_ms[kind[:, 0]].mean()), blocked, at_row, found, counts, asked,
                self.network is not None, self.network or NO_NETWORK, *self._scratch, now_ms,
            )  # fmt: skip
            if why == NO_SCORE:
                left = at_row < table.length
                self._score(board, np.unique(kind[left, at_row[left]]), counts[1], cluster, now_ms)
            elif why == NO_CLASS:
                board.class_after(*asked.tolist())
                blocked.resize((len(board.classes.many), len(rows)), refcheck=False)
        taken = [iter(row.jobs) for row in rows]
        return [(gpu, next(taken[row]), then) for gpu, row, then in found[: counts[0]].tolist()]

    def _kinds(self, jobs: Sequence[Job], cluster: Cluster, board: PairBoard) -> list[int]:
        """The numbers of the kinds of a row's jobs. Jobs of the same user and certain work are of one kind."""
        kinds: list[int] = []
        known: dict[tuple[int | None, str], int] = {}
        for job in jobs:
            same = job.work_ms, job.user
            kind = known.get(same)
            if kind is None:
                work_us = self.work_us(job)
                key = job.application, work_us, cluster.request(job)
                kind = board.kind(key, partial(Member, job, Candidate(job.application, work_us, work_us)))
                if self._certain and job.work_ms is not None:
                    known[same] = kind
            kinds.append(kind)
        return kinds

    def _allowed(self, job: Job, cluster: Cluster) -> tuple[int, ...]:
        """The numbers of the nodes on which a job may run."""
        first = self._cache.pairs.first_of  # type: ignore[union-attr]
        return tuple([alike for alike, slot in first.items() if self._may_run(job, slot, cluster)])

    def _score(self, board: PairBoard, kinds: IntArray, used: int, cluster: Cluster, now_ms: int) -> None:
        """Find the costs that are missing of jobs of these kinds, on GPUs of the classes that have any."""
        classes = board.classes
        of = classes.used[:used]
        missing = classes.state[of[:, None], kinds] == UNKNOWN
        by_card: dict[int, list[tuple[int, int]]] = {}
        offers: dict[int, list[Offer]] = {}
        jobs: dict[int, list[tuple[list[Job], list[Job]]]] = {}
        for at in np.flatnonzero(missing.any(axis=1)).tolist():
            here = int(of[at])
            slot, members = board.slot_of(here), board.members
            card = self._cache.card_numbers[slot.node]
            if here < len(board.slots):
                seen = tuple([self._tenant(run, now_ms) for run in board.tenants[here]])
                tenants = [run.job for run in board.tenants[here]]
            else:
                seen = tuple([one.seen for one in board.fresh_tenants(here)])
                tenants = [one.job for one in board.fresh_tenants(here)]
            board.occupied(here, [one.application for one in seen])
            for kind in kinds[missing[at]].tolist():
                job, candidate = members[kind]
                if not self._may_run(job, slot, cluster):
                    classes.state[here, kind] = NOT_FIT
                elif not tenants:
                    classes.state[here, kind] = FITS
                    classes.extra_ms[here, kind] = -(-candidate.work_us // 1000)
                    classes.cost_ms[here, kind] = 0
                else:
                    by_card.setdefault(card, []).append((here, kind))
                    offers.setdefault(card, []).append(Offer(seen, (candidate,)))
                    jobs.setdefault(card, []).append((tenants, [job]))
        for card, pairs in by_card.items():
            model = self._cache.models[board.slot_of(pairs[0][0]).node]
            found = self._scored(offers[card], jobs[card], model)
            where = tuple(np.array(pairs, np.int64).T)
            classes.cost_ms[where], classes.extra_ms[where] = found.cost_ms, found.extra_ms
            classes.state[where] = np.where(found.fits, FITS, NOT_FIT)
            board.holds(where[0], found.hold_ms, found.lasts_ms, now_ms)

    def _uses(self, application: str, slot: GpuSlot) -> tuple[float, float]:
        """The parts of a card that an application uses: of its compute on average, of its memory at most."""
        return self.forecaster.uses(application, self._cache.models[slot.node])

    def _scored(
        self, offers: list[Offer], jobs: list[tuple[list[Job], list[Job]]], gpu: GpuModel | None
    ) -> _Scored:
        """What comes of starting the one job of each offer beside its tenants."""
        forecasts = self.forecaster.forecasts(offers, gpu)
        self._doubts.rule_out(forecasts, jobs, self.forecaster, gpu)
        total_ms, tenants = forecasts.total_ms, forecasts.tenants
        without_ms, with_ms = forecasts.ends_ms[:, 0], forecasts.ends_ms[:, 1]
        rows = np.arange(len(offers))
        work_ms = -(-forecasts.left_us[rows, tenants] // 1000)
        extra_ms = total_ms[:, 1] - total_ms[:, 0]
        return _Scored(
            with_ms.sum(axis=1) - without_ms.sum(axis=1) - work_ms,
            extra_ms,
            forecasts.fits.all(axis=1) & (extra_ms <= work_ms),
            look_again_ms(forecasts),
            total_ms[:, 0],
        )


class _Scored(NamedTuple):
    """What comes of pairs, (P,) each."""

    cost_ms: IntArray
    extra_ms: IntArray
    fits: BoolArray
    """Whether memory never runs out, and all end no later than one after the other."""
    hold_ms: IntArray
    """For how long this holds if nothing starts."""
    lasts_ms: IntArray
    """After how long the tenants have ended if nothing starts."""
