"""What the network sees of each combination: its jobs, its neighbours, and how they would advance together.

Compiled: a decision spends most of its time here. Tests hold it equal to the same in plain NumPy. The shapes' letters
are told in the package's docstring; O scenes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.arrays import BoolArray, IntArray, compiled
from berth.interference.speeds import GPU, MEM, Speeds
from berth.network.catalogue import NEVER_MS

Int32 = NDArray[np.int32]
Floats = NDArray[np.float32]

LOOKS = (0, 1, 2, 4, 7, 12, 18, 26)
"""Steps of the horizon at which neighbours are looked at together: G of them, dense where it matters soon."""
NOW, LARGEST = len(LOOKS), len(LOOKS) + 1
"""Behind these: what is used now, and the most that is used of each resource."""
JOB_FEATURES = 4 * len(LOOKS) + 9
MEAN = 4 * len(LOOKS) + 4
"""Where a job's mean use begins in its features."""
AT_LOOKS = 21
"""Where the features of each look begin in those of a combination: its speeds added up, then the least of them."""
COMBINATION_FEATURES = AT_LOOKS + 2 * len(LOOKS)
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
    """GPUs and the head of the queue at one moment each, as a policy sees them.

    A job is five things: what it needs in each step of the horizon (`left_cells`), what it uses now, how much work
    it does until that changes (NEVER_MS: it will not), and what work is left, as run time alone, 0 for an empty place.
    """

    running: Any  # int32 (O, K, H, 4)
    running_now: Any  # int32 (O, K, 4)
    running_same_ms: Any  # int32 (O, K)
    running_left_ms: Any  # int32 (O, K)
    waiting: Any  # int32 (O, M, H, 4)
    waiting_now: Any  # int32 (O, M, 4)
    waiting_same_ms: Any  # int32 (O, M)
    waiting_left_ms: Any  # int32 (O, M)
    backlog_jobs: Any  # int32 (O,): jobs behind those that are seen
    backlog_ms: Any  # int32 (O,): their run time alone, together
    mem_mib: Any  # int32 (O,) or one number: memory of the card, NEVER_MS where it is not known
    step_ms: int


class Features(NamedTuple):
    """What the network is given; arrays of NumPy or JAX."""

    job: Any  # float32 (O, T, JOB_FEATURES)
    present: Any  # float32 (O, C, T)
    waiting: Any  # float32 (O, M): 1 where a slot holds a job
    combination: Any  # float32 (O, C, COMBINATION_FEATURES)


def features(scene: Scene, members: BoolArray, speeds: Speeds) -> Features:
    """The numbers that the network is given of each combination, about 1 in size; `members` is (O, C, M), or (C, M) if
    they are the same in all scenes. ValueError if they are of another number of waiting jobs.

    Memory is judged to the end. Until the first tenant ends or its use changes all is known exactly, and a job that
    leaves by then is out of the way. From then on a tenant holds at each step the most that it has needed until then,
    and leaves as late as the slowest predicted speed, less a margin, would let it.
    """
    running = scene.running_left_ms.shape[1]
    cells = np.concatenate([scene.running, scene.waiting], axis=1)  # (O, T, H, 4)
    now = np.concatenate([scene.running_now, scene.waiting_now], axis=1)  # (O, T, 4)
    same_ms = np.concatenate([scene.running_same_ms, scene.waiting_same_ms], axis=1)  # (O, T)
    left_ms = np.concatenate([scene.running_left_ms, scene.waiting_left_ms], axis=1)
    scenes, jobs, horizon, _ = cells.shape
    mem_mib = np.broadcast_to(np.asarray(scene.mem_mib, np.int32), (scenes,)).copy()
    count, window = members.shape[-2], jobs - running
    members = np.ascontiguousarray(np.broadcast_to(members, (scenes, count, window)))
    job = np.empty((scenes, jobs, JOB_FEATURES), np.float32)
    held = np.empty((scenes, jobs, horizon), np.int32)
    largest = np.empty((scenes, jobs, 4), np.int32)
    _of_jobs(cells, left_ms, scene.step_ms, mem_mib, job, held, largest)

    sits = np.empty((scenes, count, jobs), np.int32)
    seats = _seated(left_ms, running, members, sits)
    usage = np.empty((scenes, count, len(LOOKS) + 2, seats, 4), np.int32)
    there = np.empty(usage.shape[:-1], np.bool_)
    _with_neighbours(cells, now, largest, left_ms, sits, scene.step_ms, usage, there)
    found = speeds(usage, there, np.broadcast_to(mem_mib[:, None, None], there.shape[:-1]))

    present = np.empty((scenes, count, jobs), np.float32)
    combination = np.empty((scenes, count, COMBINATION_FEATURES), np.float32)
    backlog_jobs = np.ascontiguousarray(scene.backlog_jobs, np.int32)
    backlog_ms = np.ascontiguousarray(scene.backlog_ms, np.int32)
    _of_combinations(
        job,
        held,
        now,
        left_ms,
        same_ms,
        running,
        sits,
        np.ascontiguousarray(found, np.int32),
        backlog_jobs,
        backlog_ms,
        mem_mib,
        scene.step_ms,
        np.empty(seats, np.int64),
        present,
        combination,
    )
    return Features(job, present, (scene.waiting_left_ms > 0).astype(np.float32), combination)


