"""What a simulated run costs: held against a count from each event to the next."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth import compare
from berth.cli.app import app
from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import SettingError
from berth.interference import make_interference
from berth.model import Event, EventKind, GpuModel, GpuSlot, Job, Node, Share
from berth.profiles import THESIS_GPU, workload_jobs
from berth.statistics import metrics_of
from berth.statistics.columns import event_columns
from berth.statistics.cost import Prices, Watts, held_by_model_h, read_prices, run_cost

NODES = (Node("a", 2, GpuModel("V100")), Node("b", 1, GpuModel("T4")), Node("c", 0, None, 8000))
PRICES = Prices("EUR", {"v100": 2.0, "default": 1.0}, kwh=0.5, co2_g_per_kwh=400.0,
                gpu_watts={"v100": Watts(100, 300), "default": Watts(10, 70)})  # fmt: skip
HOUR_MS = 3_600_000


def naive_h(events: Sequence[Event], nodes: tuple[Node, ...]) -> dict[str, float]:
    """What is held from each event to the next, each GPU capped at the whole."""
    held: dict[GpuSlot, dict[str, int]] = {}
    found: dict[str, float] = {}
    before_ms = 0
    for event in events:
        for slot, parts in held.items():
            model = nodes[slot.node].gpu_model
            assert model is not None
            hours = min(1000, sum(parts.values())) / 1000 * (event.time_ms - before_ms) / HOUR_MS
            found[model.name] = found.get(model.name, 0.0) + hours
        before_ms = event.time_ms
        for slot in event.slots if event.job.gpus else ():
            if event.kind is EventKind.START:
                held.setdefault(slot, {})[event.job.id] = event.share.milli
            else:
                held[slot].pop(event.job.id, None)
    return {name: hours for name, hours in found.items() if hours}


@pytest.mark.parametrize("policy", ["fifo+best-fit", "preempt+fifo+fgd", "least-attained-service+first-fit"])
def test_what_is_held_is_what_a_naive_count_finds(policy: str) -> None:
    draw = random.Random(policy)
    jobs = [
        Job(f"{at}", at * 9000, draw.randrange(1, 200_000), gpus=(gpus := draw.choice((0, 1, 1, 2))),
            share=Share(draw.choice((300, 500, 1000))) if gpus == 1 else Share(), cpu_milli=0 if gpus else 100,
            priority=draw.randrange(3))
        for at in range(80)
    ]  # fmt: skip
    events = list(simulate(jobs, Cluster(NODES), policy))
    assert held_by_model_h(event_columns(events), NODES) == pytest.approx(naive_h(events, NODES))


def test_a_gpu_that_jobs_share_counts_once() -> None:
    nodes = (Node("n", 2, THESIS_GPU),)
    model = make_interference("mps")
    events = list(simulate(workload_jobs("random", 20, 3), Cluster(nodes), "greedy", interference=model))
    found = held_by_model_h(event_columns(events), nodes)
    assert found == pytest.approx(naive_h(events, nodes))
    assert 0 < sum(found.values()) <= 2 * events[-1].time_ms / HOUR_MS


def test_cost_energy_and_co2_of_a_run_by_hand() -> None:
    jobs = [Job("x", 0, HOUR_MS, gpus=2), Job("y", HOUR_MS, HOUR_MS, models=("T4",), share=Share(500))]
    found = run_cost(event_columns(simulate(jobs, Cluster(NODES), "first-fit")), NODES, PRICES)
    energy_kwh = (
        2 * 2 * 100 + 2 * 1 * 10 + 2 * 200 + 0.5 * 60
    ) / 1000  # idle for two hours, and what is held
    assert found.energy_kwh == pytest.approx(energy_kwh)
    assert found.co2_kg == pytest.approx(energy_kwh * 0.4)
    assert found.cost == pytest.approx(2 * 2.0 + 0.5 * 1.0 + energy_kwh * 0.5)


def test_a_comparison_has_them_as_metrics_and_none_without_prices() -> None:
    jobs = [Job(f"{at}", 0, HOUR_MS) for at in range(6)]
    priced, plain = (
        compare(jobs, ["fifo+first-fit"], cluster=NODES, prices=prices) for prices in (PRICES, None)
    )
    names = [metric.name for metric in metrics_of(run.summary for run in priced.runs)]
    assert names[-3:] == ["Cost (EUR)", "Energy", "CO₂"]
    assert plain.runs[0].summary.cost is None
    assert "Energy" not in {metric.name for metric in metrics_of(run.summary for run in plain.runs)}


@pytest.mark.slow
def test_the_command_takes_a_price_list_and_goes_on_with_kept_runs(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[gpu_hour]\ndefault = 2\n")
    command = ["compare", "synthetic:demo", "--policies", "fifo+first-fit", "--json", "--seeds", "1",
               "--prices", str(tmp_path / "p.toml"), "--out", str(tmp_path / "out")]  # fmt: skip
    told = [json.loads(CliRunner().invoke(app, command).stdout) for _ in range(2)]
    assert told[0] == told[1]  # the second time from what was kept
    run = told[0]["runs"][0]
    assert run["cost"] > 0
    assert run["energy_kwh"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gpu_hour]\nv100 = 1\n", r"no gpu_hour of GPU model 'T4', which the cluster has; add it to \[gpu_hour\]"),
        ("[gpu_hour]\ndefault = 1\n[gpu_watts]\nt4 = [1, 2]\n", "no gpu_watts of GPU model 'V100'"),
        ("[gpu_hour]\ndefault = 1\n[gpu_watts]\nt4 = [2, 1]\n", "a busy GPU draws no less than an idle one"),
        ("[gpu_hour]\ndefault = 1\n[gpu_watts]\nt4 = 3\n", "expected the watts when idle and when busy"),
        ("gpu_watts = 3\n", r"expected a table \[gpu_watts\]"),
        ("[gpu_hour]\ndefault = 1\n[gpu_watts]\nt4 = [-1, 2]\n", "expected a number, 0 or more"),
    ],
)  # fmt: skip
def test_a_price_list_that_does_not_fit_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(SettingError, match=message):
        compare([Job("a", 0, 1)], "fifo", cluster=NODES, prices=tmp_path / "p.toml")


def test_a_price_list_without_watts_is_read_as_before(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("currency = 'EUR'\n[gpu_hour]\nA100 = 1.5\n")
    assert read_prices(tmp_path / "p.toml") == Prices("EUR", {"a100": 1.5})


def test_a_price_list_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match=r"p\.toml: no such file or directory; expected a price list in TOML"
    ):
        read_prices(tmp_path / "p.toml")
