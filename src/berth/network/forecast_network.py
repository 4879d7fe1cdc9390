"""The network of `learned`: one pass over what is forecast of each combination and what the whole queue uses.

It sees what a forecast says of the jobs of a combination, exactly, and what each application uses on average. So it
needs no horizon, and holds for any number of jobs. Two layers, compiled: a decision takes about a microsecond a
combination, and a queue can be followed to its end by the network as fast as by a rule.

Letters: A applications, J jobs that wait, Q numbers of the queue, P of a combination, H and I units, O offers, K places
(tenants first, then the window's jobs), C combinations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from berth.arrays import BoolArray, FloatArray, IntArray, compiled
from berth.network.ranks import to_rank
from berth.profiles import Series

USES = 5
"""Numbers of an application: mean use of GPU, memory, cores and PCIe, and its peak of memory; parts of the card's."""
PEAK_MEM = 4
GPU_BINS, MEM_BINS = 4, 3
"""The queue's work is counted by mean use of the GPU and by peak of memory, in so many equal parts each."""
OF_QUEUE = 4 + USES + GPU_BINS * MEM_BINS
OF_FORECAST = 20
"""Numbers of a combination's forecast; behind them are sums of its jobs' uses."""
OF_COMBINATION = OF_FORECAST + 4 * USES + GPU_BINS
INPUTS = OF_QUEUE + OF_COMBINATION
UNITS = (32, 16)
"""Units of the two layers, H and I."""
MINUTE_MS, LONG_MS, LONGEST_MS, FULL_LINE_MS = 60_000.0, 300_000.0, 3_000_000.0, 600_000.0
SEEN_JOBS, JOBS = 5, 30
"""Jobs that count as many in a window and in a queue, to scale by."""
BOUNDLESS_MIB = 1 << 20
"""Memory of a card of which it is not known, to scale by."""


class ForecastNetwork(NamedTuple):
    """The weights of the network; float64 arrays of NumPy or JAX."""

    first: Any  # (Q + P, H)
    first_bias: Any  # (H,)
    second: Any  # (H, I)
    second_bias: Any  # (I,)
    last: Any  # (I,)


class Scratch(NamedTuple):
    """Arrays to work in: what is compiled here allocates nothing."""

    of_queue: FloatArray  # (Q,)
    of_combination: FloatArray  # (P,)
    begun: FloatArray  # (H,): the part of the first layer that the queue makes
    first: FloatArray  # (H,)
    second: FloatArray  # (I,)


def new_network(seed: int) -> ForecastNetwork:
    """An untrained network: weights drawn as He et al. 2015 propose, the score's small; the same for a seed."""
    draw = np.random.default_rng(seed)
    first, second = UNITS
    return ForecastNetwork(
        draw.normal(0, np.sqrt(2 / INPUTS), (INPUTS, first)),
        np.zeros(first),
        draw.normal(0, np.sqrt(2 / first), (first, second)),
        np.zeros(second),
        draw.normal(0, 0.1, second),
    )


def scratch_for(network: ForecastNetwork) -> Scratch:
    """Room for one network to work in."""
    first, second = network.second.shape
    sizes = OF_QUEUE, OF_COMBINATION, first, first, second
    return Scratch(*(np.zeros(size) for size in sizes))


def uses_of(series: Sequence[Series], mem_mib: int) -> FloatArray:
    """What the network is told of each application on a card: (A, USES)."""
    scale = np.array([1000, mem_mib or BOUNDLESS_MIB, 1000, 1000])
    usage = [np.asarray(one.usage) / scale for one in series]
    return np.array([[*one.mean(axis=0), one[:, 1].max()] for one in usage]).reshape(-1, USES)


def scores(network: ForecastNetwork, inputs: Any, xp: Any) -> Any:
    """The score of each combination, (...), of what is seen of it, (..., INPUTS): the larger, the better."""
    rank = inputs.ndim
    first = xp.maximum(inputs @ network.first + to_rank(network.first_bias, rank), 0)
    return xp.maximum(first @ network.second + to_rank(network.second_bias, rank), 0) @ network.last