@compiled
def _of_jobs(
    cells: Int32,  # (O, T, H, 4)
    left_ms: Int32,  # (O, T)
    step_ms: int,
    mem_mib: Int32,  # (O,)
    job: Floats,  # (O, T, JOB_FEATURES), out: use at some steps, at its highest and on average, and how long it goes on
    held: Int32,  # (O, T, H), out: the most memory until each step
    largest: Int32,  # (O, T, 4), out: the most of each resource
) -> None:
    """What the network is told of each job, and what combinations need of it."""
    horizon = cells.shape[2]
    for scene in range(cells.shape[0]):
        for one in range(cells.shape[1]):
            steps = np.float32(min(max(-(-left_ms[scene, one] // step_ms), 1), horizon))
            for column in range(4):
                scale = np.float32(mem_mib[scene] if column == MEM else 1000)
                most = cells[scene, one, 0, column]
                total = np.float32(0)
                for step in range(horizon):
                    value = cells[scene, one, step, column]
                    most = max(most, value)
                    total += np.float32(value) / scale
                    if column == MEM:
                        held[scene, one, step] = most
                largest[scene, one, column] = most
                for look in range(len(LOOKS)):
                    value = cells[scene, one, min(LOOKS[look], horizon - 1), column]
                    job[scene, one, column * len(LOOKS) + look] = np.float32(value) / scale
                job[scene, one, MEAN - 4 + column] = np.float32(most) / scale
                job[scene, one, MEAN + column] = total / steps
            job[scene, one, JOB_FEATURES - 1] = np.float32(left_ms[scene, one]) / np.float32(
                horizon * step_ms
            )


@compiled
def _seated(
    left_ms: Int32,  # (O, T)
    running: int,
    members: BoolArray,  # (O, C, M)
    sits: Int32,  # (O, C, T), out: the job in each seat, those that run already first, −1 behind the last
) -> int:
    """Give the jobs of each combination their seats; the most seats that are taken, at least 1."""
    seats = 1
    for scene in range(sits.shape[0]):
        for combination in range(sits.shape[1]):
            seat = 0
            for one in range(sits.shape[2]):
                sits[scene, combination, one] = -1
                starts = one < running or members[scene, combination, one - running]
                if starts and left_ms[scene, one] > 0:
                    sits[scene, combination, seat] = one
                    seat += 1
            seats = max(seats, seat)
    return seats


@compiled
def _with_neighbours(
    cells: Int32,  # (O, T, H, 4)
    now: Int32,  # (O, T, 4)
    largest: Int32,  # (O, T, 4)
    left_ms: Int32,  # (O, T)
    sits: Int32,  # (O, C, T)
    step_ms: int,
    usage: Int32,  # (O, C, G + 2, P, 4), out: what the tenants of each combination use at each look
    there: BoolArray,  # (O, C, G + 2, P), out: which of them are not over by then
) -> None:
    """What the model of speeds is asked about each combination."""
    horizon = cells.shape[2]
    for scene in range(usage.shape[0]):
        for combination in range(usage.shape[1]):
            for seat in range(usage.shape[3]):
                one = sits[scene, combination, seat]
                for look in range(len(LOOKS) + 2):
                    there[scene, combination, look, seat] = one >= 0
                    if one < 0:
                        usage[scene, combination, look, seat, :] = 0
                        continue
                    if look == NOW:
                        row = now[scene, one]
                    elif look == LARGEST:
                        row = largest[scene, one]
                    else:
                        step = min(LOOKS[look], horizon - 1)
                        there[scene, combination, look, seat] = left_ms[scene, one] > step * step_ms
                        row = cells[scene, one, step]
                    for column in range(4):
                        usage[scene, combination, look, seat, column] = row[column]


@compiled
def _most_memory(
    held: Int32,  # (T, H)
    now: Int32,  # (T, 4)
    left_ms: Int32,  # (T,)
    same_ms: Int32,  # (T,)
    sits: Int32,  # (T,)
    seats: int,
    speed_milli: Int32,  # (G + 2, P)
    step_ms: int,
    late: IntArray,  # (P,): to work in
) -> int:
    """The most memory, MiB, that the tenants of a combination may use together, however late they are."""
    change_ms, most = NEVER_MS, 0
    for seat in range(seats):
        one = sits[seat]
        most += now[one, MEM]
        if same_ms[one] < left_ms[one]:
            change_ms = min(change_ms, min(same_ms[one], LONG_MS) * 1000 // max(speed_milli[NOW, seat], 1))
    stay, latest = 0, 0
    for seat in range(seats):
        stays = not _gone_first(left_ms[sits[seat]], speed_milli[NOW, seat], change_ms)
        stay += stays
        late[seat] = stays
    for seat in range(seats):
        if late[seat]:  # until when it may hold its memory, in steps, rounded up
            slowest = max(speed_milli[LARGEST, seat] * MARGIN_MILLI // 1000, SLOWEST_MILLI)
            slowest = 1000 if stay == 1 else slowest
            late[seat] = -(-left_ms[sits[seat]] // max(slowest * step_ms // 1000, 1))
            latest = max(latest, late[seat])
    for step in range(min(held.shape[1], latest)):
        total = 0
        for seat in range(seats):
            if late[seat] > step:
                total += held[sits[seat], step]
        most = max(most, total)
    return most


@compiled
def _gone_first(left_ms: int, speed_milli: int, change_ms: int) -> bool:
    """Whether a tenant is over before any use changes, with a hundredth to spare."""
    return left_ms < LONG_MS and left_ms * 1010 // max(speed_milli, 1) < change_ms


@compiled
def _together_milli(
    left_ms: Int32,  # (T,)
    sits: Int32,  # (T,)
    seats: int,
    speed_milli: Int32,  # (G + 2, P)
    horizon: int,
    step_ms: int,
) -> float:
    """Mean of the tenants' speeds added up, over their time together."""
    total, steps = 0, 0
    for look in range(len(LOOKS)):
        both, runs = 0, False
        for seat in range(seats):
            both += speed_milli[look, seat]
            runs |= left_ms[sits[seat]] > min(LOOKS[look], horizon - 1) * step_ms
        end = LOOKS[look + 1] if look + 1 < len(LOOKS) else max(horizon, LOOKS[-1] + 1)
        if runs:
            total += both * (end - LOOKS[look])
            steps += end - LOOKS[look]
    return total / max(steps, 1)


@compiled
def _of_combinations(
    job: Floats,  # (O, T, JOB_FEATURES)
    held: Int32,  # (O, T, H)
    now: Int32,  # (O, T, 4)
    left_ms: Int32,  # (O, T)
    same_ms: Int32,  # (O, T)
    running: int,
    sits: Int32,  # (O, C, T)
    speed_milli: Int32,  # (O, C, G + 2, P)
    backlog_jobs: Int32,  # (O,)
    backlog_ms: Int32,  # (O,)
    mem_mib: Int32,  # (O,)
    step_ms: int,
    late: IntArray,  # (P,): to work in
    present: Floats,  # (O, C, T), out
    found: Floats,  # (O, C, COMBINATION_FEATURES), out
) -> None:
    """What the network is told of each combination."""
    one_f, zero, thousand = np.float32(1), np.float32(0), np.float32(1000)
    horizon = held.shape[2]
    horizon_ms = np.float32(horizon * step_ms)
    for scene in range(sits.shape[0]):
        waits = 0
        for one in range(running, left_ms.shape[1]):
            waits += left_ms[scene, one] > 0
        for combination in range(sits.shape[1]):
            here, out = sits[scene, combination], found[scene, combination]
            speed = speed_milli[scene, combination]
            present[scene, combination, :] = zero
            old, new, seats = 0, 0, 0
            used_gpu, used_cores, used_now = zero, zero, 0
            old_most, new_most, old_sum, new_sum, old_speed = zero, zero, zero, zero, zero
            slowest, old_slowest, new_slowest = one_f, one_f, one_f
            for look in range(len(LOOKS)):
                out[AT_LOOKS + look], out[AT_LOOKS + len(LOOKS) + look] = zero, one_f
            for seat in range(speed.shape[1]):
                one = here[seat]
                if one < 0:
                    break
                seats += 1
                present[scene, combination, one] = one_f
                used_gpu += job[scene, one, MEAN]
                used_cores += job[scene, one, MEAN + 2]
                used_now += now[scene, one, GPU]
                mine, mine_slowest = job[scene, one, JOB_FEATURES - 1], one_f
                for look in range(len(LOOKS)):
                    if speed[look, seat] > 0:
                        part = np.float32(speed[look, seat]) / thousand
                        mine_slowest = min(mine_slowest, part)
                        out[AT_LOOKS + look] += part
                        out[AT_LOOKS + len(LOOKS) + look] = min(out[AT_LOOKS + len(LOOKS) + look], part)
                slowest = min(slowest, mine_slowest)
                if one < running:
                    old += 1
                    old_most, old_sum = max(old_most, mine), old_sum + mine
                    old_slowest = min(old_slowest, mine_slowest)
                    old_speed += np.float32(speed[0, seat]) / thousand
                else:
                    new += 1
                    new_most, new_sum = max(new_most, mine), new_sum + mine
                    new_slowest = min(new_slowest, mine_slowest)
            together = _together_milli(left_ms[scene], here, seats, speed, horizon, step_ms)
            memory = _most_memory(
                held[scene], now[scene], left_ms[scene], same_ms[scene], here, seats, speed, step_ms, late
            )
            out[0] = np.float32(old) / np.float32(SEEN_JOBS)
            out[1] = np.float32(new) / np.float32(SEEN_JOBS)
            out[STAY] = np.float32(waits - new) / np.float32(SEEN_JOBS)
            out[3], out[4] = np.float32(new == 0), np.float32(seats == 0)
            out[5] = np.float32(together) / thousand
            out[6] = min(np.float32(memory) / np.float32(mem_mib[scene]), one_f)
            out[7], out[8], out[9] = slowest, old_slowest, new_slowest
            out[10] = old_speed / np.float32(max(old, 1))
            out[11], out[12], out[13], out[14] = old_most, new_most, old_sum, new_sum
            out[15] = abs(old_most - new_most)
            out[16], out[17], out[18] = used_gpu, used_cores, np.float32(used_now) / thousand
            out[BACKLOG_JOBS] = np.float32(backlog_jobs[scene]) / np.float32(JOBS)
            out[BACKLOG_LEFT] = np.float32(backlog_ms[scene]) / (np.float32(JOBS) * horizon_ms)
