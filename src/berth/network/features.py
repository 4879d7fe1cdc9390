"""What the network sees of each combination: its jobs, its neighbours, and how they would advance together.

One definition for NumPy and JAX. The shapes' letters are told in the package's docstring.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from berth.interference.speeds import Speeds
from berth.network.catalogue import NEVER_MS

__all__ = ["COMBINATION_FEATURES", "JOB_FEATURES", "Features", "Joint", "Scene", "features", "joint"]

LOOKS = (0, 1, 2, 4, 7, 12, 18, 26)
"""Steps of the horizon at which neighbours are looked at together: G of them, dense where it matters soon."""
JOB_FEATURES = 4 * len(LOOKS) + 9
COMBINATION_FEATURES = 2 * len(LOOKS) + 21
JOBS = 30
"""Jobs that count as a full queue, to scale by."""
MARGIN_MILLI = 850
"""A tenant may be slower than predicted by so much when it is told how long its memory is in use."""
SLOWEST_MILLI = 50
LONG_MS = 2_000_000
"""Ends and changes are foreseen no further; 32 bits hold it in microseconds."""


class Scene(NamedTuple):
    """A GPU and the head of the queue at one moment, as a policy sees them; any leading axes.

    A job is five things: what it needs in each step of the horizon (`left_cells`), what it uses now, how much work
    it does until that changes (NEVER_MS: it will not), and what work is left, as run time alone, 0 where nobody is.
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
    """How the tenants of each combination would advance together if it were started now."""

    present: Any  # bool (..., C, T): who would run
    speed_milli: Any  # int32 (..., C, G, T): at the steps `LOOKS`, 0 for who is over by then
    together_milli: Any  # float32 (..., C): mean of the tenants' speeds summed, over their time together
    mem_mib: Any  # int32 (..., C): the most memory that they may use together, however late they are
    fits: Any  # bool (..., C): places are enough, and so is memory, always


class Features(NamedTuple):
    """What the network is given."""

    job: Any  # float32 (..., T, JOB_FEATURES)
    present: Any  # float32 (..., C, T)
    waiting: Any  # float32 (..., M): 1 where a slot holds a job
    combination: Any  # float32 (..., C, COMBINATION_FEATURES)


