"""Clusters on which jobs arrive, compiled: a hundred times as fast as `simulate`.

It decides by the kernel of `pairs` or offers GPUs jobs as the controls do, follows GPUs by the kernels of forecasts,
and asks the models of interference inside compiled code. The controls keep no GPUs for overtaken jobs. With whole GPUs,
the first job of the queue is next: all ask for one GPU, so there is nothing to backfill. `placement.py --simulate`
plays the same jobs with `simulate`.

Letters: G GPUs, D cards, A applications, J jobs in the order of arrival, S seats of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit

from berth.arrays import BoolArray, FloatArray, IntArray, stamp_of
from berth.gpu_models import GPU_MODELS
from berth.interference import make_speeds
from berth.interference.contention import speeds_by_cells
from berth.interference.known_speeds import EMPTY, MOST
from berth.interference.mps import mps
from berth.interference.time_sliced import SWITCH_MILLI, speeds_in_turns
from berth.model import Job
from berth.network.pair_network import INPUTS, NO_NETWORK, PairNetwork
from berth.policies.colocation.cards import Card, card_of
from berth.policies.colocation.future_kernels import (
    DONE,
    ENTERED,
    NEW,
    WORK_ROWS,
    CardArrays,
    follow,
    until_next_row_ms,
)
from berth.policies.colocation.open_gpus import LEAD_MS, LEAD_STEP_MS
from berth.policies.colocation.overtaking import MOST_OVERTAKEN
from berth.policies.colocation.pair_kernels import (
    FITS,
    LATER,
    NONE,
    NOT_FIT,
    UNKNOWN,
    Classes,
    Gpus,
    Rows,
    line_up,
    start_best,
)
from berth.policies.colocation.pairs import PAUSE_MS
from berth.policies.colocation.waits import MOST_BEHIND
from berth.profiles import series, thesis_profiles

TABLE = 1 << 19
"""Sets of tenants whose speeds are kept for each card."""
PER_NODE = 4
FOREVER_MS = 1 << 60
PLENTY = 1 << 40
WINDOW = 5
"""Jobs that a GPU is offered."""
PAIRS, WHOLE, GREEDY, RANDOM = range(4)
"""What decides."""
PROFILES = thesis_profiles()
NAMES = sorted(PROFILES)


Function = TypeVar("Function", bound=Callable[..., object])


def _fast(function: Function) -> Function:
    """Compile a function, which may allocate, and keep it while all that it depends on is as it was."""
    made: Any = njit(cache=True)(function)
    made._cache._cache_file._source_stamp = stamp_of(function)
    return cast("Function", made)


class Law(NamedTuple):
    """How tenants of one GPU slow each other."""

    taking_turns: bool
    cells: IntArray
    stress: Any
    use_milli: int


class Fleet(NamedTuple):
    """Cards, and the applications on them."""

    cards: tuple[CardArrays, ...]
    usage: tuple[Any, ...]
    """(classes, 4) of each card."""
    law: Law
    row_us: IntArray  # (A,)
    rows: IntArray  # (A,)
    needs: FloatArray  # (D, A, 3), as `Rows` has them


class Arrivals(NamedTuple):
    """Jobs."""

    submit_ms: IntArray  # (J,)
    application: IntArray  # (J,)
    of: IntArray  # (A, J): the jobs of each application
    work_ms: IntArray  # (A,)


class Seats(NamedTuple):
    """The tenants of GPUs."""

    jobs: IntArray  # (G, S, 3), as `follow` has them, at `since`
    who: IntArray  # (G, S)
    many: IntArray  # (G,)
    since: IntArray  # (G,)
    until: IntArray  # (G,): when a GPU is looked at again
    ends: IntArray  # (G, S): after `since`, if none joins them
    version: IntArray  # (G,): how often this was found anew


class Asking(NamedTuple):
    """Arrays to ask for speeds with."""

    before: IntArray  # (S, 3)
    usage: Any  # int32 (1, S, 4)
    there: BoolArray  # (1, S)
    work: IntArray  # (S,)
    speeds: Any  # int32 (1, S)
    rows: IntArray  # (WORK_ROWS, S)


@_fast
def _go_on(
    at: int, fleet: Fleet, jobs: IntArray, count: int, limit_ms: int, ends_ms: IntArray, ask: Asking
) -> int:
    """`follow` on a card, which asks for no speeds: it is given them."""
    card, usage, law = fleet.cards[at], fleet.usage[at], fleet.law
    ask.before[:count] = jobs[:count]
    while True:
        _, state = follow(card, jobs, count, limit_ms, ends_ms, ask.rows)
        if card.asked[-1, NEW] == 0:
            return state
        for one in range(card.asked[-1, NEW]):
            size, row = card.asked[one, MOST], card.asked[one, MOST + 1]
            for seat in range(size):
                ask.there[0, seat] = True
                ask.usage[0, seat] = usage[card.asked[one, seat]]
            usages, there, speeds = ask.usage[:, :size], ask.there[:, :size], ask.speeds[:, :size]
            if law.taking_turns:
                speeds_in_turns(usages, there, SWITCH_MILLI, ask.work, speeds)
            else:
                speeds_by_cells(usages, there, law.cells, law.stress, law.use_milli, ask.work, speeds)
            card.speeds[row, :size] = speeds[0]
        card.asked[-1, NEW] = 0
        jobs[:count] = ask.before[:count]


@_fast
def _ends(
    at: int, fleet: Fleet, jobs: IntArray, count: int, ends_ms: IntArray, tried: IntArray, ask: Asking
) -> tuple[int, int]:
    """What comes of these tenants if none joins them, and after how long the GPU is looked at again."""
    tried[:count] = jobs[:count]
    state = _go_on(at, fleet, tried, count, 0, ends_ms, ask)
    row_ms = until_next_row_ms(fleet.row_us, fleet.rows, jobs, count, ask.rows[WORK_ROWS - 1])
    first_ms = row_ms + LEAD_MS + 1
    for seat in range(count):
        if ends_ms[seat] > 0 and (seat == 0 or ends_ms[seat] < first_ms):
            first_ms = ends_ms[seat]
    return state, min(row_ms, first_ms - LEAD_MS if first_ms > LEAD_MS else LEAD_STEP_MS)


@_fast
def play(
    fleet: Fleet,
    card: IntArray,  # (G,)
    arrivals: Arrivals,
    how: int,
    asks_network: bool,
    network: PairNetwork,
    seed: int,
    begun_ms: IntArray,  # (J,), out: -1
    ended_ms: IntArray,  # (J,), out
) -> None:
    """Start each job at the best pair, or as the control says, until all have ended."""
    np.random.seed(seed)
    gpus, jobs_all = card.shape[0], arrivals.submit_ms.shape[0]
    many = arrivals.of.shape[0]
    jobs, who = np.zeros((gpus, MOST + 1, 3), np.int64), np.zeros((gpus, MOST + 1), np.int64)
    count, since, until = np.zeros(gpus, np.int64), np.zeros(gpus, np.int64), np.zeros(gpus, np.int64)
    ends, after, tried = (
        np.zeros((gpus, MOST + 1), np.int64),
        np.zeros(MOST + 1, np.int64),
        np.zeros((MOST + 1, 3), np.int64),
    )
    seats = Seats(jobs, who, count, since, until, ends, np.zeros(gpus, np.int64))
    declined = np.zeros((gpus, WINDOW + 1), np.int64)
    ask = Asking(
        np.zeros((MOST + 1, 3), np.int64),
        np.zeros((1, MOST, 4), np.int32),
        np.zeros((1, MOST), np.bool_),
        np.zeros(MOST, np.int64),
        np.zeros((1, MOST), np.int32),
        np.zeros((WORK_ROWS, MOST + 2), np.int64),
    )
    none = np.zeros(gpus, np.int64)
    classes = Classes(
        np.zeros((gpus, many), np.int64), np.zeros((gpus, many), np.int64), np.zeros((gpus, many), np.int64),
        np.full((gpus, many), LATER, np.int64), np.ones(gpus, np.bool_), card, np.zeros((gpus, 4)),
        np.full(gpus, NONE, np.int64), none.copy(), none.copy(), none.copy(),
    )  # fmt: skip
    plenty = np.full(gpus, PLENTY, np.int64)
    room = Gpus(np.full(gpus, NONE, np.int64), none, plenty, plenty.copy(), plenty.copy(), plenty.copy())
    first, arrived = np.zeros(many, np.int64), np.zeros(many, np.int64)
    rows = Rows(
        np.arange(many).reshape(many, 1), np.zeros((many, 1)), np.zeros(many, np.int64),
        np.zeros(many, np.bool_), np.zeros(many, np.int64), np.zeros((many, 4), np.int64), arrivals.work_ms,
        fleet.needs,
    )  # fmt: skip
    empty_ms, lines, of = np.zeros((1, gpus), np.int64), np.zeros(1, np.int64), np.zeros(gpus, np.int64)
    seen, judged, asked = np.zeros(INPUTS), np.zeros(2), np.zeros(2, np.int64)
    coming, waiting, now, done, wake = 0, 0, 0, 0, FOREVER_MS
    overtaking, head, due, kept_for, keeper = np.zeros(jobs_all, np.bool_), 0, NONE, NONE, NONE
    while done < jobs_all:
        next_ms = arrivals.submit_ms[coming] if coming < jobs_all else FOREVER_MS
        for gpu in range(gpus):
            for seat in range(count[gpu]):
                next_ms = min(next_ms, since[gpu] + ends[gpu, seat])
        if waiting:
            next_ms = min(next_ms, wake)
        now = max(now, next_ms)
        while coming < jobs_all and arrivals.submit_ms[coming] <= now:
            arrived[arrivals.application[coming]] += 1
            coming += 1
            waiting += 1
        for gpu in range(gpus):
            changed = count[gpu] > 0 and waiting > 0 and until[gpu] <= now
            for seat in range(count[gpu]):
                changed |= since[gpu] + ends[gpu, seat] <= now
            if not changed:
                continue
            if now > since[gpu]:
                _go_on(card[gpu], fleet, jobs[gpu], count[gpu], now - since[gpu], after, ask)
            since[gpu], kept = now, 0
            for seat in range(count[gpu]):
                if jobs[gpu, seat, 1] > 0:
                    jobs[gpu, kept] = jobs[gpu, seat]
                    who[gpu, kept] = who[gpu, seat]
                    kept += 1
                else:
                    ended_ms[who[gpu, seat]] = now
                    done += 1
            count[gpu] = kept
            _, again_ms = _ends(card[gpu], fleet, jobs[gpu], kept, ends[gpu], tried, ask)
            until[gpu] = now + again_ms
            seats.version[gpu] += 1
            classes.state[gpu] = UNKNOWN
        if not waiting:
            overtaking[:] = False
            continue
        while begun_ms[head] >= 0:
            head += 1
        wake = FOREVER_MS
        if how != PAIRS:
            waiting -= _offer_all(
                how, fleet, card, arrivals, seats, head, coming, waiting, declined, begun_ms, now, after, tried,
                ask,
            )  # fmt: skip
            for gpu in range(gpus):
                if 0 < count[gpu] < MOST and how != WHOLE:
                    wake = min(wake, max(until[gpu], now + 1))
            continue
        due = head if overtaking[head + 1 : coming].sum() >= MOST_OVERTAKEN else NONE
        if due != NONE and kept_for != due:
            kept_for, keeper = due, int(count.argmin())
        due_asked = due == NONE
        while waiting:
            total_ms, kinds = 0, 0
            for kind in range(many):
                rows.length[kind] = first[kind] < arrived[kind]
                if rows.length[kind]:
                    rows.turn[kind, 0] = arrivals.submit_ms[arrivals.of[kind, first[kind]]]
                    total_ms += arrivals.work_ms[kind]
                    kinds += 1
            lines[0] = 0
            for gpu in range(gpus):
                classes.idle[gpu] = count[gpu] == 0
                of[gpu] = gpu if count[gpu] < MOST else NONE
                if of[gpu] != NONE:
                    _score(
                        gpu, card[gpu], fleet, rows, classes, jobs, count, since, ends, now, after, tried, ask
                    )
                last_ms = since[gpu] + ends[gpu, : count[gpu]].max() if count[gpu] else 0
                if last_ms > now:
                    empty_ms[0, lines[0]] = last_ms - now
                    lines[0] += 1
            empty_ms[0, : lines[0]].sort()
            counts, found = np.zeros(2, np.int64), np.zeros((1, 3), np.int64)
            if due != NONE:
                of[keeper] = NONE
            line_up(of, classes, room, counts)
            if not due_asked:
                due_asked, found[0, 0], found[0, 1] = True, keeper, arrivals.application[due]
                if count[keeper] == MOST or classes.state[keeper, found[0, 1]] != FITS:
                    continue
                counts[0] = 1
            start_best(
                classes, room, rows, empty_ms, lines, waiting, 1 / gpus, total_ms // kinds,
                np.zeros((gpus, many), np.bool_), np.zeros(many, np.int64), found, counts, asked,
                asks_network, network, seen, judged, now,
            )  # fmt: skip
            if counts[0] == 0:
                break
            gpu, kind = found[0, 0], found[0, 1]
            seat, job = count[gpu], arrivals.of[kind, first[kind]]
            if now > since[gpu] and seat:
                _go_on(card[gpu], fleet, jobs[gpu], seat, now - since[gpu], after, ask)
            since[gpu] = now
            jobs[gpu, seat] = kind, 1000 * arrivals.work_ms[kind], 1000 * arrivals.work_ms[kind]
            state, again_ms = _ends(card[gpu], fleet, jobs[gpu], seat + 1, ends[gpu], tried, ask)
            if state != DONE:  # it fitted when it was looked at
                _ends(card[gpu], fleet, jobs[gpu], seat, ends[gpu], tried, ask)
                classes.state[gpu, kind] = NOT_FIT
                continue
            who[gpu, seat] = job
            count[gpu] += 1
            until[gpu] = now + again_ms
            classes.state[gpu] = UNKNOWN
            first[kind] += 1
            waiting -= 1
            begun_ms[job], overtaking[job] = now, True
            if job == due:
                due = NONE
        for gpu in range(gpus):
            if 0 < count[gpu] < MOST:
                wake = min(wake, max(until[gpu], now + PAUSE_MS))


@_fast
def _offer_all(
    how: int, fleet: Fleet, card: IntArray, arrivals: Arrivals, seats: Seats, head: int, coming: int, waiting: int,
    declined: IntArray, begun_ms: IntArray, now: int, after: IntArray, tried: IntArray, ask: Asking,
) -> int:  # fmt: skip
    """Offer the first waiting jobs to GPUs, those with the fewest tenants first, until all decline; how many start."""
    gpus, started = card.shape[0], 0
    closed, window = np.zeros(gpus, np.bool_), np.zeros(WINDOW + 1, np.int64)
    while started < waiting:
        line, left, work_ms = np.zeros(waiting - started, np.int64), 0, 0
        for job in range(head, coming):
            if begun_ms[job] < 0:
                line[left] = job
                left += 1
                work_ms += arrivals.work_ms[arrivals.application[job]]
        size, idle, busy = seats.many.copy(), 0, 0
        empty_ms = np.zeros(gpus, np.int64)
        for gpu in range(gpus):
            if size[gpu] == 0:
                idle += 1
            else:
                empty_ms[busy] = max(0, seats.since[gpu] + seats.ends[gpu, : size[gpu]].max() - now)
                busy += 1
        empty_ms[:busy].sort()
        largest = min(MOST, -(-left // idle)) if idle else MOST
        begin, asked = 0, False
        for tenants in range(1 if how == WHOLE else MOST):
            for gpu in range(gpus):
                many = min(1 if how == WHOLE else WINDOW, left - begin)
                if size[gpu] != tenants or closed[gpu] or many == 0:
                    continue
                window[:] = NONE
                window[0] = seats.version[gpu]
                window[1 : many + 1] = line[begin : begin + many]
                if tenants and (window == declined[gpu]).all():
                    closed[gpu] = True
                    continue
                asked = True
                chosen = 1 if how == WHOLE else _chosen(
                    how, gpu, card[gpu], fleet, arrivals, seats, window[1 : many + 1], begin, largest, left, idle,
                    empty_ms[:busy], work_ms // left, now, after, tried, ask,
                )  # fmt: skip
                begin += many
                if chosen == 0:
                    closed[gpu], declined[gpu] = True, window
                for place in range(many):
                    if chosen >> place & 1:
                        job, seat = window[place + 1], seats.many[gpu]
                        kind = arrivals.application[job]
                        seats.jobs[gpu, seat] = (
                            kind,
                            1000 * arrivals.work_ms[kind],
                            1000 * arrivals.work_ms[kind],
                        )
                        seats.who[gpu, seat], begun_ms[job] = job, now
                        seats.many[gpu] += 1
                        started += 1
                if chosen:
                    seats.since[gpu] = now
                    _, again_ms = _ends(
                        card[gpu], fleet, seats.jobs[gpu], seats.many[gpu], seats.ends[gpu], tried, ask
                    )
                    seats.until[gpu] = now + again_ms
                    seats.version[gpu] += 1
        if not asked:
            break
    return started


@_fast
def _chosen(
    how: int, gpu: int, at: int, fleet: Fleet, arrivals: Arrivals, seats: Seats, window: IntArray, begin: int,
    largest: int, waiting: int, idle: int, empty_ms: IntArray, mean_ms: int, now: int, after: IntArray,
    tried: IntArray, ask: Asking,
) -> int:  # fmt: skip
    """Which of the jobs that it is offered a GPU starts, as bits: by joint progress, or any that the shield allows."""
    size, many, gpus = seats.many[gpu], window.shape[0], idle + empty_ms.shape[0]
    ends_ms = seats.ends[gpu]
    if now > seats.since[gpu] and size:
        _go_on(at, fleet, seats.jobs[gpu], size, now - seats.since[gpu], after, ask)
        _ends(at, fleet, seats.jobs[gpu], size, ends_ms, tried, ask)
    seats.since[gpu] = now
    without_ms = ends_ms[:size].max() if size else 0
    there_ms = seats.jobs[gpu, :size, 1].sum() / 1000
    best, best_score = 0, -1.0
    for combination in range(1 if size == 0 else 0, 1 << many):
        seat, work_ms, otherwise_ms, refused = size, 0, 0, False
        for place in range(many):
            if not combination >> place & 1:
                continue
            kind = arrivals.application[window[place]]
            for before in range(place):  # the same as another combination
                refused |= arrivals.application[window[before]] == kind and not combination >> before & 1
            if seat == MOST or seat - size == largest:
                refused = True
            if refused:
                break
            tried[seat] = kind, 1000 * arrivals.work_ms[kind], 1000 * arrivals.work_ms[kind]
            seat += 1
            turn = (begin + place) % gpus
            otherwise_ms += 0 if turn < idle else empty_ms[turn - idle]
            otherwise_ms += (begin + place) // gpus * mean_ms + arrivals.work_ms[kind]
            work_ms += arrivals.work_ms[kind]
        if refused:
            continue
        tried[:size] = seats.jobs[gpu, :size]
        if _go_on(at, fleet, tried, seat, 0, after, ask) != DONE:
            continue
        total_ms = after[:seat].max()
        score = (there_ms + work_ms) / max(1, total_ms)
        if how == RANDOM:
            used_ms = total_ms - without_ms - work_ms
            lost_ms = after[:seat].sum() - ends_ms[:size].sum() - otherwise_ms
            lost_ms += (waiting - 1) / gpus * used_ms
            if used_ms > 0 or (waiting <= MOST_BEHIND * gpus and combination and seat > 1 and lost_ms > 0):
                continue
            score = np.random.random()
        if score > best_score:
            best, best_score = combination, score
    return best


@_fast
def _score(
    gpu: int, at: int, fleet: Fleet, rows: Rows, classes: Classes, jobs: IntArray, count: IntArray,
    since: IntArray, ends: IntArray, now: int, after: IntArray, tried: IntArray, ask: Asking,
) -> None:  # fmt: skip
    """Find what is missing of the pairs of one GPU."""
    size, looked = count[gpu], False
    for kind in range(rows.length.shape[0]):
        if not rows.length[kind] or classes.state[gpu, kind] != UNKNOWN:
            continue
        work_ms = rows.work_ms[kind]
        if not looked:
            looked = True
            if now > since[gpu] and size:
                _go_on(at, fleet, jobs[gpu], size, now - since[gpu], after, ask)
                _ends(at, fleet, jobs[gpu], size, ends[gpu], tried, ask)
            since[gpu] = now
            tenants = classes.tenants[gpu]
            tenants[:] = 0.0
            tenants[0] = size
            for seat in range(size):
                tenants[1] += fleet.needs[at, jobs[gpu, seat, 0], 0]
                tenants[2] += fleet.needs[at, jobs[gpu, seat, 0], 1]
                tenants[3] = max(tenants[3], ends[gpu, seat])
        if size == 0:
            classes.state[gpu, kind], classes.cost_ms[gpu, kind] = FITS, 0
            classes.extra_ms[gpu, kind] = work_ms
            continue
        tried[:size] = jobs[gpu, :size]
        tried[size] = kind, 1000 * work_ms, 1000 * work_ms
        state = _go_on(at, fleet, tried, size + 1, 0, after, ask)
        classes.cost_ms[gpu, kind] = after[: size + 1].sum() - ends[gpu, :size].sum() - work_ms
        extra_ms = after[: size + 1].max() - ends[gpu, :size].max()
        classes.extra_ms[gpu, kind] = extra_ms
        classes.state[gpu, kind] = FITS if state == DONE and extra_ms <= work_ms else NOT_FIT


class Played(NamedTuple):
    """Seconds."""

    completion_s: FloatArray  # (J,)
    wait_s: FloatArray  # (J,)


class Cluster:
    """GPUs of some models, four a node, and jobs that arrive there."""

    def __init__(self, mode: str, models: tuple[str, ...], gpus: int) -> None:
        cards = {
            model: card_of(
                NAMES, [series(PROFILES[name], GPU_MODELS[model]) for name in NAMES], GPU_MODELS[model].mem_mib,
                make_speeds(mode),
            )
            for model in models
        }  # fmt: skip
        each = [cards[model] for model in models]
        if mode == "mps":
            for one in each:
                cells = mps().table(np.ascontiguousarray(one.usage, np.int32))
            law = Law(False, *cells, mps().use_milli)
        else:
            law = Law(True, np.zeros(0, np.int64), np.zeros((0, 0), np.int32), 0)
        needs = np.zeros((len(each), len(NAMES), 3))
        for at, model in enumerate(models):
            for kind, name in enumerate(NAMES):
                usage = series(PROFILES[name], GPU_MODELS[model]).usage
                needs[at, kind, 0] = usage[:, 0].mean() / 1000
                needs[at, kind, 1] = usage[:, 1].max() / GPU_MODELS[model].mem_mib
        needs[:, :, 2] = np.log(needs[:, :, 0] / needs[:, :, 0].min(axis=0))
        arrays = {model: _with_table(card) for model, card in cards.items()}
        self._fleet = Fleet(
            tuple(arrays[model] for model in models),
            tuple(np.ascontiguousarray(one.usage, np.int32) for one in each),
            law, each[0].row_us, each[0].rows, needs,
        )  # fmt: skip
        self._card = np.arange(gpus) // PER_NODE % len(each)

    def play(
        self, jobs: tuple[Job, ...], network: PairNetwork | None = None, how: int = PAIRS, seed: int = 0
    ) -> Played:
        """Run them all, decided by the pair rule and what the network adds, or by a control."""
        for card in self._fleet.cards:
            if card.asked[-1, ENTERED] > TABLE // 2:
                card.keys[:] = EMPTY
                card.asked[-1] = 0
        application = np.array([NAMES.index(job.application) for job in jobs])
        of, work_ms = np.zeros((len(NAMES), len(jobs)), np.int64), np.ones(len(NAMES), np.int64)
        for kind in range(len(NAMES)):
            mine = np.flatnonzero(application == kind)
            of[kind, : len(mine)] = mine
            work_ms[kind] = jobs[mine[0]].work_ms if len(mine) else 1
        submit_ms = np.array([job.submit_ms for job in jobs])
        begun_ms, ended_ms = np.full((2, len(jobs)), NONE, np.int64)
        play(
            self._fleet, self._card, Arrivals(submit_ms, application, of, work_ms),
            how, network is not None, network or NO_NETWORK, seed, begun_ms, ended_ms,
        )  # fmt: skip
        return Played((ended_ms - submit_ms) / 1000, (begun_ms - submit_ms) / 1000)


def _with_table(card: Card) -> CardArrays:
    return card.arrays._replace(
        keys=np.full((TABLE, 2), EMPTY, np.int64),
        speeds=np.zeros((TABLE, MOST), np.int16),
        asked=np.zeros_like(card.arrays.asked),
    )
