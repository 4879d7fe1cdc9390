"""The smallest cluster that keeps the wait, held against every size that there is."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.cluster import Cluster
from berth.cluster.outages import Recovery
from berth.engine import simulate
from berth.errors import SettingError
from berth.experiments.compare.conditions import conditions_of
from berth.experiments.recorded_run import POLICIES
from berth.experiments.returnable import size_sentences
from berth.experiments.size import Sizes, keep_of, smallest_sizes
from berth.experiments.size.clusters import resized
from berth.experiments.size.page import curve_of, page_of
from berth.experiments.size.scan import MOST_MORE_PCT
from berth.experiments.size.served import measure_named
from berth.gpu_models import GPU_MODELS
from berth.history.store.folder import open_history
from berth.model import Event, EventKind, Job, Node, Outage, Reservation
from berth.plots import policy_styles
from berth.traces import write, write_nodes
from tests.every_policy import some
from tests.experiments.test_believable import ORIGIN_MS, history_of

HOUR_MS = 3_600_000
A100, T4 = GPU_MODELS["A100-80"], GPU_MODELS["T4"]


def machine(count: int, gpus: int = 2) -> list[Node]:
    return [Node(f"n{at}", gpus, A100) for at in range(count)]


def workload(seed: int, load: float = 0.7, count: int = 80, gpus: int = 12) -> list[Job]:
    draw = random.Random(seed)
    works = [max(1000, round(draw.lognormvariate(0, 1.2) * HOUR_MS)) for _ in range(count)]
    wide = [draw.choice((1, 1, 1, 2)) for _ in range(count)]
    span_ms = sum(work * many for work, many in zip(works, wide, strict=True)) / (load * gpus)
    submits = sorted(round(draw.random() * span_ms) for _ in range(count))
    return [
        Job(f"j{at}", submits[at], works[at], gpus=wide[at], user=f"u{at % 3}", virtual_cluster="ab"[at % 2])
        for at in range(count)
    ]


def waits_s(events: list[Event]) -> list[float]:
    submits = {event.job.id: event.time_ms for event in events if event.kind is EventKind.SUBMIT}
    starts = {event.job.id: event.time_ms for event in events if event.kind is EventKind.START}
    return [(starts[name] - at_ms) / 1000 if name in starts else math.inf for name, at_ms in submits.items()]


def every_size(jobs: list[Job], nodes: list[Node], policies: list[str], share: float) -> dict[str, int]:
    """By policy the size from which on every one keeps today's percentile, each one simulated."""

    def number(policy: str, count: int) -> float:
        found = sorted(waits_s(list(simulate(jobs, Cluster(resized(nodes, A100.name, count).nodes), policy))))
        return float(np.quantile(found, share)) if math.isfinite(found[-1]) else math.inf

    target = number(policies[0], len(nodes))
    smallest = {}
    for policy in policies:
        failing = [count for count in range(1, len(nodes) + 1) if number(policy, count) > target]
        smallest[policy] = max(failing, default=0) + 1
    return smallest


@pytest.mark.parametrize("seed", some(range(20)))
def test_the_answer_is_that_of_simulating_every_size(seed: int) -> None:
    jobs, nodes = workload(seed, 0.5 + seed / 40), machine(6)
    policies = ["fifo+first-fit", "easy+fifo+best-fit", "sjf+best-fit"]
    found = smallest_sizes(jobs, nodes, policies, keep_of("p90-wait"))
    wanted = every_size(jobs, nodes, policies, 0.9)
    told = {answer.policy: answer.nodes for answer in found.answers}
    assert {name: count for name, count in told.items() if count is not None and count <= 6} == {
        name: count for name, count in wanted.items() if count <= 6
    }


def test_sizes_in_steps_are_all_looked_at_where_the_answer_lies() -> None:
    jobs, nodes = workload(3, gpus=40, count=150), machine(20)
    by_one = smallest_sizes(jobs, nodes, ["fifo"], keep_of("mean-wait=2h"))
    by_five = smallest_sizes(jobs, nodes, ["fifo"], keep_of("mean-wait=2h"), step=5)
    assert by_five.answers[0].nodes == by_one.answers[0].nodes
    assert len(by_five.curves[0].points) < len(by_one.curves[0].points)


