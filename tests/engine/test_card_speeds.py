"""Run times that depend on the card: tables, the engine, what is believed, and placements and orders that heed them."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.card_speeds import CardSpeeds, card_speeds
from berth.cli.app import app
from berth.cluster import Cluster
from berth.cluster.outages import Recovery
from berth.engine import simulate
from berth.errors import SettingError, TraceError
from berth.experiments.compare import compare
from berth.knowledge import History
from berth.model import Event, EventKind, GpuModel, GpuSlot, Job, Node, Outage
from berth.policies import Setting, make_policy
from berth.policies.sort_keys import ExpectedMs

K80, V100 = GpuModel("K80"), GpuModel("V100")
NODES = (Node("old", 2, K80), Node("new", 2, V100))
SPEEDS = CardSpeeds({"net": {"K80": 250, "V100": 1000}, "sparse": {"K80": 900, "V100": 1000}}, "mine")


def times(events: list[Event]) -> dict[str, tuple[int, int]]:
    starts = {event.job.id: event.time_ms for event in events if event.kind is EventKind.START}
    ends = {event.job.id: event.time_ms for event in events if event.kind is EventKind.FINISH}
    return {name: (start_ms, ends[name]) for name, start_ms in starts.items()}


def run(jobs: list[Job], policy: str, **more: object) -> dict[str, tuple[int, int]]:
    return times(list(simulate(jobs, Cluster(NODES), policy, speeds=SPEEDS, **more)))  # type: ignore[arg-type]


def test_a_job_runs_as_fast_as_its_card_and_a_gang_as_the_slowest_of_its_cards() -> None:
    jobs = [
        Job("slow", 0, 1000, application="net", models=("K80",)),
        Job("fast", 0, 1000, application="net", models=("V100",)),
        Job("gang", 5000, 1000, application="sparse", gpus=2, nodes=2),
        Job("other", 5000, 1000, application="unknown", models=("K80",)),
        Job("cpu", 5000, 1000, application="net", gpus=0),
    ]
    assert run(jobs, "fifo") == {
        "slow": (0, 4000), "fast": (0, 1000), "gang": (5000, 6112), "other": (5000, 6000), "cpu": (5000, 6000),
    }  # fmt: skip


def test_what_a_checkpoint_keeps_is_work_and_not_time_on_the_card() -> None:
    """After 2,000 ms on a K80 500 of 1,000 are done; the other 500 take as long on a V100."""
    job = Job("j", 0, 1000, application="net", keeps_work=True)
    assert run([job], "fifo", outages=[Outage(0, 2000)])["j"] == (2000, 2500)


def test_fastest_fit_takes_the_fastest_card_that_is_left() -> None:
    jobs = [Job(f"j{n}", 0, 1000, application="net") for n in range(3)]
    assert run(jobs, "fastest-fit") == {"j0": (0, 1000), "j1": (0, 1000), "j2": (0, 4000)}
    assert run(jobs, "first-fit") == {"j0": (0, 4000), "j1": (0, 4000), "j2": (0, 1000)}


def test_expected_run_times_are_those_on_the_fastest_card_a_job_may_have() -> None:
    long = Job("long", 0, 900, application="net", models=("K80",))
    short = Job("short", 0, 1000, application="net")
    key = ExpectedMs(Setting().knowledge, speeds=SPEEDS)
    assert (key(long), key(short)) == (3600, 1000)
    assert key.on(short, (GpuSlot(0, 0),), NODES) == 4000
    assert key.on(short, (GpuSlot(1, 0),), NODES) == 1000


def test_a_history_learns_work_whatever_card_it_was_done_on() -> None:
    known = History()
    jobs = [
        Job("a", 0, 1000, user="u", application="net", models=("K80",)),
        Job("b", 9000, 1000, user="u", application="net", models=("V100",)),
    ]
    policy = make_policy("sjf-expected", Setting(knowledge=known, speeds=SPEEDS))
    list(simulate(jobs, Cluster(NODES), policy, knowledge=known, speeds=SPEEDS))
    assert known.run_ms(replace(jobs[0], id="c")).expected == pytest.approx(1000, rel=0.01)


def test_gavel_serves_first_whoever_has_slow_cards() -> None:
    """Both have had an hour of two GPUs; on K80s it was worth less than an hour, on V100s more."""
    hour_ms = 3_600_000
    jobs = [
        Job("k", 0, 9 * hour_ms, application="net", models=("K80",), gpus=2, keeps_work=True),
        Job("v", 0, 9 * hour_ms, application="net", models=("V100",), gpus=2, keeps_work=True),
        Job("late", hour_ms, hour_ms // 10, application="net", gpus=2, keeps_work=True),
    ]
    events = list(simulate(jobs, Cluster(NODES), "gavel+fastest-fit", speeds=SPEEDS))
    assert [event.job.id for event in events if event.kind is EventKind.EVICT] == ["v"]
    plain = list(simulate(jobs[:2], Cluster(NODES), "gavel"))
    assert plain == list(simulate(jobs[:2], Cluster(NODES), "least-attained-service"))


@pytest.mark.parametrize("scheme", ["", "easy+", "passing+", "preempt+"])
def test_models_of_the_table_that_no_node_has_change_nothing(scheme: str) -> None:
    """The cluster's only model has speed 1; the table also tells of one that is four times as slow."""
    nodes = (Node("new", 2, V100),)
    draw = random.Random(4)
    jobs = [
        Job(f"j{at}", 10 * at, draw.randrange(1, 400), application="net", gpus=draw.choice((1, 1, 2)))
        for at in range(200)
    ]
    for order in ("fifo", "sjf-expected"):
        policy = f"{scheme}{order}+first-fit"
        plain = list(simulate(jobs, Cluster(nodes), policy))
        assert list(simulate(jobs, Cluster(nodes), policy, speeds=SPEEDS)) == plain


