"""Elastic jobs: on how many GPUs they start, how fast they are there, and what resizing keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster
from berth.cluster.outages import Recovery
from berth.engine import simulate
from berth.errors import SimulationError, TraceError
from berth.model import Event, Job, Node, Outage, sized
from berth.traces import read
from berth.traces.readers.native import write_csv
from tests.examples import examples

SPEEDS = ((1, 400), (2, 600), (4, 1000))


def elastic(name: str, submit_ms: int, work_ms: int, gpus: int = 4) -> Job:
    return Job(name, submit_ms, work_ms, gpus=gpus, elastic=SPEEDS, keeps_work=True, cpu_milli=4000)


def told(events: list[Event]) -> list[tuple[int, str, str, int]]:
    return [
        (event.time_ms, event.kind.value, event.job.id, len(event.slots))
        for event in events
        if event.kind != "submit"
    ]


def test_a_job_shrinks_for_one_that_waits_and_grows_when_it_ends() -> None:
    jobs = [elastic("a", 0, 10_000), elastic("b", 1_500, 1_200)]
    events = list(simulate(jobs, Cluster([Node("n", gpus=4)]), "elastic?round_ms=1000"))
    assert told(events) == [
        (0, "start", "a", 4),
        (2_000, "evict", "a", 4),  # 2,000 of its 10,000 ms are done
        (2_000, "start", "a", 2),
        (2_000, "start", "b", 2),
        (4_000, "finish", "b", 2),  # 1,200 ms of work at 600 per mille
        (4_000, "evict", "a", 2),  # 3,200 are done
        (4_000, "start", "a", 4),
        (10_801, "finish", "a", 4),  # rounded up at each change
    ]


def test_gpus_of_a_lost_node_are_given_to_nobody() -> None:
    cluster = Cluster([Node("a", gpus=4), Node("b", gpus=4)])
    events = simulate(
        [elastic("p", 0, 600), elastic("q", 0, 600)], cluster, "elastic", outages=[Outage(1, 0, None)]
    )
    assert told(list(events)) == [
        (0, "start", "p", 2),
        (0, "start", "q", 2),
        (1_000, "finish", "p", 2),
        (1_000, "finish", "q", 2),
    ]


def test_a_job_is_not_restarted_for_a_size_that_no_node_has() -> None:
    job = Job("a", 0, 1_000, gpus=4, elastic=((1, 400), (4, 1000)), keeps_work=True)
    cluster = Cluster([Node("x", gpus=2), Node("y", gpus=2)])
    assert told(list(simulate([job], cluster, "elastic?round_ms=1000"))) == [
        (0, "start", "a", 1),
        (2_500, "finish", "a", 1),
    ]


def test_a_job_is_not_restarted_for_a_size_that_fits_no_fragment() -> None:
    """Two GPUs are free on the other node, as many as it lacks."""
    cluster = Cluster([Node("x", gpus=4), Node("y", gpus=4)])
    fixed = [Job("p", 0, 9_000, gpus=2), Job("q", 0, 9_000, gpus=4), Job("r", 0, 1_000, gpus=2)]
    jobs = [*fixed, elastic("a", 1, 3_000), Job("s", 2, 9_000, gpus=2)]
    where = told(list(simulate(jobs, cluster, "elastic?round_ms=500")))
    assert [event for event in where if event[2] == "a"] == [
        (1_000, "start", "a", 2),
        (6_000, "finish", "a", 2),
    ]


def test_a_job_is_restarted_only_if_that_saves_more_than_it_takes() -> None:
    jobs = [Job("b", 0, 1_500, gpus=2), elastic("a", 0, 3_000)]
    cluster = Cluster([Node("n", gpus=4)])

    def life(restart_ms: int) -> list[tuple[int, str, str, int]]:
        recovery = Recovery(restart_ms=restart_ms)
        events = simulate(jobs, cluster, "elastic?round_ms=1000", recovery=recovery)
        return [event for event in told(list(events)) if event[2] == "a"]

    stays = [(0, "start", "a", 2), (5_000, "finish", "a", 2)]
    grows = [(0, "start", "a", 2), (2_000, "evict", "a", 2), (2_000, "start", "a", 4)]
    assert life(1_300) == stays  # on 4 GPUs from 2,000 on it would end 1,200 ms earlier
    assert life(1_100) == [*grows, (4_900, "finish", "a", 4)]


def test_a_job_does_not_shrink_for_one_that_could_not_start_all_the_same() -> None:
    """The one that waits needs three GPUs of one node, and would get one of each."""
    speeds = ((1, 500), (2, 1000))
    bends = [Job(f"e{at}", 0, 5_000, gpus=2, elastic=speeds, keeps_work=True) for at in range(3)]
    cluster = Cluster([Node(name, gpus=2) for name in "xyz"] + [Node("w", gpus=3)])
    jobs = [Job("fixed", 0, 5_000, gpus=3), *bends, Job("waits", 10, 100, gpus=3)]
    events = told(list(simulate(jobs, cluster, "elastic?round_ms=1000")))
    assert not [event for event in events if event[1] == "evict"]
    assert (5_000, "start", "waits", 3) in events


def test_other_policies_start_it_on_what_it_asks_for_or_on_what_can_be() -> None:
    events = told(list(simulate([elastic("a", 0, 600)], Cluster([Node("n", gpus=3)]), "fifo")))
    assert events == [(0, "start", "a", 2), (1_000, "finish", "a", 2)]


def test_a_job_whose_least_does_not_fit_is_rejected() -> None:
    job = Job("a", 0, 600, gpus=4, elastic=((2, 600), (4, 1000)))
    _, event = simulate([job], Cluster([Node("n", gpus=1)]), "elastic")
    assert (event.kind, event.reason) == ("reject", "never-fits")


@settings(max_examples=examples(25))
@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 4_000), st.integers(1, 5_000), st.booleans(), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    restart_ms=st.sampled_from((0, 50)),
)
def test_every_job_does_its_work_on_sizes_that_it_can_run_on(
    jobs: list[tuple[int, int, bool, bool]], restart_ms: int
) -> None:
    speeds = ((1, 500), (2, 1000), (4, 1500))
    made = [
        Job(f"j{at}", submit_ms, work_ms, gpus=2, elastic=speeds if bends else (), keeps_work=keeps)
        for at, (submit_ms, work_ms, bends, keeps) in enumerate(sorted(jobs))
    ]
    done: dict[str, int] = {}
    began: dict[str, tuple[int, int]] = {}
    finished = []
    cluster = Cluster([Node("a", gpus=4), Node("b", gpus=2)])
    held = 0
    for event in simulate(
        made, cluster, "elastic?round_ms=700&gain=1", recovery=Recovery(restart_ms=restart_ms)
    ):
        job = event.job
        if event.kind == "start":
            speed = dict(job.elastic).get(len(event.slots), 1000)
            assert len(event.slots) in (dict(job.elastic) or {2: 0})
            began[job.id] = event.time_ms, speed
            held += len(event.slots)
        elif event.slots:
            start_ms, speed = began[job.id]
            done[job.id] = done.get(job.id, 0) + (event.time_ms - start_ms) * speed
            held -= len(event.slots)
            if event.kind == "finish":
                finished.append(job.id)
            else:
                assert event.kind == "evict"
                assert job.elastic
                assert job.keeps_work
        assert 0 <= held <= 6
    assert sorted(finished) == sorted(job.id for job in made)
    for job in made:
        assert done[job.id] >= (job.work_ms or 0) * 1000
        if not restart_ms:  # no more than what rounding to a millisecond adds at each change
            assert done[job.id] <= (job.work_ms or 0) * 1000 + 40_000


def test_the_column_is_read_as_it_is_written(tmp_path: Path) -> None:
    jobs = [elastic("a", 0, 10), Job("b", 1, 5)]
    path = tmp_path / "jobs.csv"
    write_csv(jobs, path)
    assert "1:400|2:600|4:1000" in path.read_text()
    assert list(read(path)) == jobs


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("4:1000|1:400", "both ascending, as in 1:400|2:1000"),
        ("1:400|4", "both ascending"),
        ("0:400|4:1000", "both ascending"),
        ("1:400|2:1000", "the speed 1000 on 4 GPUs, which the job asks for"),
    ],
)
def test_a_bad_column_is_refused_with_its_line(tmp_path: Path, value: str, says: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"id,submit_ms,work_ms,gpus,elastic\na,0,10,4,{value}\n")
    with pytest.raises(TraceError) as raised:
        list(read(path))
    assert says in str(raised.value)
    assert "line 2, column 'elastic'" in str(raised.value)


def test_a_job_of_a_program_with_sizes_that_make_no_sense_is_refused() -> None:
    job = Job("a", 0, 600, gpus=3, elastic=SPEEDS)
    with pytest.raises(SimulationError, match="expected ascending numbers of GPUs"):
        list(simulate([job], Cluster([Node("n", gpus=4)]), "fifo"))
    with pytest.raises(ValueError, match="cannot run on 3 GPUs; it can on"):
        sized(elastic("a", 0, 1), 3)
    assert sized(elastic("a", 0, 1), 2).cpu_milli == 2000