def joint(scene: Scene, members: Any, speeds: Speeds, xp: Any) -> Joint:
    """What becomes of each combination; `members` is bool (C, M), as `combinations` gives them or some of them.

    Memory is judged to the end. Until the first tenant ends or its use changes all is known exactly, and who
    leaves by then is out of the way. From then on a tenant holds at each step the most that it has needed until
    then, and leaves as late as the slowest predicted speed, less a margin, would let it. So a combination that
    fits never runs out of memory while nobody else is started; and who is started later is judged with all the
    others. A combination need not fit: `fits` tells.
    """
    cells = xp.concatenate([scene.running, scene.waiting], axis=-3)  # (..., T, H, 4)
    now = xp.concatenate([scene.running_now, scene.waiting_now], axis=-2)  # (..., T, 4)
    same_ms = xp.concatenate([scene.running_same_ms, scene.waiting_same_ms], axis=-1)  # (..., T)
    left_ms = xp.concatenate([scene.running_left_ms, scene.waiting_left_ms], axis=-1)
    present = _present(scene, members, xp)
    horizon = cells.shape[-2]
    mem_mib = xp.asarray(scene.mem_mib, dtype=xp.int32)
    looks = xp.asarray([min(look, horizon - 1) for look in LOOKS])
    seen = xp.moveaxis(cells[..., looks, :], -2, -3)  # (..., G, T, 4)
    alive = left_ms[..., None, :] > (looks * scene.step_ms).astype(xp.int32)[:, None]  # (..., G, T)
    usage = xp.concatenate([seen, now[..., None, :, :], xp.max(cells, axis=-2)[..., None, :, :]], axis=-3)
    anybody = left_ms[..., None, :] > 0
    alive = xp.concatenate([alive, anybody, anybody], axis=-2)  # (..., G + 2, T)
    there = present[..., None, :] & alive[..., None, :, :]  # (..., C, G + 2, T)
    usage = xp.broadcast_to(usage[..., None, :, :, :], (*there.shape, 4))
    found = speeds(usage, there, xp.broadcast_to(mem_mib[..., None, None], there.shape[:-1]), xp=xp)
    speed_milli = found[..., :-2, :]
    first = xp.sum(xp.where(present, now[..., None, :, 1], 0), axis=-1, dtype=xp.int32)  # (..., C)
    gone = _gone_first(present, found[..., -2, :], left_ms, same_ms, xp)
    stays = present & ~gone
    slowest = xp.maximum(found[..., -1, :] * MARGIN_MILLI // 1000, SLOWEST_MILLI)
    slowest = xp.where(xp.sum(stays, axis=-1, keepdims=True) == 1, 1000, slowest)
    # Until when each may hold its memory, in steps, rounded up.
    late = -(-left_ms[..., None, :] // (slowest * scene.step_ms // 1000))  # (..., C, T)
    late = xp.where(stays, late, 0)
    held = _largest_so_far(cells[..., 1], xp)  # (..., T, H)
    here = late[..., None] > xp.arange(horizon, dtype=xp.int32)  # (..., C, T, H)
    most = xp.max(xp.sum(xp.where(here, held[..., None, :, :], 0), axis=-2, dtype=xp.int32), axis=-1)
    most = xp.maximum(most, first)
    places = xp.sum(present, axis=-1) <= scene.running_left_ms.shape[-1]
    real = xp.all(~members | (scene.waiting_left_ms[..., None, :] > 0), axis=-1)
    sums = xp.sum(speed_milli, axis=-1)  # (..., C, G)
    weight = _widths(horizon, xp) * xp.any(there[..., :-2, :], axis=-1)
    together = xp.sum(sums * weight, axis=-1) / xp.maximum(xp.sum(weight, axis=-1), 1)
    fits = places & real & (most <= mem_mib[..., None])
    return Joint(present, speed_milli, together.astype(xp.float32), most, fits)


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
    old, new = here[..., :running], here[..., running:]  # (..., C, K), (..., C, M)
    speed = found.speed_milli.astype(xp.float32) / 1000  # (..., C, G, T)
    now = speed[..., 0, :]
    waiting = (scene.waiting_left_ms > 0).astype(xp.float32)
    leave = waiting[..., None, :] - new  # (..., C, M): who goes on waiting
    mine = left[..., None, :] * here
    old_left, new_left = mine[..., :running], mine[..., running:]
    counts = [xp.sum(old, axis=-1), xp.sum(new, axis=-1), xp.sum(leave, axis=-1)]
    slowest = xp.min(xp.where(found.speed_milli > 0, speed, 1.0), axis=-2)  # (..., C, T)
    backlog = xp.asarray(scene.backlog_jobs, dtype=xp.float32)[..., None] / JOBS
    backlog_left = xp.asarray(scene.backlog_ms, dtype=xp.float32)[..., None] / (JOBS * horizon_ms)
    used = xp.sum(job[..., None, :, -5:-1] * here[..., None], axis=-2)  # (..., C, 4): means, added up
    gpu_milli = xp.concatenate([scene.running_now, scene.waiting_now], axis=-2)[..., 0]
    used_now = gpu_milli[..., None, :] * here
    shape = counts[0].shape
    parts = [
        *[number[..., None] / 5 for number in counts],
        (counts[1] == 0).astype(xp.float32)[..., None],
        (counts[0] + counts[1] == 0).astype(xp.float32)[..., None],
        found.together_milli[..., None] / 1000,
        xp.minimum(found.mem_mib.astype(xp.float32) / mem_mib[..., None], 1.0)[..., None],
        xp.min(slowest, axis=-1)[..., None],
        xp.min(slowest[..., :running], axis=-1)[..., None],
        xp.min(slowest[..., running:], axis=-1)[..., None],
        (xp.sum(now[..., :running], axis=-1) / xp.maximum(counts[0], 1))[..., None],
        xp.max(old_left, axis=-1)[..., None],
        xp.max(new_left, axis=-1)[..., None],
        xp.sum(old_left, axis=-1)[..., None],
        xp.sum(new_left, axis=-1)[..., None],
        xp.abs(xp.max(old_left, axis=-1) - xp.max(new_left, axis=-1))[..., None],
        used[..., :1],
        used[..., 2:3],
        (xp.sum(used_now, axis=-1) / 1000)[..., None],
        xp.broadcast_to(backlog, shape)[..., None],
        xp.broadcast_to(backlog_left, shape)[..., None],
        xp.sum(speed, axis=-1),
        xp.min(xp.where(found.speed_milli > 0, speed, 1.0), axis=-1),
    ]
    combination = xp.concatenate([part.astype(xp.float32) for part in parts], axis=-1)
    return Features(job, here, waiting, combination)


def _gone_first(present: Any, speed_milli: Any, left_ms: Any, same_ms: Any, xp: Any) -> Any:
    """Who is over before anybody's use changes, with a hundredth to spare: bool (..., C, T)."""
    speed = xp.maximum(speed_milli, 1)
    left, same = xp.minimum(left_ms, LONG_MS)[..., None, :], xp.minimum(same_ms, LONG_MS)[..., None, :]
    lasts = xp.where(same_ms[..., None, :] < left_ms[..., None, :], same * 1000 // speed, NEVER_MS)
    change = xp.min(xp.where(present, lasts, NEVER_MS), axis=-1, keepdims=True)
    return present & (left_ms[..., None, :] < LONG_MS) & (left * 1010 // speed < change)


def _present(scene: Scene, members: Any, xp: Any) -> Any:
    """Who would run in each combination: those who run, and its members; bool (..., C, T)."""
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
    return xp.concatenate(
        [
            seen.reshape(*seen.shape[:-2], 4 * len(LOOKS)),
            xp.max(use, axis=-2),
            xp.sum(use, axis=-2) / steps[..., None],
            left[..., None],
        ],
        axis=-1,
    ).astype(xp.float32)


def _largest_so_far(values: Any, xp: Any) -> Any:
    """The running maximum along the last axis, by doubling, as neither library's way is the other's."""
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