def test_easy_expects_a_job_on_the_card_that_it_would_get() -> None:
    """On a V100 the filler ends at 1,500 ms, before the head starts; on a K80 it would not have."""
    new = Node("new", 2, V100)
    jobs = [
        Job("long", 0, 2000, application="net", gpus=1),
        Job("head", 1, 1000, application="net", gpus=2),
        Job("filler", 2, 1500, application="net"),
        Job("late", 3, 2500, application="net"),
    ]
    found = times(list(simulate(jobs, Cluster((new,)), "easy+fifo+first-fit", speeds=SPEEDS)))
    assert found == {
        "long": (0, 2000), "filler": (2, 1502), "head": (2000, 3000), "late": (3000, 5500),
    }  # fmt: skip
    old = Node("old", 2, K80)
    found = times(list(simulate(jobs, Cluster((old,)), "easy+fifo+first-fit", speeds=SPEEDS)))
    assert found == {
        "long": (0, 8000), "filler": (2, 6002), "head": (8000, 12_000), "late": (12_000, 22_000),
    }  # fmt: skip


def test_a_filler_that_has_ended_keeps_no_room() -> None:
    """It was stopped before and has little left, so that it ends before the head begins, whatever its whole work."""
    jobs = [
        Job("filler", 0, 3000, keeps_work=True),
        Job("long", 1, 3999, gpus=2, models=("V100",)),
        Job("head", 2, 1000, gpus=3, models=("V100",)),
        Job("next", 3100, 5000, models=("V100",)),
    ]
    nodes = (Node("old", 1, K80), Node("new", 4, V100))
    events = list(simulate(jobs, Cluster(nodes), "easy+fifo+first-fit", outages=[Outage(0, 2500)]))
    starts = [(event.job.id, event.time_ms) for event in events if event.kind is EventKind.START]
    assert starts == [("filler", 0), ("long", 1), ("filler", 2500), ("next", 3100), ("head", 4000)]


