"""Limits of users and virtual clusters: they hold, and hold back nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.errors import PolicyError, SettingError
from berth.model import Event, EventKind, Job, Node, Outage, Placement
from berth.policies import make_policy
from berth.policies.schemes.limits import Limit, Limits, LimitSettings, read_limits
from tests.examples import examples
from tests.policies.schemes.limit_files import write_limits

NODES = [Node("a", 4), Node("b", 2)]
SIZES = ((1, 1), (1, 1), (2, 1), (4, 2), (0, 1))


@st.composite
def workloads(draw: st.DrawFn, spreading: bool = False) -> list[Job]:
    jobs, now_ms = [], 0
    for number in range(draw(st.integers(1, 25))):
        now_ms += draw(st.integers(0, 8))
        gpus, nodes = draw(st.sampled_from((*SIZES, (5, 0)) if spreading else SIZES))
        jobs.append(
            Job(
                f"j{number}",
                now_ms,
                draw(st.integers(1, 40)),
                user=draw(st.sampled_from("ab")),
                virtual_cluster=draw(st.sampled_from("xy")),
                gpus=gpus,
                nodes=nodes,
                time_limit_ms=draw(st.sampled_from((None, 60))),
                patience_ms=draw(st.sampled_from((None, None, 30))),
            )
        )
    return jobs


limits = st.lists(
    st.builds(
        Limit,
        st.sampled_from(("user", "virtual-cluster")),
        st.sampled_from(("", "a", "x")),
        submitted=st.sampled_from((None, None, 2, 5)),
        running=st.sampled_from((None, 1, 3)),
        gpus=st.sampled_from((None, 4, 5)),
        nodes=st.sampled_from((None, 2)),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda limit: (limit.scope, limit.name),
)


def plainly(given: list[Limit]) -> object:
    """First in, first out by first fit within limits, as one would write it down who need not be fast."""
    of = {(limit.scope, limit.name): limit for limit in given}

    def limits_of(job: Job) -> list[tuple[str, Limit]]:
        found = []
        for scope, name in (("user", job.user), ("virtual-cluster", job.virtual_cluster)):
            limit = of.get((scope, name)) or of.get((scope, ""))
            if limit:
                found.append((scope, limit))
        return found

    def whose(job: Job, scope: str) -> str:
        return job.user if scope == "user" else job.virtual_cluster

    def policy(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        place = make_policy("fifo+first-fit").place  # type: ignore[attr-defined]
        while True:
            running = cluster.running.values()
            waiting = list(queue)
            chosen = None
            for job in waiting:
                fine = True
                for scope, limit in limits_of(job):
                    mine = [run for run in running if whose(run.job, scope) == whose(job, scope)]
                    before = [other for other in waiting if whose(other, scope) == whose(job, scope)]
                    if limit.running is not None and len(mine) >= limit.running:
                        fine = False
                    held = sum(run.job.gpus for run in mine)
                    if limit.gpus is not None and job.gpus and held + job.gpus > limit.gpus:
                        fine = False
                    nodes = sum(len({part.node for part in run.parts}) for run in mine)
                    if limit.nodes is not None and nodes + job.nodes > limit.nodes:
                        fine = False
                    if limit.submitted is not None and before.index(job) >= limit.submitted - len(mine):
                        fine = False
                if not fine:
                    continue
                slots = place(job, cluster)
                if slots is not None:
                    chosen = Placement(job, slots, job.share)
                    break
                if job.patience_ms != 0:
                    return
            if chosen is None:
                return
            yield chosen

    return policy


def events(jobs: list[Job], policy: object) -> list[Event]:
    return list(simulate(jobs, Cluster(NODES), policy))  # type: ignore[arg-type]


@settings(max_examples=examples(60), deadline=None)
@given(jobs=workloads(), given_limits=limits)
def test_limits_do_what_their_plain_words_say(jobs: list[Job], given_limits: list[Limit]) -> None:
    if any(limit.submitted is not None for limit in given_limits):
        # Who is beyond that limit takes a later place, which the plain words do not tell: only that they hold.
        given_limits = [limit for limit in given_limits if limit.submitted is None] or [
            Limit("user", running=1)
        ]
    assert events(jobs, Limits(make_policy("fifo+first-fit"), given_limits)) == events(
        jobs, plainly(given_limits)
    )


@pytest.mark.parametrize("inner", ["fifo", "easy+sjf-requested+best-fit", "fair-share", "preempt+fifo"])
@settings(max_examples=examples(40), deadline=None)
@given(jobs=workloads(spreading=True), given_limits=limits)
def test_no_limit_is_ever_passed_whatever_decides_within(
    inner: str, jobs: list[Job], given_limits: list[Limit]
) -> None:
    of = {(limit.scope, limit.name): limit for limit in given_limits}
    held: dict[tuple[str, str], list[int]] = {}
    outages = [Outage(1, 15, 30)]
    policy = Limits(make_policy(inner), given_limits)
    for event in simulate(jobs, Cluster(NODES), policy, outages=outages):
        job = event.job
        sign = {EventKind.START: 1, EventKind.SUBMIT: 0, EventKind.REJECT: 0}.get(event.kind, -1)
        for group in (("user", job.user), ("virtual-cluster", job.virtual_cluster)):
            sums = held.setdefault(group, [0, 0, 0])
            for at, amount in enumerate((1, job.gpus, len({slot.node for slot in event.slots}))):
                sums[at] += sign * amount
            limit = of.get(group) or of.get((group[0], ""))
            if limit and sign > 0:
                most = (limit.running, limit.gpus if job.gpus else None, limit.nodes)
                assert all(
                    allowed is None or amount <= allowed for amount, allowed in zip(sums, most, strict=True)
                )


@pytest.mark.parametrize("inner", ["fifo+best-fit", "easy+sjf-requested", "fair-share", "genetic-paper"])
@settings(max_examples=examples(20), deadline=None)
@given(jobs=workloads())
def test_limits_that_nobody_reaches_change_nothing(inner: str, jobs: list[Job]) -> None:
    wide = [Limit("user", running=99, gpus=99, submitted=99), Limit("virtual-cluster", nodes=99)]
    assert events(jobs, Limits(make_policy(inner), wide)) == events(jobs, make_policy(inner))


def starts(jobs: list[Job], nodes: list[Node], name: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in simulate(jobs, Cluster(nodes), name):
        if event.kind is EventKind.START:
            found.setdefault(event.job.id, []).append(event.time_ms)
    return found


def test_a_reservation_heeds_those_whose_start_took_their_user_to_his_limit() -> None:
    jobs = [
        Job("a0", 0, 100, user="a"),
        Job("a1", 0, 100, user="a", patience_ms=50),  # is hidden when a0 starts
        Job("head", 1, 10, user="b", gpus=2),
        Job("long", 2, 500, user="c"),
        Job("short", 3, 90, user="c"),
    ]
    found = starts(jobs, [Node("n", 2)], "limits?user_running=1+easy+fifo+best-fit")
    assert found == {"a0": [0], "short": [3], "head": [100], "long": [110]}


def test_who_comes_to_be_shown_before_one_that_waits_for_room_is_looked_at() -> None:
    jobs = [Job("r", 0, 1_000_000, user="r")]
    jobs += [Job(f"u{n}", 10, 1000, user="u1", gpus=2, patience_ms=0) for n in range(11)]
    jobs += [
        Job("b", 10, 1000, user="u1"),
        Job("a", 10, 1000, user="u2", gpus=2),
        Job("c", 20, 1000, user="u3"),
    ]
    found = starts(jobs, [Node("n", 2)], "limits?user_running=1+fifo+first-fit")
    assert found["b"] == [10]  # when those without patience have left


@pytest.mark.parametrize("inner", ["genetic", "genetic-paper", "genetic-paper?round_ms=0"])
def test_a_limit_that_is_reached_does_not_cost_the_rest_of_a_batch(inner: str) -> None:
    jobs = [Job(f"{user}{n}", 0, 50_000, user=user) for user in "abc" for n in range(2)]
    found = starts(jobs, [Node("n", 8)], f"limits?user_running=1+{inner}")
    assert sorted(found.values()) == [[0]] * 3 + [[50_000]] * 3
    assert sorted(job[0] for job, at in found.items() if at == [0]) == ["a", "b", "c"]


def test_who_has_no_limit_and_is_evicted_starts_again(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    write_limits(path, Limit("user", "somebody", running=1), policy="preempt+fifo")
    jobs = [Job("low", 0, 100, user="l"), Job("high", 10, 100, user="h", priority=1)]
    found = starts(jobs, [Node("n", 1)], f"limits?file={path}")
    assert found == {"low": [0, 110], "high": [10]}


def test_the_nodes_of_a_job_that_spreads_count_before_it_starts() -> None:
    jobs = [Job("wide", 0, 100, user="a", gpus=3, nodes=0), Job("next", 1, 100, user="b")]
    found = starts(jobs, [Node("x", 2), Node("y", 2)], "limits?user_nodes=1+fifo+first-fit")
    assert found == {"next": [1]}


def test_a_job_held_back_holds_up_nobody_and_keeps_its_place() -> None:
    jobs = [Job(f"a{n}", n, 100, user="a") for n in range(4)] + [Job("b", 5, 100, user="b")]
    found = starts(jobs, [Node("n", 3)], "limits?user_gpus=2+fifo+first-fit")
    assert found == {"a0": [0], "a1": [1], "b": [5], "a2": [100], "a3": [101]}


def test_a_job_beyond_the_limit_of_submitted_jobs_takes_its_place_late() -> None:
    jobs = [Job(f"a{n}", n, 100, user="a") for n in range(3)] + [Job("b", 5, 100, user="b")]
    for name, order in (("limits?user_submitted=2+fifo", "a0 a1 b a2"), ("fifo", "a0 a1 a2 b")):
        found = [e.job.id for e in simulate(jobs, Cluster([Node("n", 1)]), name) if e.kind is EventKind.START]
        assert found == order.split()


def test_limits_are_read_from_a_file_by_the_name_of_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    limits = Limit("user", gpus=4), Limit("virtual-cluster", "x", running=2)
    write_limits(path, *limits, policy="easy+fifo")
    assert read_limits(path) == LimitSettings(limits, "easy+fifo")
    policy = make_policy(f"limits?file={path}")
    assert isinstance(policy, Limits)
    assert tuple(policy.limits.values()) == limits
    assert type(policy.inner).__name__ == "Easy"


def test_limits_in_the_name_come_to_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    write_limits(path, Limit("user", gpus=4, running=9), Limit("user", "ann", gpus=8))
    policy = make_policy(f"limits?file={path}&user_running=2&vc_gpus=16+fifo")
    assert isinstance(policy, Limits)
    assert set(policy.limits.values()) == {
        Limit("user", gpus=4, running=2),
        Limit("user", "ann", gpus=8),
        Limit("virtual-cluster", gpus=16),
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ('{"format": "other"}', "holds no limits"),
        ('{"limits": [{"gpus": 1}]}', "expected an object with 'scope'"),
        ('{"limits": [{"scope": "user", "gpus": -1}]}', "limit of gpus is -1"),
        ('{"limits": [{"scope": "team"}]}', "no scope 'team'"),
    ],
)
def test_a_file_that_holds_no_limits_is_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "limits.json"
    if content.startswith('{"limits'):
        content = json.dumps({"format": "berth-limits", "version": 1, **json.loads(content)})
    path.write_text(content)
    with pytest.raises(SettingError, match=words):
        make_policy(f"limits?file={path}")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("limits?user_beds=3", SettingError),
        ("limits?team_gpus=3", SettingError),
        ("limits?user_gpus=few", SettingError),
        ("limits+limits+fifo", PolicyError),
        ("limits+fofi", PolicyError),
    ],
)
def test_names_that_are_none_are_refused(name: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        make_policy(name)
