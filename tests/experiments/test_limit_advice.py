"""Advice on limits: it follows from the history, says what its replay is worth, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import SettingError
from berth.experiments import limit_advice
from berth.experiments.compare.conditions import AS_THE_TRACE_SAYS
from berth.experiments.limit_advice import advise_limits, limited, outcome_of
from berth.history.importing.simulated import import_records
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.model import Job, Node
from berth.statistics import event_columns
from tests.history.histories import NODES, history_of

HOUR_MS = 3_600_000
POLICY = "fifo+best-fit"


def hog(days: int = 4, jobs: int = 40, gpus: int = 1) -> tuple[Job, ...]:
    """One user fills the cluster every morning; seven others come through the day with an hour each."""
    found = []
    for day in range(days):
        begin_ms = day * 24 * HOUR_MS
        found += [Job(f"h{day}-{n}", begin_ms + n, 3 * HOUR_MS, user="hog", gpus=gpus) for n in range(jobs)]
        found += [
            Job(f"u{day}-{user}-{n}", begin_ms + (1 + user + 6 * n) * HOUR_MS // 2, HOUR_MS, user=f"u{user}")
            for user in range(7)
            for n in range(2)
        ]
    return tuple(sorted(found, key=lambda job: job.submit_ms))


def even(days: int = 3) -> tuple[Job, ...]:
    """Eight users who submit the same."""
    return tuple(
        Job(f"e{day}-{user}-{n}", day * 24 * HOUR_MS + n * HOUR_MS + user, 2 * HOUR_MS, user=f"u{user}")
        for day in range(days)
        for n in range(8)
        for user in range(8)
    )


def test_one_hog_is_limited_and_equal_users_are_not() -> None:
    unfair = advise_limits(hog(), NODES, POLICY, AS_THE_TRACE_SAYS)
    best = unfair.tried[0]
    assert best.advised
    assert best.less >= 5
    assert best.outcome.typical_wait_s < 0.9 * unfair.now.typical_wait_s
    assert best.outcome.never == 0
    fair = advise_limits(even(), NODES, POLICY, AS_THE_TRACE_SAYS)
    assert not any(each.advised for each in fair.tried)


def test_limits_that_hold_already_stay_and_a_lower_one_takes_the_place_of_its_kind() -> None:
    """Who followed the advice once may ask again."""
    found = advise_limits(
        hog(days=2, jobs=12), NODES, f"limits?user_gpus=6&vc_gpus=7+{POLICY}", AS_THE_TRACE_SAYS
    )
    assert found.now.peaks["gpus"].max() == 6
    assert {each.policy for each in found.tried if each.most == 4} == {
        f"limits?user_gpus=4&vc_gpus=7+{POLICY}",
        f"limits?user_gpus=6&vc_gpus=7&user_running=4+{POLICY}",
    }
    assert limited("limits?file=a%20b/limits.json", "gpus", 4) == "limits?file=a%20b/limits.json&user_gpus=4"


def test_the_order_of_equal_limits_does_not_depend_on_which_run_ends_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = hog(days=1, jobs=12)
    in_turn = advise_limits(jobs, NODES, POLICY, AS_THE_TRACE_SAYS).tried
    waits_s = [each.outcome.typical_wait_s for each in in_turn]
    assert len(set(waits_s)) < len(waits_s)
    run_each = limit_advice.run_each
    monkeypatch.setattr(limit_advice, "run_each", lambda *given: reversed([*run_each(*given)]))
    last_first = advise_limits(jobs, NODES, POLICY, AS_THE_TRACE_SAYS).tried
    assert [each.policy for each in last_first] == [each.policy for each in in_turn]


def test_a_limit_of_gpus_is_never_below_what_one_job_asks_for() -> None:
    found = advise_limits(hog(days=2, jobs=20, gpus=3), NODES, POLICY, AS_THE_TRACE_SAYS)
    tried = [each.most for each in found.tried if each.amount == "gpus"]
    assert tried
    assert min(tried) >= 3
    assert all(each.outcome.never == 0 for each in found.tried)


def test_peaks_are_what_was_held_at_once() -> None:
    node = (Node("n", gpus=4),)
    jobs = (
        Job("a", 0, 1000, user="x", gpus=2),
        Job("b", 0, 2000, user="x"),
        Job("d", 0, 500, user="y"),
        Job("c", 1000, 1000, user="x", gpus=2),
        Job("e", 1000, 1, user="z", gpus=5),
    )
    events = simulate(jobs, Cluster(node), POLICY)
    found = outcome_of(event_columns(events), node, jobs)
    assert found.users == ("x", "y", "z")
    assert found.peaks["gpus"].tolist() == [3, 1, 0]
    assert found.peaks["running"].tolist() == [2, 1, 0]
    assert np.isnan(found.wait_s[2])  # the job of z does not fit on any node
    assert found.typical_wait_s == 0


def test_jobs_without_gpus_have_nothing_to_limit() -> None:
    with pytest.raises(SettingError, match="nothing to limit"):
        advise_limits((Job("a", 0, 1, gpus=0),), NODES, POLICY, AS_THE_TRACE_SAYS)


@pytest.mark.slow
def test_the_command_says_its_error_and_how_to_set_the_limit(tmp_path: Path) -> None:
    history_of(hog(), tmp_path)
    words = ["advise", "--history", str(tmp_path / "history"), "--cluster", "2x4:V100", "--policy", POLICY]
    words += ["--since", "1970-01-01"]
    said = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert said.exit_code == 0, said.output
    assert "Which policy ran is not known" in said.stdout
    assert "sacctmgr -i modify user where name=hog,u0" in said.stdout
    assert "+fifo+best-fit'" in said.stdout
    answer = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert answer["runs"][0]["limit"] == ""
    assert answer["runs"][1]["advised"]
    assert answer["runs"][1]["typical_user_wait_s"] < answer["runs"][0]["typical_user_wait_s"]
    assert answer["runs"][1]["policy"] == f"{answer['runs'][1]['limit']}+{POLICY}"
    assert "pseudonyms" not in said.stdout
    hidden = open_history(tmp_path / "hidden")
    import_records(hidden, tmp_path / "made.parquet", Options("made", key=bytes(32)))
    words[2] = str(tmp_path / "hidden")
    assert "put your users' names in the first command" in CliRunner().invoke(app, words).stdout


def test_jobs_that_never_finish_are_told_of_today_too(tmp_path: Path) -> None:
    history_of([Job(f"j{n}", n, HOUR_MS, user="u", gpus=1 + 3 * (n == 0)) for n in range(6)], tmp_path)
    words = [
        "advise",
        "--history",
        str(tmp_path / "history"),
        "--cluster",
        "1x2:V100",
        "--since",
        "1970-01-01",
    ]
    said = CliRunner().invoke(app, words, env={"COLUMNS": "200"}).stdout
    heads, *lines = [
        line for line in said.splitlines() if line.startswith((" limit", " without", " at most"))
    ]
    column = slice(heads.index("unfinished"), heads.index("less/more"))
    assert [line[column].strip() for line in lines] == ["1", "1"]