@compiled
def _part(value: float, parts: int) -> int:
    return min(parts - 1, int(value * parts))


@compiled
def see_queue(uses: FloatArray, queue: IntArray, length: int, head: int, out: FloatArray) -> None:
    """What waits, application and work in µs (J, 2), from `head` to `length`: out (Q,)."""
    for at in range(OF_QUEUE):
        out[at] = 0.0
    work_ms = 0.0
    for job in range(head, length):
        one, ms = uses[queue[job, 0]], queue[job, 1] / 1000
        work_ms += ms
        for column in range(USES):
            out[4 + column] += one[column] * ms
        out[4 + USES + _part(one[0], GPU_BINS) * MEM_BINS + _part(one[PEAK_MEM], MEM_BINS)] += ms
    for at in range(4, OF_QUEUE):
        out[at] /= max(work_ms, 1.0)
    out[0] = min(1.0, work_ms / FULL_LINE_MS)
    out[1] = min(2.0, (length - head) / JOBS)
    out[2] = np.log1p(work_ms / MINUTE_MS) / 4
    out[3] = min(4.0, work_ms / max(1, length - head) / LONG_MS)


@compiled
def see_combination(
    uses: FloatArray,  # (A, USES)
    jobs: IntArray,  # (S, ≥ 2): application and work left in µs, the tenants first
    old: int,
    count: int,
    ends_ms: IntArray,  # (S,): after how long each ends, 0 where that is not known
    holds_ms: int,  # when all would have ended if none started
    window: IntArray,  # (J, 2): application and work in µs, of which those from `head` on are offered
    head: int,
    seen: int,
    mask: int,
    out: FloatArray,  # (P,)
) -> None:
    """What is seen of a combination: in this order joint progress; the sum of speeds, to the end and in the next
    minute; how many start, the longest of them, the first end, how many run, whether it holds; the last end, the time
    that is saved; the least speeds of those that start and those that run, the last one's, the mean end, the last one's
    time alone; how many ran; how many stay in the window, the longest; how much later all ends, and when without it.
    Then uses: by speed, of all, of those that start, of those that stay; and speeds by use of the GPU."""
    for at in range(OF_COMBINATION):
        out[at] = 0.0
    out[10], out[11] = 1.0, 1.0
    first, second, last, all_ms, alone_ms = LONGEST_MS / 2, 0, 0, 0.0, 0
    by_speed, of_all = OF_FORECAST, OF_FORECAST + USES
    of_new, of_rest, by_gpu = of_all + USES, of_all + 2 * USES, of_all + 3 * USES
    for seat in range(count):
        left_ms, end, speed, one = jobs[seat, 1] / 1000, ends_ms[seat], 0.0, uses[jobs[seat, 0]]
        all_ms += left_ms
        if end > 0:
            speed = left_ms / end
            out[1] += speed
            out[2] += speed * min(end, MINUTE_MS) / MINUTE_MS
            first = min(first, end)
            if end > last:
                second, last = last, end
                out[12] = speed
            elif end > second:
                second = end
            out[13] += end
            least = 11 if seat < old else 10
            out[least] = min(out[least], speed)
        if seat >= old:
            alone_ms += jobs[seat, 1] // 1000
            out[4] = max(out[4], left_ms / LONG_MS)
        for column in range(USES):
            out[by_speed + column] += one[column] * speed
            out[of_all + column] += one[column]
            if seat >= old:
                out[of_new + column] += one[column]
        out[by_gpu + _part(one[0], GPU_BINS)] += speed
    total_ms = max(last, 1)
    out[0] = all_ms / total_ms
    out[3] = (count - old) / SEEN_JOBS
    out[5] = first / LONG_MS
    out[6] = count / SEEN_JOBS
    out[7] = 1.0 if count == old else 0.0
    out[8] = np.log1p(last / MINUTE_MS) / 2
    out[9] = (holds_ms + alone_ms - last) / max(holds_ms + alone_ms, 1)
    out[13] /= max(count, 1) * total_ms
    out[14] = (last - second) / total_ms
    out[15] = old / SEEN_JOBS
    stays, longest_us = 0, 0
    for job in range(seen):
        if not mask >> job & 1:
            stays += 1
            longest_us = max(longest_us, window[head + job, 1])
            for column in range(USES):
                out[of_rest + column] += uses[window[head + job, 0], column]
    for column in range(USES):
        out[of_rest + column] /= max(stays, 1)
    out[16] = stays / SEEN_JOBS
    out[17] = longest_us / 1000 / LONG_MS
    out[18] = (last - holds_ms) / LONG_MS
    out[19] = min(holds_ms, LONGEST_MS) / LONG_MS


