"""What the network sees of each combination: its jobs, its neighbours, and how they would advance together.

One definition for NumPy and JAX. The shapes' letters are told in the package's docstring.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from berth.interference.speeds import Speeds
from berth.network.catalogue import NEVER_MS
from berth.network.ranks import to_rank

__all__ = [
    "BACKLOG_JOBS",
    "BACKLOG_LEFT",
    "COMBINATION_FEATURES",
    "JOBS",
    "JOB_FEATURES",
    "SEEN_JOBS",
    "STAY",
    "Features",
    "Joint",
    "Scene",
    "features",
    "joint",
    "most_tenants",
]

LOOKS = (0, 1, 2, 4, 7, 12, 18, 26)
"""Steps of the horizon at which neighbours are looked at together: G of them, dense where it matters soon."""
JOB_FEATURES = 4 * len(LOOKS) + 9
COMBINATION_FEATURES = 2 * len(LOOKS) + 21
STAY, BACKLOG_JOBS, BACKLOG_LEFT = 2, 19, 20
"""Which of the latter tell of jobs that a combination leaves waiting: how many of those that are seen, and how many are
behind them with how much work. All others are of its own jobs alone."""
SEEN_JOBS = 5
"""Jobs that count as many on one GPU or in a window, to scale by."""
JOBS = 30
"""Jobs that count as a full queue, to scale by."""
MARGIN_MILLI = 850
"""How much slower than predicted a tenant may be when it is told how long its memory is in use."""
SLOWEST_MILLI = 50
LONG_MS = 2_000_000
"""Ends and changes are foreseen no further; 32 bits hold it in microseconds."""


class Scene(NamedTuple):
    """A GPU and the head of the queue at one moment, as a policy sees them; any leading axes.

    A job is five things: what it needs in each step of the horizon (`left_cells`), what it uses now, how much work
    it does until that changes (NEVER_MS: it will not), and what work is left, as run time alone, 0 for an empty place.
    """

    running: Any  # int32 (..., K, H, 4)
    running_now: Any  # int32 (..., K, 4)
    running_same_ms: Any  # int32 (..., K)
    running_left_ms: Any  # int32 (..., K)
    waiting: Any  # int32 (..., M, H, 4)
    waiting_now: Any  # int32 (..., M, 4)
    waiting_same_ms: Any  # int32 (..., M)
    waiting_left_ms: Any  # int32 (..., M)
    backlog_jobs: Any  # int32 (...): jobs behind those that are seen
    backlog_ms: Any  # int32 (...): their run time alone, together
    mem_mib: Any  # int32 (...) or one number: memory of the card
    step_ms: int


class Joint(NamedTuple):
    """How the tenants of each combination would advance together if it were started now.

    P seats hold the tenants of a combination, those that run already first.
    """

    present: Any  # bool (..., C, T): which would run
    old: Any  # bool (..., C, P): seats of those that run already
    new: Any  # bool (..., C, P): seats of those that would start
    left_ms: Any  # int32 (..., C, P)
    speed_milli: Any  # int32 (..., C, G, P): at the steps `LOOKS`, 0 for those that are over by then
    together_milli: Any  # float32 (..., C): mean of the tenants' speeds summed, over their time together
    mem_mib: Any  # int32 (..., C): the most memory that they may use together, however late they are


class Features(NamedTuple):
    """What the network is given."""

    job: Any  # float32 (..., T, JOB_FEATURES)
    present: Any  # float32 (..., C, T)
    waiting: Any  # float32 (..., M): 1 where a slot holds a job
    combination: Any  # float32 (..., C, COMBINATION_FEATURES)


def most_tenants(scene: Scene, members: Any) -> int:
    """The most that would run together in any of the combinations: seats that are enough for `joint`."""
    return max(1, int(_present(scene, members, np).sum(axis=-1).max(initial=1)))


def joint(scene: Scene, members: Any, speeds: Speeds, seats: int, xp: Any) -> Joint:
    """What becomes of each combination; `members` is bool (C, M), as `combinations` gives them or some of them.

    At most `seats` run together. Memory is judged to the end. Until the first tenant ends or its use changes all is
    known exactly, and a job that leaves by then is out of the way. From then on a tenant holds at each step the most
    that it has needed until then, and leaves as late as the slowest predicted speed, less a margin, would let it.
    """
    cells = xp.concatenate([scene.running, scene.waiting], axis=-3)  # (..., T, H, 4)
    now = xp.concatenate([scene.running_now, scene.waiting_now], axis=-2)  # (..., T, 4)
    same_ms = xp.concatenate([scene.running_same_ms, scene.waiting_same_ms], axis=-1)  # (..., T)
    left_ms = xp.concatenate([scene.running_left_ms, scene.waiting_left_ms], axis=-1)
    present = _present(scene, members, xp)
    horizon, step_ms = cells.shape[-2], scene.step_ms
    mem_mib = xp.asarray(scene.mem_mib, dtype=xp.int32)
    # Everything is seen from the seats: index (..., C, P) tells which tenant sits there.
    order = xp.cumsum(present, axis=-1) * present  # (..., C, T): 1 for the first that is present
    number = to_rank(xp.arange(1, seats + 1)[:, None], order.ndim + 1)
    sits = order[..., None, :] == number  # (..., C, P, T)
    index, taken = xp.argmax(sits, axis=-1), xp.any(sits, axis=-1)
    left_ms = xp.where(taken, _of(left_ms, index, xp), 0)
    same_ms, now_mib = _of(same_ms, index, xp), xp.where(taken, _of(now[..., 1], index, xp), 0)
    looks = xp.asarray([min(look, horizon - 1) for look in LOOKS])
    largest = xp.max(*_by_step(cells, xp))
    usage = xp.concatenate([cells[..., looks, :], now[..., None, :], largest[..., None, :]], axis=-2)
    usage = xp.moveaxis(_of(usage, index, xp, inner=2), -3, -2)  # (..., C, G + 2, P, 4)
    at_ms = (looks * step_ms).astype(xp.int32)[:, None]
    alive = left_ms[..., None, :] > to_rank(at_ms, left_ms.ndim + 1)  # (..., C, G, P)
    anybody = taken[..., None, :]
    there = xp.concatenate([alive, anybody, anybody], axis=-2)  # (..., C, G + 2, P)
    found = speeds(usage, there, xp.broadcast_to(mem_mib[..., None, None], there.shape[:-1]), xp=xp)
    speed_milli = found[..., :-2, :]
    stays = taken & ~_gone_first(taken, found[..., -2, :], left_ms, same_ms, xp)
    slowest = xp.maximum(found[..., -1, :] * MARGIN_MILLI // 1000, SLOWEST_MILLI)
    slowest = xp.where(xp.sum(stays, axis=-1, keepdims=True) == 1, 1000, slowest)
    # Until when each may hold its memory, in steps, rounded up.
    late = xp.where(stays, -(-left_ms // xp.maximum(slowest * step_ms // 1000, 1)), 0)
    held = _of(_largest_so_far(cells[..., 1], xp), index, xp, inner=1)  # (..., C, P, H)
    here = late[..., None] > to_rank(xp.arange(horizon, dtype=xp.int32), late.ndim + 1)
    most = xp.max(xp.sum(xp.where(here, held, 0), axis=-2, dtype=xp.int32), axis=-1)
    most = xp.maximum(most, xp.sum(now_mib, axis=-1, dtype=xp.int32))
    sums = xp.sum(speed_milli, axis=-1)  # (..., C, G)
    weight = to_rank(_widths(horizon, xp), sums.ndim) * xp.any(alive, axis=-1)
    together = xp.sum(sums * weight, axis=-1) / xp.maximum(xp.sum(weight, axis=-1), 1)
    old = taken & (index < scene.running_left_ms.shape[-1])
    return Joint(*(present, old, taken & ~old, left_ms, speed_milli, together.astype(xp.float32), most))


def features(scene: Scene, members: Any, found: Joint, xp: Any) -> Features:
    """The numbers that the network is given of each combination, about 1 in size; `found` is from `joint`."""
    cells = xp.concatenate([scene.running, scene.waiting], axis=-3)
    left_ms = xp.concatenate([scene.running_left_ms, scene.waiting_left_ms], axis=-1)
    horizon_ms = cells.shape[-2] * scene.step_ms
    mem_mib = xp.asarray(scene.mem_mib, dtype=xp.float32)
    left = left_ms.astype(xp.float32) / horizon_ms  # (..., T)
    job = _job_features(cells, left_ms, left, scene.step_ms, mem_mib, xp)
    here = found.present.astype(xp.float32)  # (..., C, T)
    running = scene.running_left_ms.shape[-1]
    speed = found.speed_milli.astype(xp.float32) / 1000  # (..., C, G, P)
    slowest = xp.min(xp.where(found.speed_milli > 0, speed, 1.0), axis=-2)  # (..., C, P)
    mine = found.left_ms.astype(xp.float32) / horizon_ms  # (..., C, P)
    old_left, new_left = xp.where(found.old, mine, 0.0), xp.where(found.new, mine, 0.0)
    waiting = (scene.waiting_left_ms > 0).astype(xp.float32)
    there, starts = xp.sum(here[..., :running], axis=-1), xp.sum(here[..., running:], axis=-1)  # (..., C)
    stay = xp.sum(waiting, axis=-1)[..., None] - starts
    backlog = xp.asarray(scene.backlog_jobs, dtype=xp.float32)[..., None] / JOBS
    backlog_left = xp.asarray(scene.backlog_ms, dtype=xp.float32)[..., None] / (JOBS * horizon_ms)
    used = here @ job[..., -5:-1]  # (..., C, 4): means, added up
    gpu_milli = xp.concatenate([scene.running_now, scene.waiting_now], axis=-2)[..., 0]
    used_now = here @ gpu_milli.astype(xp.float32)[..., None]  # (..., C, 1)
    numbers = [
        *(there / SEEN_JOBS, starts / SEEN_JOBS, stay / SEEN_JOBS, starts == 0, there + starts == 0),
        found.together_milli / 1000,
        xp.minimum(found.mem_mib.astype(xp.float32) / mem_mib[..., None], 1.0),
        xp.min(slowest, axis=-1),
        xp.min(xp.where(found.old, slowest, 1.0), axis=-1),
        xp.min(xp.where(found.new, slowest, 1.0), axis=-1),
        xp.sum(xp.where(found.old, speed[..., 0, :], 0.0), axis=-1) / xp.maximum(there, 1),
        *(xp.max(old_left, axis=-1), xp.max(new_left, axis=-1)),
        *(xp.sum(old_left, axis=-1), xp.sum(new_left, axis=-1)),
        xp.abs(xp.max(old_left, axis=-1) - xp.max(new_left, axis=-1)),
        *(used[..., 0], used[..., 2], used_now[..., 0] / 1000),
        *(xp.broadcast_to(backlog, there.shape), xp.broadcast_to(backlog_left, there.shape)),
    ]
    parts = [
        *(number[..., None] for number in numbers),
        xp.sum(speed, axis=-1),
        xp.min(xp.where(found.speed_milli > 0, speed, 1.0), axis=-1),
    ]
    combination = xp.concatenate([part.astype(xp.float32) for part in parts], axis=-1)
    return Features(job, here, waiting, combination)


def _of(values: Any, index: Any, xp: Any, inner: int = 0) -> Any:
    """What is known of tenants, (..., T) and `inner` axes more, for the tenant in each seat: (..., C, P) and these."""
    leading = values.ndim - 1 - inner
    if xp is np and leading == 1:  # the same in a fifth of the time
        return values[np.arange(len(values))[:, None, None], index]
    at = index.reshape(*index.shape, *(1,) * inner)
    return xp.take_along_axis(xp.expand_dims(values, leading), at, axis=-1 - inner)


def _gone_first(taken: Any, speed_milli: Any, left_ms: Any, same_ms: Any, xp: Any) -> Any:
    """Which are over before any use changes, with a hundredth to spare: bool (..., C, P)."""
    speed = xp.maximum(speed_milli, 1)
    left, same = xp.minimum(left_ms, LONG_MS), xp.minimum(same_ms, LONG_MS)
    lasts = xp.where(same_ms < left_ms, same * 1000 // speed, NEVER_MS)
    change = xp.min(xp.where(taken, lasts, NEVER_MS), axis=-1, keepdims=True)
    return taken & (left_ms < LONG_MS) & (left * 1010 // speed < change)


def _present(scene: Scene, members: Any, xp: Any) -> Any:
    """Which would run in each combination: those that run, and its members; bool (..., C, T)."""
    running = scene.running_left_ms > 0
    waiting = scene.waiting_left_ms > 0
    shape = (*running.shape[:-1], members.shape[-2])
    return xp.concatenate(
        [
            xp.broadcast_to(running[..., None, :], (*shape, running.shape[-1])),
            members & waiting[..., None, :],
        ],
        axis=-1,
    )


def _job_features(cells: Any, left_ms: Any, left: Any, step_ms: int, mem_mib: Any, xp: Any) -> Any:
    """Its use at some steps, at its highest and on average, and how long it has to go: (..., T, JOB_FEATURES)."""
    horizon = cells.shape[-2]
    ones = xp.ones_like(mem_mib)
    scale = xp.stack([1000 * ones, mem_mib, 1000 * ones, 1000 * ones], axis=-1)  # (..., 4)
    use = cells.astype(xp.float32) / scale[..., None, None, :]
    looks = xp.asarray([min(look, horizon - 1) for look in LOOKS])
    steps = xp.clip(-(-left_ms // step_ms), 1, horizon).astype(xp.float32)
    seen = xp.moveaxis(use, -2, -1)[..., looks]  # (..., T, 4, G)
    by_step = _by_step(use, xp)
    return xp.concatenate(
        [
            seen.reshape(*seen.shape[:-2], 4 * len(LOOKS)),
            xp.max(*by_step),
            xp.sum(*by_step) / steps[..., None],
            left[..., None],
        ],
        axis=-1,
    ).astype(xp.float32)


def _by_step(values: Any, xp: Any) -> tuple[Any, int]:
    """(..., H, 4) and the axis of its steps, to be reduced along it: in NumPy in a tenth of the time that the last but
    one takes, and the same to the bit."""
    return (np.ascontiguousarray(np.moveaxis(values, -2, 0)), 0) if xp is np else (values, -2)


def _largest_so_far(values: Any, xp: Any) -> Any:
    """The running maximum along the last axis; by doubling where the library has no other way."""
    if xp is np:
        return np.maximum.accumulate(values, axis=-1)
    shift = 1
    while shift < values.shape[-1]:
        values = xp.concatenate(
            [values[..., :shift], xp.maximum(values[..., shift:], values[..., :-shift])], axis=-1
        )
        shift *= 2
    return values


def _widths(horizon: int, xp: Any) -> Any:
    """How many steps each of `LOOKS` stands for."""
    ends = [*LOOKS[1:], max(horizon, LOOKS[-1] + 1)]
    return xp.asarray([end - look for look, end in zip(LOOKS, ends, strict=True)], dtype=xp.float32)
