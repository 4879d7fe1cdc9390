"""The vectorised metrics against a model that looks at every GPU in every millisecond."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.model import NO_GPU, EventKind
from berth.statistics import event_columns, run_of, summarise, timeline
from tests.examples import examples
from tests.statistics.histories import History, histories


@dataclass
class Moment:
    """What was so for one millisecond."""

    used_milli: dict[tuple[int, int], int]
    jobs: dict[tuple[int, int], int]
    waiting: int
    running: int


def moments(history: History) -> list[Moment]:
    """Every millisecond from the first event to before the last, and the state after the last."""
    begin, end = history.events[0].time_ms, history.events[-1].time_ms
    told = []
    for now_ms in range(begin, end + 1):
        used: dict[tuple[int, int], int] = {}
        jobs: dict[tuple[int, int], int] = {}
        waiting = running = 0
        for happened in history.events:
            if happened.time_ms > now_ms:
                break
            left_the_queue = happened.kind is EventKind.START or not happened.slots
            waiting += 1 if happened.kind is EventKind.SUBMIT else -left_the_queue
            sign = 1 if happened.kind is EventKind.START else -1 if happened.slots else 0
            running += sign
            for slot in happened.slots:
                if slot.index != NO_GPU:
                    used[slot] = used.get(slot, 0) + sign * happened.share.milli
                    jobs[slot] = jobs.get(slot, 0) + sign
        whole = {
            slot: min(milli, 1000) for slot, milli in used.items()
        }  # a GPU counts once, whoever shares it
        told.append(Moment(whole, jobs, waiting, running))
    return told


@given(histories())
@settings(max_examples=examples(300), deadline=None)
def test_measures_over_time_are_those_of_every_millisecond(history: History) -> None:
    seen = moments(history)[:-1]
    gpus = sum(node.gpus for node in history.nodes)
    summary = summarise(event_columns(history.events), history.nodes)
    if not seen or not gpus:
        assert math.isnan(summary.gpu_allocation_pct)
        return
    capacity = 1000 * gpus * len(seen)
    held = sum(sum(moment.used_milli.values()) for moment in seen)
    busy = sum(count > 0 for moment in seen for count in moment.jobs.values())
    idle_on_busy = sum(
        1000 - moment.used_milli[slot] for moment in seen for slot, count in moment.jobs.items() if count
    )
    assert summary.gpu_allocation_pct == pytest.approx(100 * held / capacity)
    assert summary.gpu_busy_pct == pytest.approx(100 * 1000 * busy / capacity)
    if held < capacity:
        assert summary.fragmentation_pct == pytest.approx(100 * idle_on_busy / (capacity - held))
    assert summary.gpu_hours.held == pytest.approx(held / 3.6e9)


@given(histories())
@settings(max_examples=examples(200), deadline=None)
def test_useful_wasted_and_unfinished_hours_are_all_that_was_held(history: History) -> None:
    hours = summarise(event_columns(history.events), history.nodes).gpu_hours
    assert min(hours.useful, hours.wasted, hours.unfinished) >= 0
    assert hours.useful + hours.wasted + hours.unfinished == pytest.approx(hours.held)


@given(histories())
@settings(max_examples=examples(200), deadline=None)
def test_every_job_is_in_one_state_at_the_end(history: History) -> None:
    summary = summarise(event_columns(history.events), history.nodes)
    ended = (summary.finished, summary.failed, summary.rejected, summary.cancelled)
    assert sum(ended) + summary.waiting + summary.running == summary.jobs


@given(histories(), st.integers(1, 60))
@settings(max_examples=examples(300), deadline=None)
def test_a_timeline_has_the_mean_and_the_peak_of_every_bin(history: History, points: int) -> None:
    seen = moments(history)
    begin = history.events[0].time_ms
    line = timeline(event_columns(history.events), history.nodes, points)
    levels = {
        "allocated_milli": [sum(moment.used_milli.values()) for moment in seen],
        "waiting": [moment.waiting for moment in seen],
    }
    edges = (line.edges_ms - begin).tolist()
    assert edges[0] == 0
    assert edges[-1] == len(seen) - 1
    assert 1 <= len(edges) - 1 <= points
    for name, level in levels.items():
        # A run of no time has one bin, with what was so at its end.
        bins = [level[a:b] or level[a:] for a, b in pairwise(edges)]
        assert getattr(line, f"{name}_mean") == pytest.approx([sum(part) / len(part) for part in bins])
        if name == "waiting":
            assert line.waiting_max == pytest.approx([max(part) for part in bins])


@given(histories())
@settings(max_examples=examples(50), deadline=None)
def test_the_waits_that_a_run_keeps_rise(history: History) -> None:
    columns = event_columns(history.events)
    run = run_of(columns, history.nodes, "fifo", 3)
    assert np.all(np.diff(run.waiting.shares) > 0)