@compiled
def begin_score(network: ForecastNetwork, scratch: Scratch) -> None:
    """The part of the first layer that the queue makes, the same for all combinations."""
    begun = scratch.begun
    for unit in range(begun.shape[0]):
        begun[unit] = network.first_bias[unit]
    for at in range(OF_QUEUE):
        value = scratch.of_queue[at]
        for unit in range(begun.shape[0]):
            begun[unit] += value * network.first[at, unit]


@compiled
def score(network: ForecastNetwork, scratch: Scratch) -> float:
    """The score of what is seen of one combination; tests hold it equal to `scores`."""
    first, second = scratch.first, scratch.second
    for unit in range(first.shape[0]):
        first[unit] = scratch.begun[unit]
    for at in range(OF_COMBINATION):
        value = scratch.of_combination[at]
        for unit in range(first.shape[0]):
            first[unit] += value * network.first[OF_QUEUE + at, unit]
    for unit in range(second.shape[0]):
        second[unit] = network.second_bias[unit]
    for at in range(first.shape[0]):
        value = max(first[at], 0.0)
        for unit in range(second.shape[0]):
            second[unit] += value * network.second[at, unit]
    found = 0.0
    for unit in range(second.shape[0]):
        found += max(second[unit], 0.0) * network.last[unit]
    return found


@compiled
def score_offers(
    network: ForecastNetwork,
    scratch: Scratch,
    uses: FloatArray,  # (A, USES)
    queue: IntArray,  # (J, 2): application and work in µs of all that wait
    application: IntArray,  # (O, K)
    left_us: IntArray,  # (O, K)
    tenants: IntArray,  # (O,)
    window: IntArray,  # (O,)
    ends_ms: IntArray,  # (O, C, K)
    allowed: BoolArray,  # (O, C)
    jobs: IntArray,  # (K, 3): to work in
    line: IntArray,  # (K, 2): to work in
    out: FloatArray,  # (O, C), out where allowed
) -> None:
    """What the network says of each combination of each offer that is allowed."""
    see_queue(uses, queue, queue.shape[0], 0, scratch.of_queue)
    begin_score(network, scratch)
    for offer in range(allowed.shape[0]):
        old, seen, holds_ms = tenants[offer], window[offer], 0
        for job in range(seen):
            line[job, 0], line[job, 1] = application[offer, old + job], left_us[offer, old + job]
        for place in range(old):
            holds_ms = max(holds_ms, ends_ms[offer, 0, place])
        for mask in range(allowed.shape[1]):
            if not allowed[offer, mask]:
                continue
            size = 0
            for place in range(old + seen):
                if place < old or mask >> (place - old) & 1:
                    jobs[size, 0], jobs[size, 1] = application[offer, place], left_us[offer, place]
                    jobs[size, 2] = ends_ms[offer, mask, place]
                    size += 1
            see_combination(
                uses, jobs, old, size, jobs[:, 2], holds_ms, line, 0, seen, mask, scratch.of_combination
            )
            out[offer, mask] = score(network, scratch)