@pytest.mark.parametrize("milli", [100, 5000])
def test_a_restart_and_a_checkpoint_take_as_long_on_every_card(milli: int) -> None:
    """6 s of work are done and kept by the outage; a restart takes 1 s, and each of three checkpoints 0.5 s."""
    speeds = CardSpeeds({"net": {"V100": milli}}, "mine")
    job = Job("j", 0, 10_000, application="net", keeps_work=True)
    nodes = (Node("new", 1, V100),)
    scale = 1000 / milli

    def end_ms(recovery: Recovery, down_ms: int) -> int:
        events = simulate(
            [job],
            Cluster(nodes),
            "fifo",
            speeds=speeds,
            outages=[Outage(0, down_ms, down_ms + 1)],
            recovery=recovery,
        )
        return [event.time_ms for event in events][-1]

    down_ms = round(6000 * scale)
    assert end_ms(Recovery(2000, 1000), down_ms) == down_ms + 1 + 1000 + round(4000 * scale)
    writing = Recovery(2000, 1000, write_ms=500)
    down_ms = round(6000 * scale) + 3 * 500
    assert end_ms(writing, down_ms) == down_ms + 1 + 1000 + round(4000 * scale) + 500
    # While the third is written, it is not there yet.
    assert end_ms(writing, down_ms - 1) == down_ms + 1000 + round(6000 * scale) + 2 * 500


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("application,gpu_model,speed\nnet,K80,0\n", "line 2, column 'speed': '0'; expected a factor from 0.001"),
        ("application,gpu_model,speed\nnet,K80,nan\n", "line 2, column 'speed': 'nan'; expected a factor"),
        ("application,gpu_model,speed\nnet,K80,1\nnet,K80,2\n", "line 3, column 'gpu_model': 'K80'; expected a GPU"),
        ("application,gpu_model,speed\na,K80,1\na,T4,2\nb,T4,1\n", "expected a speed of 'b' on K80, as of other"),
        ("application,speed\n", "line 1: 'application,speed'; expected the columns application, gpu_model, speed"),
        ("application,gpu_model,speed\n", "expected at least one row"),
        ("application,gpu_model,speed\nnet\n", "line 2: 'net'; expected 3 columns"),
    ],
)  # fmt: skip
def test_a_bad_speed_table_is_told_by_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "speeds.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        card_speeds(str(path))
    assert said in str(caught.value)


def test_a_table_without_a_model_of_the_cluster_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="gavel has no T4, which the cluster has; it has K80, P100, V100"):
        compare("synthetic:demo", "fifo", cluster="1x2:T4", speeds="gavel")
    with pytest.raises(TraceError, match=r"none\.csv: no such file, and none of berth's tables \(gavel"):
        card_speeds(str(tmp_path / "none.csv"))


def test_the_command_says_once_which_applications_have_no_speed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "id,submit_ms,work_ms,application\na,0,60000,A3C\nb,0,60000,mine\nc,1,60000,mine\n"
    )
    words = ["simulate", str(tmp_path / "t.csv"), "--cluster", "1x4:K80", "--speeds", "gavel", "--json"]
    with pytest.warns(UserWarning, match="gavel has no speeds of 1 applications of the jobs, such as 'mine'"):
        done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0


def test_a_warning_is_one_line_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,submit_ms,work_ms,application\na,0,60000,A3C\nb,0,60000,mine\n")
    words = ["simulate", str(tmp_path / "t.csv"), "--cluster", "1x4:K80", "--speeds", "gavel", "--json"]
    command = [sys.executable, "-c", "from berth.cli import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    progress = "1 × 1 runs: "  # is shown where it takes seconds, as it does while kernels compile
    assert [line for line in done.stderr.splitlines() if not line.startswith(progress)] == [
        "berth: gavel has no speeds of 1 applications of the jobs, such as 'mine': these are taken to be as fast on"
        " every card"
    ]