def test_a_size_that_leaves_jobs_unserved_fails_and_names_them() -> None:
    """Without large jobs one node would do; the large one fits on two alone."""
    jobs = [Job(f"j{at}", at * HOUR_MS, 1000) for at in range(30)]
    jobs.append(Job("large", 40 * HOUR_MS, 1000, gpus=4, nodes=2))
    found = smallest_sizes(jobs, machine(4), ["fifo"], keep_of("p90-wait"))
    assert found.answers[0].nodes == 2
    assert any(
        s == "On 1 node fifo does not finish 1 job, such as 'large'; today 0." for s in found.sentences
    )


def uncautioned(found: Sizes) -> tuple[str, ...]:
    """Its sentences but the caution, which most workloads here are small enough for."""
    return tuple(text for text in found.sentences if text != found.caution)


def test_a_size_that_leaves_jobs_unserved_is_not_said_to_make_them_wait() -> None:
    jobs = [Job(f"j{at}", at * HOUR_MS, 1000) for at in range(30)]
    jobs.append(Job("large", 40 * HOUR_MS, 1000, gpus=4, nodes=2))
    found = smallest_sizes(jobs, [Node("a", 2), Node("b", 2)], ["fifo"], keep_of("p90-wait"))
    assert uncautioned(found) == (
        "No node can be returned: with fifo on 1 node 1 job does not finish, today 0.",
        "On 1 node fifo does not finish 1 job, such as 'large'; today 0.",
    )


def test_of_one_node_none_can_be_returned() -> None:
    jobs = [Job(f"j{at}", at * HOUR_MS, 1000) for at in range(3)]
    assert uncautioned(smallest_sizes(jobs, [Node("a", 1)], ["fifo"], keep_of("p90-wait"))) == (
        "No node can be returned: today's is the only one.",
    )
    busy = [Job(f"j{at}", 0, HOUR_MS) for at in range(2)]
    assert uncautioned(smallest_sizes(busy, machine(2, gpus=1), ["fifo"], keep_of("mean-wait"))) == (
        "No node can be returned: with fifo on 1 node the mean wait is 30.0 min, above 0 s.",
    )


