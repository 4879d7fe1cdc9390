"""Advance reservations: nodes that only some users' jobs may start on for a while."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster
from berth.cluster.reservations import read_reservations
from berth.engine import simulate
from berth.errors import SettingError, TraceError
from berth.model import Event, GpuModel, Job, Node, Reservation
from tests.policies.test_orders import workloads

TWO = [Node("x", 2), Node("y", 2)]


def told(events: list[Event]) -> list[tuple[int, str, str, set[int]]]:
    return [
        (event.time_ms, event.kind.value, event.job.id, {node for node, _ in event.slots})
        for event in events
        if event.kind != "submit"
    ]


def test_reserved_nodes_are_drained_cleared_kept_and_given_back() -> None:
    jobs = [
        Job("a", 0, 100, user="u", gpus=2),
        Job("b", 0, 50, user="v", gpus=2),
        Job("c", 20, 30, user="v", gpus=2),
        Job("d", 30, 10, user="u", gpus=2),
    ]
    reserved = Reservation((1,), ("u",), 40, 80, drain_ms=15)
    assert told(list(simulate(jobs, Cluster(TWO), "first-fit", reservations=[reserved]))) == [
        (0, "start", "a", {0}),
        (0, "start", "b", {1}),
        (40, "evict", "b", {1}),
        (40, "start", "d", {1}),  # not held up by c, which stands before it
        (50, "finish", "d", {1}),
        (80, "start", "c", {1}),
        (100, "finish", "a", {0}),
        (100, "start", "b", {0}),
        (110, "finish", "c", {1}),
        (150, "finish", "b", {0}),
    ]


def test_users_with_a_reservation_pass_others_within_it_alone() -> None:
    """x is free for anybody and y is reserved for u: a large job that waits is passed on y, and not on x."""
    jobs = [
        Job("first", 0, 40, user="v", gpus=1),
        Job("waits", 1, 10, user="v", gpus=2),
        Job("p", 2, 10, user="u", gpus=2),
        Job("q", 3, 10, user="u", gpus=1),
        Job("r", 3, 5, user="u", gpus=1),
    ]
    nodes = [Node("x", 2), Node("y", 2)]
    reserved = Reservation((1,), ("u",), 0, 1_000)
    for policy in ("fifo+first-fit", "fifo+best-fit"):
        starts = [
            (at, name, where)
            for at, kind, name, where in told(
                list(simulate(jobs, Cluster(nodes), policy, reservations=[reserved]))
            )
            if kind == "start"
        ]
        assert starts == [
            (0, "first", {0}),
            (2, "p", {1}),
            (12, "q", {1}),  # a GPU of x is free all the while, and waits for the large job
            (12, "r", {1}),
            (40, "waits", {0}),
        ]


def test_users_of_a_reservation_do_not_pass_one_another_there() -> None:
    jobs = [
        Job("other", 0, 30, user="v", gpus=2),
        Job("waits", 0, 5, user="v", gpus=2),
        Job("a", 0, 20, user="u", gpus=1),
        Job("big", 1, 5, user="u", gpus=2),
        Job("small", 2, 5, user="u", gpus=1),
    ]
    events = told(
        list(simulate(jobs, Cluster(TWO), "fifo+best-fit", reservations=[Reservation((1,), ("u",), 0, 99)]))
    )
    assert [(at, name) for at, kind, name, _ in events if kind == "start"] == [
        (0, "other"),
        (0, "a"),
        (20, "big"),
        (25, "small"),
        (30, "waits"),
    ]


POLICIES = ["fifo+best-fit", "easy+sjf", "passing+fgd", "fair-share", "preempt"]


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=5)
@given(
    jobs=workloads(),
    users=st.sampled_from((("a",), ("b",), ("a", "b"), ("nobody",))),
    start_ms=st.integers(0, 60),
    long_ms=st.integers(1, 80),
    drain_ms=st.integers(0, 20),
    nodes=st.sampled_from(((0,), (1,), (0, 2))),
)
def test_nobody_else_starts_or_runs_on_reserved_nodes_and_all_jobs_end(
    name: str,
    jobs: list[Job],
    users: tuple[str, ...],
    start_ms: int,
    long_ms: int,
    drain_ms: int,
    nodes: tuple[int, ...],
) -> None:
    kept = Reservation(nodes, users, start_ms, start_ms + long_ms, min(drain_ms, start_ms))
    v100 = GpuModel("V100", mem_mib=16_000)
    cluster = Cluster([Node("x", 2, v100), Node("y", 4, v100), Node("z", 2, v100)])
    fitting = {job.id for job in jobs if cluster.fits_when_empty(job)}
    began: dict[str, int] = {}
    finished = set()
    for event in simulate(jobs, cluster, name, reservations=[kept]):
        on_kept = event.job.user not in users and any(node in nodes for node, _ in event.slots)
        if event.kind == "start":
            began[event.job.id] = event.time_ms
            assert not on_kept or not kept.start_ms - kept.drain_ms <= event.time_ms < kept.end_ms
        elif event.kind in ("finish", "fail", "evict") and on_kept:
            assert began[event.job.id] >= kept.end_ms or event.time_ms <= kept.start_ms
        if event.kind in ("finish", "fail"):
            finished.add(event.job.id)
    assert finished == fitting  # a job that needs reserved nodes waits for them, and is not rejected


def test_a_cluster_of_one_kept_node_never_says_that_others_jobs_cannot_fit() -> None:
    reserved = Reservation((0, 1), ("u",), 0, 50)
    events = simulate([Job("a", 10, 5, user="v", gpus=2)], Cluster(TWO), "easy", reservations=[reserved])
    assert told(list(events)) == [(50, "start", "a", {0}), (55, "finish", "a", {0})]


HEADER = "users,start_s,end_s,nodes,gpus,drain_s\n"


def test_a_file_names_nodes_or_how_many_gpus(tmp_path: Path) -> None:
    path = tmp_path / "kept.csv"
    path.write_text(HEADER + "u|v,10,20,y,,5\nw,12,30,,3,\nw,40,50,,2,\n")
    nodes = [Node("x", 2), Node("y", 2), Node("z", 8), Node("w", 4)]
    assert read_reservations(path, nodes) == (
        Reservation((1,), ("u", "v"), 10_000, 20_000, 5_000),
        Reservation((3,), ("w",), 12_000, 30_000),
        Reservation((0,), ("w",), 40_000, 50_000),
    )


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            "u,10,20,,5,",
            "line 2, column 'gpus': '5'; expected from 1 to 4 GPUs, as no more are free of reservations then",
        ),
        ("u,10,20,,0,", "'0'; expected from 1 to 4 GPUs"),
        ("u,10,20,q,,", "column 'nodes': 'q'; expected nodes of the cluster: x, y"),
        ("u,10,10,x,,", "column 'end_s': '10'; expected a time after start_s, 10"),
        ("u,10,20,x,,30", "column 'drain_s': '30'; expected at most start_s, 10"),
        ("u,10,20,x,2,", "column 'gpus': '2'; expected nodes or gpus, not both"),
        (",10,20,x,,", "column 'users': ''; expected at least one user"),
        ("u,soon,20,x,,", "column 'start_s': 'soon'; expected seconds, 0 or more"),
        ("u,10,20,x,,\nv,15,30,x,,", "line 3, column 'nodes': 'x'; expected a node that no row above has"),
        ("u,10,20,,3,\nv,15,30,,1,", "line 3, column 'gpus': '1'; expected from 1 to 0 GPUs"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, row: str, says: str) -> None:
    path = tmp_path / "kept.csv"
    path.write_text(HEADER + row + "\n")
    with pytest.raises(TraceError) as raised:
        read_reservations(path, TWO)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("reservations", "says"),
    [
        ([Reservation((2,), ("u",), 0, 9)], "names node 2; the cluster has nodes 0…1"),
        ([Reservation((0,), (), 0, 9)], "for no user, has 1 nodes; expected at least one user and one node"),
        ([Reservation((0,), ("u",), 9, 9)], "is from 9 to 9 ms"),
        ([Reservation((0,), ("u",), 5, 9, 6)], "drains its nodes 6 ms before 5 ms"),
        (
            [Reservation((0,), ("u",), 0, 9), Reservation((0, 1), ("v",), 10, 19, 2)],
            "reservation 2, for v, has node 'x' at the same time as reservation 1",
        ),
    ],
)
def test_reservations_beyond_the_cluster_are_refused(reservations: list[Reservation], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        simulate([], Cluster(TWO), "fifo", reservations=reservations)
