"""Headroom: GPUs that stay free for urgent jobs, as many as experience says."""

from __future__ import annotations

import pytest

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.errors import SettingError
from berth.model import EventKind, Job, Node, Placement
from berth.policies import make_policy
from berth.statistics import event_columns, summarise

HOUR_MS = 3_600_000
NODES = (Node("a", 8),)
PLAIN = "preempt+priority+first-fit"
HEADROOM = f"headroom?quantile=0.9&ahead_s=3600+{PLAIN}"


def hourly(hours: int) -> list[Job]:
    """Every hour an urgent job of four GPUs for ten minutes; every four hours eight others at once, for 90 minutes."""
    jobs = [Job(f"urgent-{at}", at * HOUR_MS, HOUR_MS // 6, gpus=4, priority=1) for at in range(hours)]
    for at in range(0, hours, 4):
        jobs += [Job(f"spot-{at}-{of}", at * HOUR_MS + 3 * HOUR_MS // 4, 3 * HOUR_MS // 2) for of in range(8)]
    return sorted(jobs, key=lambda job: job.submit_ms)


def test_what_urgent_jobs_take_every_hour_is_kept_free_and_nothing_is_evicted_for_them_any_more() -> None:
    found = {}
    for name in (PLAIN, HEADROOM):
        events = list(simulate(hourly(72), Cluster(NODES), make_policy(name)))
        late = [event for event in events if event.time_ms > 24 * HOUR_MS]
        evictions = sum(event.kind is EventKind.EVICT for event in late)
        found[name] = evictions, summarise(event_columns(events), NODES)
    assert found[PLAIN][0] > 0
    assert found[HEADROOM][0] == 0
    with_room, without = found[HEADROOM][1], found[PLAIN][1]
    assert with_room.finished == without.finished == 72 + 2 * 72
    assert with_room.evicted_gpu_hours is not None
    assert without.evicted_gpu_hours is not None
    assert with_room.evicted_gpu_hours < without.evicted_gpu_hours
    assert with_room.urgent_waiting_time_s is not None
    assert with_room.urgent_waiting_time_s.maximum == 0


def test_without_urgent_jobs_it_decides_as_the_policy_within() -> None:
    jobs = [Job(f"j{at}", at * HOUR_MS // 20, HOUR_MS, gpus=1 + at % 3) for at in range(60)]
    plain, kept = (list(simulate(jobs, Cluster(NODES), make_policy(name))) for name in (PLAIN, HEADROOM))
    assert kept == plain


def test_with_passing_a_small_job_passes_a_large_one_and_none_passes_an_urgent_one() -> None:
    jobs = [
        Job("runs", 0, HOUR_MS, gpus=4, priority=1),
        Job("large", 1, HOUR_MS, gpus=8),
        Job("small", 2, HOUR_MS, gpus=2),
        Job("urgent", 3, HOUR_MS, gpus=6, priority=1),
        Job("late", 4, HOUR_MS),
    ]
    found = {}
    for name in (HEADROOM, HEADROOM.replace("headroom?", "headroom?passing=1&")):
        events = simulate(jobs, Cluster(NODES), make_policy(name))
        found[name] = {event.job.id: event.time_ms for event in events if event.kind is EventKind.START}
    strict, passing = found.values()
    assert strict["small"] > strict["large"]
    assert (passing["small"], passing["urgent"]) == (2, HOUR_MS)
    assert passing["late"] >= passing["urgent"]


def test_a_job_without_gpus_does_not_wait_for_urgent_jobs_that_do() -> None:
    jobs = [
        Job("runs", 0, HOUR_MS, gpus=8, priority=1),
        Job("waits", 1, HOUR_MS, gpus=8, priority=1),
        Job("cpu", 2, 1, gpus=0),
    ]
    events = simulate(jobs, Cluster(NODES), make_policy("headroom+passing+priority+first-fit"))
    starts = {event.job.id: event.time_ms for event in events if event.kind is EventKind.START}
    assert starts == {"runs": 0, "cpu": 2, "waits": HOUR_MS}


def test_the_headroom_shrinks_when_urgent_jobs_stay_away() -> None:
    jobs = [*hourly(30), Job("whole", 40 * HOUR_MS, HOUR_MS, gpus=8)]
    events = list(simulate(jobs, Cluster(NODES), make_policy(HEADROOM)))
    assert {event.job.id for event in events if event.kind is EventKind.FINISH} == {job.id for job in jobs}


def test_what_a_trial_saw_is_forgotten_when_it_is_rolled_back() -> None:
    policy, cluster, queue = make_policy(HEADROOM), Cluster(NODES), Queue()
    spot = Job("spot", 0, HOUR_MS, gpus=8)
    queue.add(spot)

    def starts(at: int) -> bool:
        decisions = list(policy(queue, cluster, at * HOUR_MS // 6))
        return any(isinstance(decision, Placement) and decision.job == spot for decision in decisions)

    for at in range(48):
        urgent = Job(f"urgent-{at}", 0, 1, gpus=4, priority=1)
        if at % 6 == 0:
            queue.add(urgent)
        starts(at)
        if at % 6 == 0:
            queue.remove(urgent)
    for weeks in (1, 2, 50):
        assert not starts(48)
        assert starts(48 + weeks * 7 * 24 * 6)  # without urgent jobs
    assert not starts(48)


@pytest.mark.parametrize("settings", ["quantile=2", "ahead_s=0", "quantile=much", "of=3"])
def test_settings_that_cannot_be_are_refused(settings: str) -> None:
    with pytest.raises(SettingError, match="headroom"):
        make_policy(f"headroom?{settings}+{PLAIN}")
