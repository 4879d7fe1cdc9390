"""Running shares that grow and shrink: in the cluster, in what is expected, as events and in what is counted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.errors import DoesNotFit, NotAllowed, SchedulerError
from berth.history.store.events import write_events
from berth.history.store.record_files import records
from berth.interference import make_interference
from berth.model import Event, EventKind, GpuModel, GpuSlot, Job, Node, Placement, Resize, Share, WakeAt
from berth.policies import Decision
from berth.scheduler import Refused, Resized
from berth.statistics import event_columns
from berth.statistics.measures import gpu_allocation_pct, gpu_hours
from berth.statistics.run import timeline
from tests.scheduler.examples import Says, live, scheduler

CARD = GpuModel("card", mem_mib=10_000)
NODES = [Node("a", 2, CARD), Node("b", 2, CARD)]
SLOT = GpuSlot(0, 0)
HALF = Share(500, 4000)


def test_a_cluster_after_resizes_is_as_if_the_last_shares_had_been_placed_at_once() -> None:
    draw = random.Random(5)
    for _ in range(200):
        cluster, plain = Cluster(NODES), Cluster(NODES)
        shares: dict[str, Share] = {}
        slots: dict[str, GpuSlot] = {}
        for at in range(12):
            name = f"j{at % 6}"
            share = Share(draw.choice((200, 500, 1000)), draw.choice((0, 2000, 6000)))
            if name in shares:
                try:
                    cluster.resize(name, share, now_ms=at)
                except DoesNotFit:
                    continue
            else:
                slots[name] = GpuSlot(draw.randrange(2), draw.randrange(2))
                try:
                    cluster.place(Placement(Job(name, 0, 1, share=share), (slots[name],), share))
                except DoesNotFit:
                    continue
            shares[name] = share
        for name, share in shares.items():
            plain.place(Placement(Job(name, 0, 1, share=share), (slots[name],), share))
        for one, other in zip(cluster.free, plain.free, strict=True):
            assert np.array_equal(one, other)
        assert cluster.free_total_milli == plain.free_total_milli
        for name in shares:
            cluster.release(name)
        for one, other in zip(cluster.free, cluster.capacity, strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("share", "error", "why"),
    [
        (Share(600, 4000), DoesNotFit, "takes 100 milli more of GPU 0 of node 'a', which has 0 left"),
        (Share(500, 6001), DoesNotFit, "takes 2001 MiB more of GPU 0 of node 'a', which has 2000 left"),
        (
            Share(500, 10_001),
            DoesNotFit,
            "may use 10001 MiB of GPU 0 of node 'a', which has 10000 in all",
        ),
        (Share(0, 0), NotAllowed, "expected a Share of 1…1000 milli and 0 MiB or more"),
        (None, NotAllowed, "cannot have None of a GPU"),
    ],
)
def test_a_share_that_cannot_be_is_refused_and_nothing_changes(
    share: Share, error: type[Exception], why: str
) -> None:
    cluster = Cluster(NODES)
    for name in ("a", "b"):
        cluster.place(Placement(Job(name, 0, 1, share=HALF), (SLOT,), HALF))
    before = cluster.digest()
    with pytest.raises(error, match=why):
        cluster.resize("a", share, now_ms=0)
    assert cluster.digest() == before


def test_a_resize_lets_a_job_start_that_did_not_fit_and_one_that_cannot_be_is_said() -> None:
    one = scheduler(nodes=[Node("a", 1, CARD)])
    one.submit(live("a", share=Share(800, 0)))
    one.submit(live("b", share=Share(500, 0)))
    assert len(list(one.decide(0))) == 1
    assert list(one.decide(1)) == []
    with pytest.raises(SchedulerError, match="'b' cannot be resized: it is not running"):
        one.resize("b", Share(100, 0), 1)
    one.resize("a", Share(500, 0), 1)
    assert [outcome.job.id for outcome in one.decide(1)] == ["b"]  # type: ignore[union-attr]
    with pytest.raises(SchedulerError, match="which has 0 left"):
        one.resize("a", Share(501, 0), 2)
    assert one.cluster.running["a"].share == Share(500, 0)


def test_usage_counts_what_was_held_while_it_was_held() -> None:
    cluster = Cluster(NODES)
    cluster.usage()
    cluster.place(Placement(Job("a", 0, 1, user="u"), (SLOT,), Share()), now_ms=0)
    cluster.resize("a", Share(250, 0), now_ms=10)
    cluster.release("a", now_ms=30)
    assert cluster.usage().jobs == {"a": 1000 * 10 + 250 * 20}
    assert cluster.usage().users["u"].held_milli == 0


def test_a_best_effort_run_keeps_its_place_of_the_gpu() -> None:
    cluster = Cluster(NODES)
    cluster.place(Placement(Job("a", 0, 1), (SLOT,), Share(1000, 3000), shared=True, best_effort=True))
    cluster.resize("a", Share(1000, 9000), now_ms=0)
    assert cluster.free_on(SLOT) == Share(900, 10_000)
    assert cluster.running["a"].share == Share(1000, 9000)


def test_a_decision_to_resize_comes_back_as_what_became_of_it() -> None:
    job = live("a", share=HALF)
    one = scheduler(Says(Resize(job, Share(700, 5000)), Resize(live("x"), HALF)), nodes=NODES)
    one.place(Placement(job, (SLOT,), HALF), 0)
    resized, refused = one.decide(0)
    assert resized == Resized(one.cluster.running["a"], HALF)
    assert one.cluster.running["a"].share == Share(700, 5000)
    assert isinstance(refused, Refused)
    assert "job 'x' cannot be resized: it is not running" in refused.why


class Grows:
    """Starts each job with what it asks for, and gives it the whole GPU after 10 s."""

    resizes = True

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        for job in list(queue):
            yield Placement(job, (SLOT,), job.share)
            yield WakeAt(now_ms + 10_000)
        for run in list(cluster.running.values()):
            if now_ms == 10_000:
                yield Resize(run.job, Share(1000, 0))


def events() -> list[Event]:
    return list(simulate([Job("a", 0, 30_000, share=Share(200, 0))], Cluster([Node("n", 1)]), Grows()))


def test_a_resize_is_an_event_of_a_simulation_and_statistics_follow_it(tmp_path: Path) -> None:
    happened = events()
    assert [(event.time_ms, event.kind, event.share) for event in happened] == [
        (0, EventKind.SUBMIT, Share(200, 0)),
        (0, EventKind.START, Share(200, 0)),
        (10_000, EventKind.RESIZE, Share(1000, 0)),
        (30_000, EventKind.FINISH, Share(1000, 0)),
    ]
    columns, nodes = event_columns(happened), [Node("n", 1)]
    assert len(columns.attempts.job) == 1
    assert gpu_allocation_pct(columns, nodes) == pytest.approx(100 * (0.2 * 10 + 20) / 30)
    hours = gpu_hours(columns)
    assert (hours.held, hours.wasted) == (pytest.approx(22 / 3600), pytest.approx(0))
    assert timeline(columns, nodes, 3).allocated_milli_mean.tolist() == [pytest.approx(22_000 / 30)]
    (record,) = records(happened, nodes)
    assert (record.start_ms, record.end_ms, record.share) == (0, 30_000, Share(1000, 0))
    path = tmp_path / "events.parquet"
    write_events(happened, nodes, path)
    rows = duckdb.sql(f"SELECT kind, milli, node FROM '{path}' WHERE kind IN ('start', 'resize')").fetchall()
    assert rows == [("start", 200, "n"), ("resize", 1000, "n")]


def test_neighbours_are_slowed_by_what_a_share_is_now() -> None:
    model = make_interference("time-sliced")
    happened = list(simulate([Job("a", 0, 30_000, share=HALF)], Cluster(NODES), Grows(), interference=model))
    assert [event.kind for event in happened][2:] == [EventKind.RESIZE, EventKind.FINISH]


def test_a_job_that_runs_when_the_events_end_runs_though_its_last_event_is_a_resize() -> None:
    columns = event_columns(events()[:3])
    assert (columns.attempts.end_event.tolist(), columns.last_kind.tolist()) == ([-1], [2 - 1])
    assert columns.holdings.milli.tolist() == [200, 1000]
    assert columns.attempt_of.tolist() == [0, 0]


def test_limits_follow_a_resize() -> None:
    one = scheduler("limits?user_gpus=1+fifo+first-fit", nodes=NODES)
    for name in ("a", "b"):
        one.submit(live(name, user="u", share=Share(600, 0)))
    assert len(list(one.decide(0))) == 1
    one.resize("a", Share(400, 0), 1)
    assert [outcome.job.id for outcome in one.decide(1)] == ["b"]  # type: ignore[union-attr]
