import json
import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.model import Job, Node, Reason
from berth.statistics import (
    Distribution,
    GpuHours,
    Summary,
    bounded_slowdown,
    completion_time_s,
    distribution,
    event_columns,
    queueing_delay_s,
    summarise,
    summary_dict,
    waiting_time_s,
)
from tests.statistics.histories import golden

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"

# Over 100 s, four GPUs have 400 GPU-seconds. Held: two 80, half 25, lost 10 + 30, kept 20 + 30: 195.
# GPUs with a job: 80 + 50 + 40 + 50 = 220. Useful: two 80, half 20, lost 30, kept 50: 180.
# Until the last submission, at 90 s: all but the last 10 s of kept, 185 of 360.
GOLDEN = Summary(
    jobs=5,
    finished=4,
    failed=0,
    rejected=1,
    cancelled=0,
    waiting=0,
    running=0,
    tries=6,
    evictions=1,
    failures={Reason.OUT_OF_MEMORY: 1},
    rejections={Reason.NEVER_FITS: 1},
    gpu_allocation_pct=100 * 195 / 400,
    gpu_allocation_arriving_pct=100 * 185 / 360,
    gpu_busy_pct=100 * 220 / 400,
    gpu_utilisation_pct=100 * 180 / 400,
    gpu_use_pct=None,
    gpu_mem_use_pct=None,
    fragmentation_pct=100 * 25 / 205,
    gpu_hours=GpuHours(held=195 / 3600, useful=180 / 3600, wasted=15 / 3600, unfinished=0.0),
    makespan_s=100.0,
    queueing_delay_s=Distribution(6, 40 / 6, 5.0, 15.0, 19.5, 20.0),
    waiting_time_s=Distribution(4, 17.5, 15.0, 37.0, 39.7, 40.0),
    completion_time_s=Distribution(4, 55.0, 55.0, 67.0, 69.7, 70.0),
    bounded_slowdown=Distribution(4, 1.4125, 1.325, 1.82, 1.982, 2.0),
    goodput_pct=100 * 180 / 195,
    # From 30 to 40 s 4.5 of 4 GPUs are asked for: contention is 1.125 for 10 of the 40, 50, 60 and 70 s.
    finish_time_fairness=distribution(
        np.array(
            [1.0 / (1 + 1.25 / 40), 1.25 / (1 + 1.25 / 50), 2.0 / (1 + 1.25 / 60), 1.4 / (1 + 1.25 / 70)]
        )
    ),
    # 80 s of work in 90 s, 80 s of work in 130 s.
    jain_users=(80 / 90 + 80 / 130) ** 2 / 2 / ((80 / 90) ** 2 + (80 / 130) ** 2),
    jain_virtual_clusters=1.0,
)


def flat(value: object, name: str = "") -> dict[str, object]:
    """Nested dicts as one, with dots in the names, so that approx can compare them."""
    if not isinstance(value, dict):
        return {name: ", ".join(value) if isinstance(value, list | tuple) else value}
    return {key: inner for at, part in value.items() for key, inner in flat(part, f"{name}.{at}").items()}


def test_the_golden_history_has_the_metrics_made_by_hand() -> None:
    history = golden()
    summary = summarise(event_columns(history.events), history.nodes)
    assert flat(summary_dict(summary)) == pytest.approx(flat(summary_dict(GOLDEN)))


def test_times_of_the_golden_history_are_those_of_each_try_and_job() -> None:
    columns = event_columns(golden().events)
    assert queueing_delay_s(columns).tolist() == [0, 0, 0, 10, 20, 10]
    assert waiting_time_s(columns).tolist() == [0, 0, 30, 40]
    assert completion_time_s(columns).tolist() == [40, 50, 60, 70]
    assert bounded_slowdown(columns).tolist() == [1.0, 1.25, 2.0, 1.4]


def test_a_run_of_nothing_has_no_percentages_and_no_percentiles() -> None:
    summary = summarise(event_columns([]), [Node("a", 4)])
    assert summary.jobs == summary.finished == 0
    assert math.isnan(summary.gpu_allocation_pct)
    assert summary.waiting_time_s.count == 0
    assert summary_dict(summary)["gpu_allocation_pct"] is None
    json.dumps(summary_dict(summary), allow_nan=False)


def test_a_summary_is_json_with_the_fields_own_names() -> None:
    history = golden()
    plain = summary_dict(summarise(event_columns(history.events), history.nodes))
    again = json.loads(json.dumps(plain, allow_nan=False))
    assert again == plain
    assert list(again) == [field.name for field in fields(Summary)]
    assert again["failures"] == {"out-of-memory": 1}
    assert list(again["waiting_time_s"]) == ["count", "mean", "median", "p90", "p99", "maximum"]


def test_every_key_of_the_json_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    missing = [
        name
        for kind in (Summary, GpuHours, Distribution)
        for name in (field.name for field in fields(kind))
        if f"`{name}`" not in text
    ]
    assert missing == []


def test_where_nothing_is_lost_or_slowed_down_utilisation_is_allocation() -> None:
    nodes = [Node("a", 2), Node("b", 4)]
    jobs = [Job(f"job-{at}", 1000 * at, 7000 + 900 * at, gpus=1 + at % 3) for at in range(30)]
    summary = summarise(event_columns(simulate(jobs, Cluster(nodes), "sjf+best-fit")), nodes)
    assert summary.finished == 30
    assert summary.gpu_utilisation_pct == pytest.approx(summary.gpu_allocation_pct)
    assert (summary.gpu_hours.wasted, summary.gpu_hours.unfinished) == (pytest.approx(0, abs=1e-12), 0.0)
    held = sum(job.work_ms * job.gpus for job in jobs) / 3.6e6
    assert summary.gpu_hours.held == pytest.approx(held)