def test_users_of_few_jobs_are_kept_together() -> None:
    """All but one user have few jobs, and they alone would wait on a smaller cluster."""
    one = [Job(f"one-{at}", at * HOUR_MS, 1000, user="one") for at in range(200)]
    few = [
        Job(f"few-{at}", 300 * HOUR_MS + at // 2 * HOUR_MS, 1_800_000, user=f"u{at // 4}") for at in range(20)
    ]
    nodes = machine(2, gpus=1)
    all_jobs = smallest_sizes([*one, *few], nodes, ["fifo"], keep_of("p90-wait"))
    each = smallest_sizes([*one, *few], nodes, ["fifo"], keep_of("p90-wait", "user"))
    assert (all_jobs.answers[0].nodes, each.answers[0].nodes) == (1, 2)
    assert uncautioned(each) == (
        "No node can be returned: with fifo on 1 node the 90th percentile of waits of the users with few jobs is"
        " 30.0 min, above 0 s.",
        "Users with fewer than 20 jobs each count as one.",
    )
    less = smallest_sizes([*one, *few[:4]], nodes, ["fifo"], keep_of("p90-wait=2h", "user"))
    assert uncautioned(less) == (
        "With fifo, 1 of 2 nodes keeps every user's 90th percentile of waits, and that of all jobs, at 2.0 h: 1 GPU"
        " could be returned, 168 GPU-hours a week.",
        "Users with fewer than 20 jobs each count only among all jobs.",
    )


def test_the_answer_by_user_names_their_numbers() -> None:
    """On each cluster nine of ten jobs start at once, but a user that submits four jobs together waits."""
    calm = [Job(f"calm-{at}", at * HOUR_MS, 1000, user="calm") for at in range(400)]
    busy = [Job(f"busy-{at}", (500 + at // 4 * 9) * HOUR_MS, HOUR_MS, user="busy") for at in range(40)]
    found = [
        smallest_sizes([*calm, *busy], machine(count, gpus=1), ["fifo"], keep_of("p90-wait", "user"))
        for count in (3, 2)
    ]
    assert [each.sentences[0] for each in found] == [
        "With fifo, 2 of 3 nodes keep every user's 90th percentile of waits at today's (0 s to 60.0 min), and that of"
        " all jobs at 0 s: 1 GPU could be returned, 168 GPU-hours a week.",
        "No node can be returned: with fifo on 1 node the 90th percentile of waits of user 'busy' is 3.0 h, above"
        " 60.0 min.",
    ]


def test_the_answer_by_user_names_the_one_whose_waits_rise_most_and_by_how_much() -> None:
    """Not the one whose waits are the longest; and a rise that rounding hides is told."""
    calm = [Job(f"calm-{at}", at * HOUR_MS, 1000, user="calm") for at in range(400)]
    slow = [Job(f"slow-{at}", 500 * HOUR_MS, HOUR_MS, user="slow") for at in range(20)]
    quick = [
        Job(f"quick-{at}", (600 + at // 2 * 9) * HOUR_MS, HOUR_MS + 1000, user="quick") for at in range(20)
    ]
    nodes = machine(2, gpus=1)
    found = smallest_sizes([*calm, *slow, *quick], nodes, ["fifo"], keep_of("p90-wait", "user"))
    assert found.sentences[0] == (
        "No node can be returned: with fifo on 1 node the 90th percentile of waits of user 'quick' is 60.0 min, above"
        " 0 s."
    )
    found = smallest_sizes([*calm, *quick], nodes, ["fifo"], keep_of("p90-wait=1h", "user"))
    assert found.sentences[0] == (
        "No node can be returned: with fifo on 1 node the 90th percentile of waits of user 'quick' is a little above"
        " 60.0 min."
    )


def test_all_jobs_keep_the_number_too_if_it_is_kept_by_user() -> None:
    """Four jobs of four users are too few for a number of their own."""
    one = [Job(f"one-{at}", at * HOUR_MS, 1000, user="one") for at in range(196)]
    few = [Job(f"few-{at}", 300 * HOUR_MS + at // 2 * HOUR_MS, HOUR_MS, user=f"u{at}") for at in range(4)]
    found = smallest_sizes([*one, *few], machine(2, gpus=1), ["fifo"], keep_of("mean-wait", "user"))
    assert found.answers[0].nodes == 2


def test_more_nodes_are_looked_at_where_todays_do_not_keep_the_number() -> None:
    jobs = [Job(f"j{at}", 0, HOUR_MS) for at in range(6)]
    found = smallest_sizes(jobs, machine(2, gpus=1), ["fifo"], keep_of("mean-wait=30m"))
    assert (found.answers[0].nodes, found.answers[0].gpus_returned) == (3, -1)
    assert "fifo needs 3 nodes; there are 2" in found.sentences[0]
    jobs_of_one = [Job(f"j{at}", at // 4 * 9 * HOUR_MS, HOUR_MS, user="one") for at in range(40)]
    by_user = smallest_sizes(jobs_of_one, machine(2, gpus=1), ["fifo"], keep_of("mean-wait=15m", "user"))
    assert by_user.sentences[0] == (
        "To keep every user's mean wait, and that of all jobs, at 15.0 min, fifo needs 3 nodes; there are 2."
    )
    never = smallest_sizes(jobs, machine(2, gpus=1), ["fifo"], keep_of("mean-wait=1s"))
    assert (never.answers[0].nodes, never.sentences[0]) == (
        None, "No size up to 4 nodes keeps the mean wait at 1 s.",
    )  # fmt: skip


def test_each_partition_keeps_its_own_number_and_its_nodes_in_proportion() -> None:
    nodes = [replace(node, labels=("a",) if at < 4 else ("b",)) for at, node in enumerate(machine(6))]
    assert [[node.labels[0] for node in resized(nodes, A100.name, count).nodes] for count in (5, 4, 3)] == [
        list("aaabb"), list("aaab"), list("aab"),
    ]  # fmt: skip
    jobs = [replace(job, labels=(job.virtual_cluster,)) for job in workload(5)]
    all_jobs = smallest_sizes(jobs, nodes, ["fifo"], keep_of("p90-wait=5h")).answers[0].nodes
    each = smallest_sizes(jobs, nodes, ["fifo"], keep_of("p90-wait=5h", "partition")).answers[0].nodes
    assert all_jobs is not None
    assert each is None or each >= all_jobs


def test_gpu_models_are_sized_apart_with_their_prices(tmp_path: Path) -> None:
    nodes = [*machine(3), *(Node(f"t{at}", 4, T4) for at in range(3))]
    (tmp_path / "p.toml").write_text('currency = "EUR"\n[gpu_hour]\nT4 = 0.5\n"A100-80" = 2\n')
    under = conditions_of({"prices": tmp_path / "p.toml"}, nodes)
    jobs = [Job(f"j{at}", at * HOUR_MS, 1000) for at in range(50)]
    found = smallest_sizes(jobs, nodes, ["fifo"], keep_of("p90-wait"), conditions=under)
    assert [(each.model, each.gpus_returned, each.cost_a_week) for each in found.answers] == [
        ("A100-80", 4, 4 * 168 * 2.0), ("T4", 8, 8 * 168 * 0.5),
    ]  # fmt: skip


def test_outages_and_reservations_of_nodes_that_are_gone_are_left_out() -> None:
    nodes = machine(3)
    smaller = resized(nodes, A100.name, 2)
    under = smaller.under(
        conditions_of(
            {
                "outages": [Outage(1, 5, 6), Outage(2, 7, 8)],
                "reservations": [Reservation((1, 2), ("u",), 3, 4), Reservation((2,), ("u",), 5, 6)],
                "recovery": Recovery(1000),
            },
            nodes,
        )
    )
    assert under.outages == (Outage(1, 5, 6),)
    assert under.reservations == (Reservation((1,), ("u",), 3, 4),)
    more = resized(nodes, A100.name, 5)
    assert (len({node.name for node in more.nodes}), more.gpus) == (5, 10)


def test_an_interval_over_weeks_holds_the_answer() -> None:
    jobs = [
        replace(job, id=f"{week}-{job.id}", submit_ms=job.submit_ms + week * 7 * 24 * HOUR_MS)
        for week in range(4)
        for job in workload(week, load=0.9)
    ]
    found = smallest_sizes(jobs, machine(6), ["fifo"], keep_of("p90-wait=2h"))
    (answer,) = found.answers
    assert answer.nodes is not None
    assert answer.low is not None
    assert answer.low <= answer.nodes
    assert answer.high is None or answer.high >= answer.nodes
    smallest = found.curves[0].points[0].cluster.count
    assert answer.low_is_open == (smallest > 1 and answer.low == smallest)
    assert answer.low_is_open == any("or fewer" in sentence for sentence in found.sentences)


@pytest.mark.slow
def test_the_interval_does_not_depend_on_the_number_of_processes() -> None:
    draw, week_ms = random.Random(3), 7 * 24 * HOUR_MS
    made = sorted(
        (week * week_ms + draw.randrange(week_ms), HOUR_MS * (1 + draw.randrange(8 + 4 * week)))
        for week in range(4)
        for _ in range(300)
    )
    jobs = [Job(f"{at}", submit_ms, work_ms, gpus=1) for at, (submit_ms, work_ms) in enumerate(made)]
    nodes = [Node(f"n{at}", 1, None, 64_000, 64_000) for at in range(24)]
    found = [
        smallest_sizes(jobs, nodes, ["fifo+first-fit"], keep_of("p90-wait=2h"), processes=processes)
        for processes in (1, 4)
    ]
    assert found[0].answers == found[1].answers


def test_what_is_to_be_kept_is_drawn_again_with_the_weeks() -> None:
    """A policy that is better than the first in every week keeps its number on today's nodes, whatever the weeks."""
    jobs = [
        replace(job, id=f"{week}-{job.id}", submit_ms=job.submit_ms + week * 7 * 24 * HOUR_MS)
        for week, load in enumerate((0.3, 0.5, 0.9, 2.0))
        for job in workload(week, load)
    ]
    _, better = smallest_sizes(jobs, machine(6), ["fifo", "sjf"], keep_of("mean-wait")).answers
    assert better.high is not None
    assert better.high <= 6


def test_a_number_of_values_that_count_more_than_once_is_that_of_the_values_repeated() -> None:
    draw = np.random.default_rng(0)
    for name in ("p50-wait", "p90-wait", "mean-wait"):
        measure = measure_named(name)
        for count in range(1, 30):
            values, weights = np.sort(draw.uniform(0, 9, count)), draw.integers(0, 4, count)
            weights[0] = 1
            repeated = np.repeat(values, weights)
            by_numpy = (
                repeated.mean() if measure.quantile is None else np.quantile(repeated, measure.quantile)
            )
            assert measure.weighted(values, weights) == pytest.approx(by_numpy)
            assert measure.of(repeated) == pytest.approx(by_numpy)


@pytest.mark.parametrize("seed", range(4))
def test_todays_cluster_keeps_the_number_with_as_many_more_jobs_and_not_with_one_per_cent_more(
    seed: int,
) -> None:
    jobs, nodes, policies = workload(seed, 0.5 + seed / 10), machine(6), ["fifo", "easy+fifo+best-fit"]
    target_s = 1.2 * max(mean_wait_s(jobs, nodes, policy, 0) for policy in policies) + 600
    keep = keep_of(f"mean-wait={target_s}")
    found = smallest_sizes(jobs, nodes, policies, keep, more_jobs=True).more_jobs_pct
    assert found is not None
    assert list(found) == policies
    for policy, pct in found.items():
        assert mean_wait_s(jobs, nodes, policy, pct) <= target_s
        assert pct == MOST_MORE_PCT or mean_wait_s(jobs, nodes, policy, pct + 1) > target_s


def mean_wait_s(jobs: list[Job], nodes: list[Node], policy: str, more_pct: int) -> float:
    factor = 1.0 * (1 + more_pct / 100)
    sooner = [replace(job, submit_ms=int(job.submit_ms / factor)) for job in jobs]
    return float(np.mean(waits_s(list(simulate(sooner, Cluster(nodes), policy)))))


def test_more_jobs_are_said_only_if_asked_for() -> None:
    jobs, nodes = workload(2, 0.5), machine(6)
    asked = smallest_sizes(jobs, nodes, ["fifo"], keep_of("mean-wait=5h"), more_jobs=True)
    assert asked.more_jobs_pct is not None
    pct = asked.more_jobs_pct["fifo"]
    most = "at least " if pct == MOST_MORE_PCT else ""
    beginning = f"With fifo, today's cluster takes {most}{pct} % more jobs"
    assert any(sentence.startswith(beginning) for sentence in asked.sentences)
    silent = smallest_sizes(jobs, nodes, ["fifo"], keep_of("mean-wait=5h"))
    assert silent.more_jobs_pct is None
    assert not any("more jobs" in sentence for sentence in silent.sentences)


@pytest.mark.parametrize(
    ("count", "weeks", "why"),
    [
        (8, 1, "this rests on 8 jobs in 1 week; a size is reliable only from 100 jobs in 3 weeks on."),
        (120, 2, "this rests on 120 jobs in 2 weeks; a size is reliable only from 100 jobs in 3 weeks on."),
        (100, 3, ""),
    ],
)
def test_a_size_from_few_jobs_or_weeks_comes_with_a_caution(count: int, weeks: int, why: str) -> None:
    caution = f"Caution: {why}" if why else ""
    last_ms = (weeks - 1) * 7 * 24 * HOUR_MS + HOUR_MS
    jobs = [Job(f"j{at}", at * last_ms // (count - 1), HOUR_MS, gpus=1) for at in range(count)]
    found = smallest_sizes(jobs, machine(2), ["fifo"], keep_of("p90-wait"))
    assert (found.jobs, found.weeks, found.caution) == (count, weeks, caution)
    assert [text for text in found.sentences if text.startswith("Caution")] == ([caution] if caution else [])


def test_the_caution_is_in_text_json_page_and_digest(tmp_path: Path) -> None:
    write(workload(2, count=8), tmp_path / "t.csv")
    words = ["size", str(tmp_path / "t.csv"), "--cluster", "6x2:A100", "--out", str(tmp_path / "out")]
    caution = "Caution: this rests on 8 jobs in 1 week; a size is reliable only from 100 jobs in 3 weeks on."
    shown = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert shown.splitlines()[1] == caution
    told = json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)
    assert (told["answers"][1], told["caution"], told["jobs"], told["weeks"]) == (caution, caution, 8, 1)
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == told
    assert caution in (tmp_path / "out" / "report.html").read_text()
    folder = history_of(tmp_path / "made", "fifo+first-fit")
    week_ms = 7 * 24 * HOUR_MS
    answer, doubt = size_sentences(open_history(folder), ORIGIN_MS, ORIGIN_MS + week_ms)
    assert "returned" in answer
    assert doubt.startswith("Caution: this rests on ")


def test_what_cannot_be_kept_is_said() -> None:
    for text in ("p95-wait", "p90-wait=soon", "p90-wait=-3", "slowdown=3h"):
        with pytest.raises(SettingError):
            keep_of(text)
    with pytest.raises(SettingError, match="by user or by partition, not by 'team'"):
        keep_of("p90-wait", "team")
    assert keep_of("p90-wait=30m").target == 1800


@pytest.fixture(scope="module")
def found() -> Sizes:
    return smallest_sizes(workload(2), machine(6), ["fifo", "sjf"], keep_of("p90-wait=2h"))


def test_the_page_shows_the_curve_with_todays_size_marked(found: Sizes) -> None:
    figure = curve_of(found, A100.name, policy_styles(["fifo", "sjf"]))
    assert [trace.name for trace in figure.data] == ["fifo", "sjf"]
    assert list(figure.data[0].x) == [
        p.cluster.count for p in found.curves[0].points if math.isfinite(p.value)
    ]
    assert {shape.x0 for shape in figure.layout.shapes} >= {6}
    assert figure.layout.title.text == f"90th percentile of waits, h, over the nodes of {A100.name}"
    assert figure.layout.xaxis.dtick == 1
    report = page_of(found, "t", "berth size t", found.sentences)
    assert report.answers[0] == found.sentences[0]


def test_the_command_answers_a_trace_and_a_history(tmp_path: Path) -> None:
    write(workload(2), tmp_path / "t.csv")
    write_nodes(machine(6), tmp_path / "n.csv")
    words = [
        "size",
        str(tmp_path / "t.csv"),
        "--cluster",
        str(tmp_path / "n.csv"),
        "--policies",
        "fifo",
        "--json",
    ]
    told = json.loads(
        CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")], catch_exceptions=False).stdout
    )
    assert told["sizes"][0]["nodes_today"] == 6
    assert (tmp_path / "out" / "report.html").exists()
    folder = history_of(tmp_path / "made", "fifo+first-fit")
    words = [
        "size",
        "--from-history",
        "--history",
        str(folder),
        "--since",
        "2023-01-01",
        "--policies",
        "fifo+first-fit",
    ]
    shown = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert "Error of this history's replays: the weekly 90th percentile of waits is off by" in shown


def test_a_trace_has_no_since() -> None:
    done = CliRunner().invoke(app, ["size", "synthetic:demo", "--since", "7d"])
    assert isinstance(done.exception, SettingError)
    assert "use them with --from-history, not with a TRACE" in str(done.exception)


def test_a_digest_begins_with_the_gpus_that_could_be_returned(tmp_path: Path) -> None:
    folder = history_of(tmp_path / "made", "fifo+first-fit")
    since = datetime.fromtimestamp(ORIGIN_MS / 1000, UTC)
    last = f"{since + timedelta(days=7):%Y-%m-%d}"
    words = ["digest", "--history", str(folder), "--to", last, "--days", "7"]
    lines = CliRunner().invoke(app, words, catch_exceptions=False).stdout.splitlines()
    first = " ".join(lines[3:6])
    assert "90th percentile of waits" in first
    assert ("could be returned" in first) or ("can be returned" in first)
    one = CliRunner().invoke(app, [*words, "--user", "u0"], catch_exceptions=False).stdout
    assert "returned" not in one


def test_a_digest_of_a_history_that_cannot_be_replayed_tells_no_size(tmp_path: Path) -> None:
    folder = history_of(tmp_path / "made", "fifo+first-fit")
    (folder / POLICIES).unlink()
    assert size_sentences(open_history(folder), ORIGIN_MS, ORIGIN_MS + 7 * 24 * HOUR_MS) == ()
    assert size_sentences(open_history(folder), 0, 1) == ()
