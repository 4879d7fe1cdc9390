"""What happened, replayed otherwise: other GPUs, whole GPUs, another period."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.cluster.outages import FailureRate
from berth.experiments.compare.conditions import Conditions
from berth.experiments.recorded_run import CLUSTER, recorded_run
from berth.experiments.what_if import AS_IT_WAS, REALLY, nodes_and_conditions, what_if
from berth.gpu_models import GPU_MODELS
from berth.history.importing.simulated import import_records
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import write_records
from berth.history.values.durations import moment_ms, since_ms
from berth.model import Node, Outage
from berth.traces import read_nodes
from tests.experiments.test_recorded_run import history as history
from tests.experiments.test_recorded_run import record

ORIGIN = 1_700_000_000_000


def test_with_two_gpus_nobody_waits_and_what_ran_is_replayed_as_it_was(history: Path) -> None:
    told: list[float] = []
    found = what_if(
        open_history(history),
        ["fifo"],
        nodes=read_nodes("1x2:A100-80"),
        progress=lambda done, total: told.append(done / total),
    )
    assert found.as_it_was is not None
    assert [(run.policy, run.summary.waiting_time_s.mean) for run in found.runs] == [
        (f"fifo {AS_IT_WAS}", 4.5),
        ("fifo", 0.0),
    ]
    assert found.error == ("fifo", pytest.approx(-3.2, abs=0.1), -10.0)
    assert (told[-1], told == sorted(told)) == (1.0, True)


def test_every_replay_of_a_history_has_its_nodes_and_conditions_by_one_rule(history: Path) -> None:
    kept = open_history(history)
    real = replace(recorded_run(kept), outages=(Outage(0, 3, 5),))
    lost = real.nodes[0].name
    other = [Node("new", 2, GPU_MODELS["A100-80"]), replace(real.nodes[0], name=lost)]
    assert nodes_and_conditions(real, (), {}) == (
        real.nodes, Conditions(outages=real.outages),
    )  # fmt: skip
    assert nodes_and_conditions(real, other, {}) == (tuple(other), Conditions(outages=(Outage(1, 3, 5),)))
    rate = FailureRate(1000, 1000)
    assert nodes_and_conditions(real, (), {"failures": rate})[1] == Conditions(failures=rate)
    told = Outage(0, real.origin_ms + 7, real.origin_ms + 9)
    assert nodes_and_conditions(real, (), {"outages": [told]})[1].outages == (Outage(0, 7, 9, told.drain_ms),)
    unknown = replace(real, known=False)
    assert nodes_and_conditions(unknown, other, {})[0] == real.nodes


def test_sizes_of_a_history_are_those_of_the_nodes_that_are_given(history: Path) -> None:
    words = [
        "size",
        "--from-history",
        "--history",
        str(history),
        "--since",
        "2020-01-01",
        "--policies",
        "fifo",
    ]
    done = CliRunner().invoke(app, [*words, "--cluster", "3x1:A100-80", "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["sizes"][0]["nodes_today"] == 3


def test_the_page_of_a_history_begins_with_the_error_of_its_replays(history: Path, tmp_path: Path) -> None:
    words = [
        "compare",
        "--from-history",
        "--history",
        str(history),
        "--since",
        "2020-01-01",
        "--policies",
        "fifo,sjf",
    ]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")], catch_exceptions=False)
    said = next(line for line in done.stdout.splitlines() if "week" in line)
    page = html.unescape((tmp_path / "out" / "report.html").read_text())
    assert page.index(said) < page.index("mean wait")
    assert f"wrote {tmp_path / 'out' / 'report.html'}" in done.stdout.replace("\n", " ")


def test_the_curve_of_what_really_happened_comes_first(history: Path) -> None:
    found = what_if(open_history(history), ["sjf"])
    assert [run.policy for run in found.distributions] == [REALLY, "fifo", "sjf"]
    assert list(found.distributions[0].waiting.values) == [0.0, 10.0]
    assert list(found.distributions[0].completion.values) == [10.0, 30.0]
    assert found.real.gpu_allocation_pct == pytest.approx(100 * (10 + 1 + 20) / 31)


def test_with_whole_gpus_halves_run_one_after_the_other(tmp_path: Path, history: Path) -> None:
    records = [record(str(number), ORIGIN, ORIGIN, ORIGIN + 10_000, 500) for number in (1, 2)]
    write_records(records, tmp_path / "halves.parquet")
    folder = tmp_path / "halves"
    import_records(open_history(folder), tmp_path / "halves.parquet", Options(cluster="here"))
    (folder / CLUSTER).write_bytes((history / CLUSTER).read_bytes())
    shared = what_if(open_history(folder), ["fifo"])
    whole = what_if(open_history(folder), ["fifo"], whole_gpus=True)
    assert [found.result.runs[0].summary.makespan_s for found in (shared, whole)] == [10.0, 20.0]


def test_a_period_ends_before_its_end(history: Path) -> None:
    found = what_if(open_history(history), ["fifo"], until_ms=ORIGIN + 1000)
    assert [job.id for job in found.real.jobs] == ["1"]


def test_moments_are_dates_or_times_ago() -> None:
    assert since_ms("2d", 10**12, "--since") == 10**12 - 2 * 86_400_000
    assert since_ms("2026-11-21", 0, "--since") == moment_ms("2026-11-21T00:00+00:00", "--from")
