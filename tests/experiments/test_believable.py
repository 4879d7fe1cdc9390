"""A replay that may be believed: the policy that made a history, on the cluster that made it, gives back its waits."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.cluster import Cluster
from berth.engine import simulate
from berth.experiments.recorded_run import keep_machine, kept_policies
from berth.experiments.what_if import WhatIf, what_if
from berth.gpu_models import GPU_MODELS
from berth.history.importing.simulated import import_records
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import records, write_records
from berth.model import Job, Node, Outage, Record, Reservation

ORIGIN_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAYS = 21


def nodes(prefix: str) -> list[Node]:
    """Six nodes in two partitions, of which one node is in both."""
    labels = [("a",), ("a",), ("a",), ("b",), ("b",), ("a", "b")]
    return [
        Node(f"n{at}", 4, GPU_MODELS["A100-80"], 32_000, 256_000, tuple(prefix + each for each in mine))
        for at, mine in enumerate(labels)
    ]


def jobs(seed: int, prefix: str) -> list[Job]:
    """Three weeks of jobs, most of them in partition a, of three priorities; some leave if they wait for long."""
    draw = random.Random(seed)
    found = []
    for at, submit_ms in enumerate(sorted(draw.randrange(DAYS * 24 * HOUR_MS) for _ in range(900))):
        partition = draw.choice("aaab")
        gpus = draw.choice((1, 1, 1, 2, 4, 8))
        work_ms = round(draw.lognormvariate(0.9, 1.1) * HOUR_MS) + 20_000
        found.append(
            Job(
                str(at), submit_ms, work_ms, user=f"u{at % 7}", application="train", gpus=gpus,
                nodes=2 if gpus == 8 else 1, cpu_milli=1000 * gpus, labels=(prefix + partition,), priority=at % 3,
                virtual_cluster=partition, time_limit_ms=work_ms + HOUR_MS if at % 2 else None,
                patience_ms=6 * HOUR_MS if at % 9 == 0 else None,
            )
        )  # fmt: skip
    return found


def history_of(
    folder: Path, policy: str, seed: int = 1, *, prefix: str = "", outages: tuple[Outage, ...] = ()
) -> Path:
    """What a simulated cluster leaves: its Records, and what its nodes are."""
    machine = nodes(prefix)
    events = simulate(jobs(seed, prefix), Cluster(machine), policy, outages=outages)
    folder.mkdir(parents=True)
    write_records(map(since_1970, records(events, machine)), folder / "ran.parquet")
    import_records(open_history(folder / "history"), folder / "ran.parquet", Options(cluster="made"))
    keep_machine(folder / "history", machine, [(0, policy)])
    return folder / "history"


def since_1970(record: Record) -> Record:
    return replace(
        record,
        submit_ms=ORIGIN_MS + record.submit_ms,
        queued_ms=ORIGIN_MS + record.queued_ms,
        start_ms=None if record.start_ms is None else ORIGIN_MS + record.start_ms,
        end_ms=ORIGIN_MS + record.end_ms,
    )


def replayed(folder: Path, policy: str) -> WhatIf:
    return what_if(open_history(folder), [policy])


@pytest.mark.parametrize(
    ("policy", "prefix"),
    [
        ("fifo+first-fit", ""),
        ("easy+fifo+best-fit", "partition:"),
        pytest.param("priority+best-fit", "partition:", marks=pytest.mark.slow),
        pytest.param("passing+fifo+first-fit", "", marks=pytest.mark.slow),
    ],
)
def test_the_policy_that_made_a_history_gives_back_its_waits(
    policy: str, prefix: str, tmp_path: Path
) -> None:
    """Of every week the 90th percentile within 5 %, in partitions, with priorities and with jobs that gave up."""
    found = replayed(history_of(tmp_path / "made", policy, prefix=prefix), policy)
    assert len(found.trust.weekly_errors_pct) >= 3
    assert max(map(abs, found.trust.weekly_errors_pct)) <= 5
    assert found.real.gave_up > 0
    assert found.real.wait_mean_s > 600
    assert found.trust.sentence.startswith(
        "Error of this history's replays: the weekly 90th percentile of waits is off by"
    )


def test_nodes_that_were_lost_are_lost_in_the_replay(tmp_path: Path) -> None:
    lost = (Outage(0, 50 * HOUR_MS, 90 * HOUR_MS), Outage(3, 200 * HOUR_MS, 260 * HOUR_MS))
    found = replayed(history_of(tmp_path / "made", "fifo+first-fit", outages=lost), "fifo+first-fit")
    assert {outage.node for outage in found.real.outages} == {0, 3}
    assert found.trust.is_believable


def test_reservations_of_a_history_are_told_since_1970(tmp_path: Path) -> None:
    kept = Reservation((0, 1, 2), ("u1",), 100 * HOUR_MS, 200 * HOUR_MS)
    machine = nodes("")
    events = simulate(jobs(1, ""), Cluster(machine), "fifo+first-fit", reservations=[kept])
    write_records(map(since_1970, records(events, machine)), tmp_path / "ran.parquet")
    folder = tmp_path / "history"
    import_records(open_history(folder), tmp_path / "ran.parquet", Options(cluster="made"))
    keep_machine(folder, machine, [(0, "fifo+first-fit")])
    told = kept._replace(start_ms=kept.start_ms + ORIGIN_MS, end_ms=kept.end_ms + ORIGIN_MS)
    found = what_if(open_history(folder), ["fifo+first-fit"], reservations=[told])
    run = found.result.runs[0].summary.waiting_time_s
    assert run.p90 == pytest.approx(found.real.waiting_time_s.p90, rel=0.01)
    assert found.as_it_was is not None
    assert found.as_it_was.summary.waiting_time_s.p90 != pytest.approx(run.p90, rel=0.05)


def test_partitions_are_known_by_where_jobs_ran_if_no_node_has_a_label(tmp_path: Path) -> None:
    """The last node is in partition b alone, so that the two have no node in common."""
    apart = [*nodes("")[:5], replace(nodes("")[5], labels=("b",))]
    events = simulate(jobs(1, ""), Cluster(apart), "fifo+first-fit")
    write_records(map(since_1970, records(events, apart)), tmp_path / "ran.parquet")
    folder = tmp_path / "history"
    import_records(open_history(folder), tmp_path / "ran.parquet", Options(cluster="made"))
    keep_machine(folder, [replace(node, labels=()) for node in apart], [(0, "fifo+first-fit")])
    found = replayed(folder, "fifo+first-fit")
    assert [node.labels for node in found.real.nodes] == [node.labels for node in apart]
    assert max(map(abs, found.trust.weekly_errors_pct)) <= 5


def test_an_answer_begins_with_what_its_replay_misses(tmp_path: Path) -> None:
    """The history was made by another policy than is said, so that a replay cannot give back its waits."""
    folder = history_of(tmp_path / "made", "fifo+first-fit")
    keep_machine(folder, nodes(""), [(0, "passing+sjf+first-fit")])
    assert kept_policies(folder) == [(0, "passing+sjf+first-fit")]
    words = [
        "compare",
        "--from-history",
        "--history",
        str(folder),
        "--since",
        "2023-01-01",
        "--policies",
        "fifo",
    ]
    told = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert told.startswith(
        "Do not rely on these numbers: a replay of passing+sjf+first-fit, which ran, misses"
    )
