"""Start intervals: what a waiting job is told of its start, from the first job on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from berth.card_speeds import ALL_ALIKE
from berth.cluster import Cluster, Queue
from berth.cluster.outages import Recovery
from berth.engine import simulate
from berth.engine.run import Run
from berth.engine.stretch import one_by_one
from berth.errors import SettingError
from berth.interference import no_interference
from berth.knowledge import History, Knowledge, Oracle, User
from berth.model import Event, EventKind, Evict, GpuSlot, Job, Node, Placement, RecordState, Share, WakeAt
from berth.policies import Setting, make_policy
from berth.scheduler import Learned, Scheduler, StartForecast, StartInterval
from berth.scheduler.starts import MOST_CALLS
from tests.scheduler.examples import live, scheduler, started

HOUR_MS = 3_600_000


def asked(name: str, run_ms: int, **more: object) -> Job:
    return replace(live(name, gpus=1, **more), work_ms=run_ms, time_limit_ms=4 * HOUR_MS)


def known(nodes: list[Node], jobs: list[Job], policy: str = "easy+fifo+first-fit") -> Scheduler:
    """A scheduler that knows all run times, with these jobs."""
    knowledge = Oracle()
    one = Scheduler(Cluster(nodes), make_policy(policy, Setting(knowledge=knowledge)), knowledge)
    for job in jobs:
        one.submit(job)
    return one


def gpus(number: int) -> list[Node]:
    return [Node("a", number, None, 64_000, 64_000)]


def test_known_run_times_give_the_very_starts() -> None:
    jobs = [
        asked(name, hours * HOUR_MS) for name, hours in (("a", 1), ("b", 3), ("c", 2), ("d", 5), ("e", 1))
    ]
    one = known(gpus(2), jobs)
    assert started(one) == ["a", "b"]

    found = StartForecast().intervals(one, 0)

    # c follows a, d follows b and c as both end, and e takes the other GPU.
    assert found == {
        "c": (HOUR_MS, HOUR_MS),
        "d": (3 * HOUR_MS, 3 * HOUR_MS),
        "e": (3 * HOUR_MS, 3 * HOUR_MS),
    }


@pytest.mark.parametrize(
    "policy", ["easy+fifo+first-fit", "conservative+fifo+best-fit", "sjf+best-fit", "learned"]
)
def test_a_forecast_changes_nothing(policy: str) -> None:
    knowledge = User()
    one = Scheduler(Cluster(gpus(2)), make_policy(policy, Setting(knowledge=knowledge)), knowledge)
    for at in range(6):
        one.submit(asked(f"j{at}", HOUR_MS))
    started(one)
    before = list(one.queue), dict(one.cluster.running), one.cluster.free.milli.tolist()

    first = StartForecast().intervals(one, 1000)

    assert (list(one.queue), dict(one.cluster.running), one.cluster.free.milli.tolist()) == before
    assert StartForecast().intervals(one, 1000) == first
    assert started(one, 1000) == []


def test_the_first_job_that_ever_waits_has_a_wide_interval_by_the_limits_of_what_runs() -> None:
    one = scheduler(nodes=gpus(1))
    one.submit(asked("a", HOUR_MS))
    one.submit(asked("b", HOUR_MS))
    assert started(one) == ["a"]

    (interval,) = StartForecast().intervals(one, HOUR_MS).values()

    assert HOUR_MS < interval.from_ms < 2 * HOUR_MS
    assert 2 * HOUR_MS < interval.to_ms - HOUR_MS <= 1.6 * 3 * HOUR_MS


def test_a_longer_queue_than_a_draw_reaches_has_later_starts_the_further_behind() -> None:
    jobs = [asked(f"j{at}", HOUR_MS) for at in range(MOST_CALLS + 50)]
    one = known(gpus(1), jobs)
    started(one)

    found = StartForecast().intervals(one, 0)

    assert [found[job.id].from_ms for job in jobs[1:]] == [at * HOUR_MS for at in range(1, len(jobs))]


def test_a_job_that_never_fits_beside_what_stays_has_none() -> None:
    one = scheduler(nodes=gpus(1))
    one.submit(replace(asked("service", HOUR_MS), time_limit_ms=None))
    one.submit(asked("b", HOUR_MS))
    started(one)

    assert StartForecast().intervals(one, 0) == {}


def test_nothing_more_is_drawn_when_the_time_is_over() -> None:
    one = scheduler(nodes=gpus(1))
    for name in "abc":
        one.submit(asked(name, HOUR_MS))
    started(one)
    asked_often = []

    def over() -> bool:
        asked_often.append(1)
        return True

    assert StartForecast().intervals(one, 0, out_of_time=over) == {}
    assert len(asked_often) == 2  # within the first draw, and before the second


def test_a_wake_that_the_policy_asked_for_before_counts() -> None:
    def from_one_o_clock(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement | WakeAt]:
        if now_ms < HOUR_MS:
            yield WakeAt(HOUR_MS)
            return
        for job in list(queue):
            yield Placement(job, (GpuSlot(0, 0),), job.share)

    knowledge = Oracle()
    one = Scheduler(Cluster(gpus(1)), from_one_o_clock, knowledge)
    one.submit(asked("a", HOUR_MS))
    assert started(one) == []
    assert one.next_wake_ms == HOUR_MS

    assert StartForecast().intervals(one, 0) == {"a": (HOUR_MS, HOUR_MS)}


def test_a_suspended_job_that_runs_on_in_a_draw_ends_there() -> None:
    one = known(
        gpus(1), [asked("a", 2 * HOUR_MS), asked("b", HOUR_MS), asked("c", HOUR_MS)], "fifo+first-fit"
    )
    assert started(one) == ["a"]
    one.suspended("a", HOUR_MS, held_mib=100)
    assert one.place(Placement(next(iter(one.queue)), (GpuSlot(0, 0),), Share(1000, 0)), HOUR_MS)

    # b ends after two hours; a has an hour left, and runs on before c starts.
    assert StartForecast().intervals(one, HOUR_MS) == {"c": (3 * HOUR_MS, 3 * HOUR_MS)}


def test_an_eviction_in_a_draw_ends_no_evicted_job() -> None:
    def evicts(queue: object, cluster: Cluster, now_ms: int) -> object:
        if now_ms == HOUR_MS and "b" in cluster.running:
            yield Evict(cluster.running["b"].job)

    one = known(gpus(2), [asked("a", HOUR_MS), asked("b", 2 * HOUR_MS), asked("c", HOUR_MS)])
    started(one)
    one.policy = evicts  # type: ignore[assignment]

    assert StartForecast().intervals(one, 0) == {}
    assert set(one.cluster.running) == {"a", "b"}


def starts_after(
    forecast: StartForecast, run_ms: int, now_ms: int, name: str, knowledge: Knowledge
) -> StartInterval:
    """The interval of a job that waits for another one, which then runs for that long."""
    policy = make_policy("fifo+first-fit", Setting(0, knowledge=knowledge))
    one = Scheduler(Cluster(gpus(1)), policy, knowledge)
    one.submit(asked(f"runs-{name}", HOUR_MS))
    one.submit(asked(f"waits-{name}", HOUR_MS))
    started(one, now_ms)
    (interval,) = forecast.intervals(one, now_ms).values()
    forecast.started(f"waits-{name}", now_ms + run_ms)
    return interval


@pytest.mark.slow
def test_intervals_get_wider_when_they_miss_and_count_what_they_held() -> None:
    forecast, now_ms = StartForecast(), 0
    widths = []
    for at in range(40):
        interval = starts_after(forecast, 99 * HOUR_MS, now_ms, str(at), User())
        widths.append(interval.to_ms - interval.from_ms)
        now_ms += 99 * HOUR_MS

    assert widths[-1] > 1.5 * widths[0]
    assert forecast.held(now_ms) == (0, 30 * 24 // 99 + 1)
    assert forecast.held(now_ms + 60 * 24 * HOUR_MS) == (0, 0)


def test_another_forecast_goes_on_with_what_one_has_learned() -> None:
    first, now_ms = StartForecast(), 40 * 99 * HOUR_MS
    for at in range(40):
        starts_after(first, 99 * HOUR_MS, at * 99 * HOUR_MS, str(at), User())
    second = StartForecast()

    second.recall(Learned.from_json(first.learned("fifo").to_json()))

    assert second.held(now_ms) == first.held(now_ms)
    assert starts_after(second, HOUR_MS, now_ms, "a", User()) == starts_after(
        first, HOUR_MS, now_ms, "a", User()
    )
    assert second.learned("fifo") == first.learned("fifo")
    assert second.learned("fifo").offset > StartForecast().learned("fifo").offset


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset": 9}, {"offset": "nan"}, {"offset": 10**400}, {"judged": -1}, {"judged": None},
        {"judged": float("inf")}, {"judged": 10**400}, {"days": [[1, 2]]}, {"days": 3},
        {"days": [[float("inf"), 1, 2]]},
        {"days": [[1, -5, 2]]}, {"days": [[1, 0, -5]]}, {"days": [[1, 3, 2]]},
    ],
)  # fmt: skip
def test_what_no_forecast_has_learned_is_refused(wrong: dict[str, object]) -> None:
    learned = json.loads(StartForecast().learned("fifo").to_json())

    with pytest.raises(SettingError, match=r"^expected an? "):
        Learned.from_json(json.dumps({**learned, **wrong}))


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.8, 1.0, 1.2])
def test_eight_of_ten_intervals_hold_whatever_the_spread_of_run_times_really_is(sigma: float) -> None:
    random = Random(7)
    forecast, now_ms, held = StartForecast(), 0, 0
    for at in range(400):
        run_ms = round(2 * HOUR_MS * random.lognormvariate(0, sigma))
        interval = starts_after(forecast, run_ms, now_ms, str(at), User())
        now_ms += run_ms
        held += interval.from_ms <= now_ms <= interval.to_ms

    assert 0.76 <= held / 400 <= 0.84


def test_no_start_is_known_to_the_second_from_two_like_jobs() -> None:
    knowledge = History()
    for at in range(2):
        knowledge.worked(asked(f"past{at}", HOUR_MS), HOUR_MS, alone=False)

    interval = starts_after(StartForecast(), HOUR_MS, 0, "first", knowledge)

    assert interval.from_ms < 0.7 * HOUR_MS
    assert interval.to_ms > 1.5 * HOUR_MS


def test_an_interval_is_what_a_job_was_told_when_it_first_waited() -> None:
    forecast = StartForecast()
    one = known(gpus(1), [asked("a", HOUR_MS), asked("b", HOUR_MS)])
    started(one)
    assert forecast.intervals(one, 0) == {"b": StartInterval(HOUR_MS, HOUR_MS)}
    assert forecast.intervals(one, HOUR_MS // 2) == {"b": StartInterval(HOUR_MS, HOUR_MS)}
    one.ended("a", RecordState.COMPLETED, HOUR_MS)
    assert started(one, HOUR_MS) == ["b"]
    forecast.started("b", HOUR_MS)
    assert forecast.held(HOUR_MS) == (1, 1)


def asking(forecast: StartForecast, jobs: list[Job], cluster: Cluster) -> Iterator[Event]:
    """The events of a simulation in which intervals are asked for whenever a job waits that has been submitted."""
    knowledge = Oracle(jobs)
    policy = make_policy("fifo+first-fit", Setting(knowledge=knowledge))
    run = Run(
        iter(jobs), cluster.emptied(), policy, knowledge, no_interference, (), Recovery(), ALL_ALIKE, None
    )
    for event in one_by_one(run.batches()):
        if event.kind is EventKind.SUBMIT and run.scheduler.waits(event.job.id):
            for other in run.new_events:  # what starts at this instant waits no more, and would be forgotten
                if other.kind is EventKind.START:
                    forecast.started(other.job.id, event.time_ms)
            forecast.intervals(run.scheduler, event.time_ms)
        elif event.kind is EventKind.START:
            forecast.started(event.job.id, event.time_ms)
        yield event


def test_a_simulation_that_knows_all_starts_each_job_when_it_was_told_and_as_without_forecasts() -> None:
    jobs = [replace(asked(f"j{at}", (1 + at % 3) * HOUR_MS), submit_ms=1000 * at) for at in range(12)]
    cluster, forecast = Cluster(gpus(2)), StartForecast()

    events = list(asking(forecast, jobs, cluster))

    assert events == list(simulate(jobs, cluster, "fifo+first-fit"))
    assert forecast.held(events[-1].time_ms) == (10, 10)


def test_a_start_at_the_instant_of_a_submission_counts() -> None:
    jobs = [replace(asked(f"j{at}", HOUR_MS), submit_ms=at * HOUR_MS // 2) for at in range(6)]
    forecast = StartForecast()

    events = list(asking(forecast, jobs, Cluster(gpus(1))))

    assert forecast.held(events[-1].time_ms) == (5, 5)


def test_of_jobs_with_a_limit_alone_each_part_of_it_is_as_likely() -> None:
    knowledge = History()
    policy = make_policy("fifo+first-fit", Setting(knowledge=knowledge))
    one = Scheduler(Cluster(gpus(10)), policy, knowledge)
    for at in range(10):
        one.submit(asked(f"runs-{at}", HOUR_MS))
    assert len(started(one)) == 10
    one.submit(asked("waits", HOUR_MS))

    interval = StartForecast().intervals(one, 0)["waits"]

    # The first of ten ends after a tenth of the limit of four hours or so, and in nine draws once much later.
    assert HOUR_MS // 2 < interval.to_ms < 2 * HOUR_MS
