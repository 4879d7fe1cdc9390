"""One job, and who wastes what, from the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import HistoryError, SettingError
from berth.history.importing.sacct import import_text
from berth.history.importing.samples import import_usage
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.pseudonyms import pseudonym
from berth.history.store.usage import UsageRow
from tests.history import exports

HEADER = (
    exports.HEADER.replace("JobIDRaw|", "JobIDRaw|JobID|", 1) + "|TotalCPURaw|MemPeakMiB|ConsumedEnergyRaw"
)
NEW_YEAR_MS = 1_767_225_600_000
MINUTE_MS = 60_000


def line(raw: int, label: str, used: str = "||", **values: object) -> str:
    return exports.line(JobIDRaw=raw, **values).replace("|", f"|{label}|", 1) + f"|{used}"


REQUEUED = {
    "Submit": "2026-01-01T00:20:00",
    "Eligible": "2026-01-01T00:25:00",
    "Start": "2026-01-01T00:30:00",
}
LINES = [
    line(101, "100_1", State="NODE_FAIL", End="2026-01-01T00:20:00", Reason="Priority"),
    # 40 minutes on 8 CPUs: 40 minutes of CPU time, 1 GiB of 16.
    line(101, "100_1", f"{40 * MINUTE_MS}|1024|7200000", **REQUEUED, Reason="BeginTime"),
    line(102, "100_2", f"{8 * 60 * MINUTE_MS}|16000|", User="bob", TimelimitRaw=70),
    line(103, "103", User="cat", State="CANCELLED", Start="Unknown", AllocTRES=""),
]


def use(job: str, node: str, begin_min: int, end_min: int, gpu: float, mem: float) -> UsageRow:
    lasted = (end_min - begin_min) * MINUTE_MS
    begin = NEW_YEAR_MS + begin_min * MINUTE_MS
    return UsageRow(
        *("sampled", f"{job}-{begin_min}", node, "c", job, begin, begin + lasted, 10, lasted, 2 * lasted),
        *(gpu * 2 * lasted, mem * 2 * lasted, None, None, None, min(2 * gpu, 1.0), mem),
    )


@pytest.fixture
def history(tmp_path: Path) -> Path:
    made = open_history(tmp_path / "h")
    import_text(made, exports.write(tmp_path / "f", LINES, HEADER), Options("c"))
    rows = [
        use("101", "gpu01", 30, 50, 0.25, 0.125),
        use("101", "gpu01", 50, 70, 0.05, 0.25),
        use("102", "gpu01", 10, 70, 1.0, 0.9),
    ]
    import_usage(made, rows)
    return tmp_path / "h"


def berth(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_job_is_told_with_attempts_waits_use_cost_and_what_would_do(history: Path) -> None:
    assert berth("job", "100_1", "--history", history) == (
        """\
Job 100_1 (id 101) of c: completed
  name:        train
  user:        ann / ai
  application: pytorch
  partition:   a100 / normal
  asked for:   2 GPUs a100, 8 CPUs, 16.0 GiB, 2.0 h at most
  comment:     pytorch

Attempt 1 of 2: node-fail
  queued       2026-01-01 00:00:00 UTC
  waited       10.0 min for priority
  ran          2026-01-01 00:10:00 UTC to 2026-01-01 00:20:00 UTC, on gpu01
  shared with  not known: its GPUs were not recorded
  for          10.0 min

Attempt 2 of 2: completed
  queued       2026-01-01 00:20:00 UTC
  waited       5.0 min for begin time
  waited       5.0 min for resources
  ran          2026-01-01 00:30:00 UTC to 2026-01-01 01:10:00 UTC, on gpu01
  shared with  not known: its GPUs were not recorded
  for          40.0 min
  GPU use        15.0 % mean, 50.0 % peak
  GPU memory use 18.8 % mean, 25.0 % peak
  CPU use        12.5 % mean
  memory use     6.2 % peak

It cost 1.67 GPU-hours, 6.67 CPU-hours, 2.00 kWh.
  0.33 GPU-hours were held by attempts that failed.
  1.13 GPU-hours were held and not used.

Use of its GPUs (mean, peak):
  2026-01-01 00:30:00 UTC  #####                 GPU 25 %, 50 %; memory 12 %, 12 %  gpu01
  2026-01-01 00:50:00 UTC  #                     GPU 5 %, 10 %; memory 25 %, 25 %  gpu01

It could have asked for less:
  time limit: 48.0 min instead of 2.0 h (used at most 40.0 min)
  memory: 1.2 GiB instead of 16.0 GiB (used at most 1.0 GiB)
  CPUs: 2 instead of 8 (used at most 1)
  GPUs: 0.6 instead of 2 (used at most 0.5)
"""
    )


def test_a_job_is_found_by_id_label_and_cluster_and_json_has_all(history: Path) -> None:
    (told,) = json.loads(berth("job", "101", "--history", history, "--json"))
    assert (told["job"], [each["attempt"] for each in told["attempts"]], len(told["series"])) == (
        "100_1",
        [1, 2],
        2,
    )
    assert told["attempts"][1]["waits"] == [
        {"seconds": 300.0, "cause": "begin time"},
        {"seconds": 300.0, "cause": "resources"},
    ]
    assert told["cost"]["gpu_hours"] == pytest.approx(100 / 60)
    assert told["refused"] is None
    (last,) = json.loads(berth("job", "train", "--history", history, "--json"))
    assert last["job"] == "100_1", "of the jobs of a name, the last"
    other = line(
        901,
        "901",
        **{key: value.replace("2026", "2027") for key, value in REQUEUED.items()},
        End="2027-01-01T02:00:00",
    )
    import_text(open_history(history), exports.write(history.parent / "g", [other], HEADER), Options("later"))
    found = json.loads(berth("job", "train", "--history", history, "--json"))
    assert [each["job"] for each in found] == ["100_1", "901"], "of each cluster"
    (last,) = json.loads(berth("job", "train", "--cluster", "c", "--history", history, "--json"))
    assert last["job"] == "100_1"
    assert "never started" in berth("job", "103", "--history", history)
    assert "could have asked for much less" in berth("job", "100_2", "--cluster", "c", "--history", history)
    for words in (("999",), ("101", "--cluster", "other"), ("' OR '1'='1",)):
        with pytest.raises(HistoryError, match="has no job"):
            berth("job", *words, "--history", history)


def test_a_job_that_is_not_there_is_looked_for_in_slurm_where_there_is_one(
    history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HistoryError, match=r"what waits or runs is in `berth queue`$"):
        berth("job", "999", "--history", history)
    (tmp_path / "squeue").touch(mode=0o755)
    with pytest.raises(HistoryError, match=r"is in `berth queue`, or in Slurm's `squeue`$"):
        berth("job", "999", "--history", history)


def test_what_was_not_recorded_and_what_is_little_are_said(tmp_path: Path) -> None:
    lines = [
        line(1, "1", NCPUS="", AllocTRES="gres/gpu:a100=1,gres/gpu=1", ReqTRES=""),
        line(2, "2", State="TIMEOUT"),
    ]
    import_text(open_history(tmp_path / "h"), exports.write(tmp_path / "f", lines, HEADER), Options("c"))
    import_usage(open_history(tmp_path / "h"), [use("2", "gpu01", 10, 70, 0.05, 0.9)])
    told = berth("job", "1", "--history", tmp_path / "h")
    assert "CPU-hours not recorded" in told
    (answer,) = json.loads(berth("job", "1", "--history", tmp_path / "h", "--json"))
    assert (answer["cost"]["cpu_hours"], answer["little_used"]) == (None, None)
    told = berth("job", "2", "--history", tmp_path / "h")
    assert "No attempt completed" in told
    assert "Its GPUs were 5 % in use: see what they wait for" in told


def test_a_measure_that_nobody_took_is_said_to_be_unknown(tmp_path: Path) -> None:
    import_text(
        open_history(tmp_path / "h"), exports.write(tmp_path / "f", [exports.line(JobIDRaw=1)]), Options("c")
    )
    for measure, words in (
        ("idle-gpu-hours", "the GPU use of these jobs was not measured"),
        ("gpu-use", "the GPU use of these jobs was not measured"),
        ("cpu-use", "the CPU use of these jobs was not measured"),
        ("mem-use", "the memory use of these jobs was not measured"),
    ):
        for by in ("user", "job"):
            told = berth("stats", "--by", by, "--measure", measure, "--history", tmp_path / "h")
            assert words in " ".join(told.split())
            assert "share of" not in told
    answer = json.loads(
        berth("stats", "--by", "user", "--measure", "idle-gpu-hours", "--history", tmp_path / "h", "--json")
    )
    assert [row["share"] for row in answer["rows"]] == [None]


@pytest.mark.slow
def test_who_wastes_what_comes_first(history: Path) -> None:
    told = json.loads(
        berth("stats", "--by", "user", "--measure", "idle-gpu-hours", "--history", history, "--json")
    )
    rows = {row["user"]: row for row in told["rows"]}
    assert [row["user"] for row in told["rows"]] == ["ann", "bob", "cat"]
    assert rows["ann"]["idle_gpu_hours"] == pytest.approx(0.85 * 80 / 60)
    assert rows["ann"]["gpu_use"] == pytest.approx(0.15)
    assert rows["ann"]["cpu_use"] == pytest.approx(0.125)
    assert rows["ann"]["mem_use"] == pytest.approx(1 / 16)
    assert (rows["bob"]["idle_gpu_hours"], rows["cat"]["idle_gpu_hours"]) == (0.0, None)
    for measure, first in (("gpu-use", "ann"), ("cpu-use", "ann"), ("mem-use", "ann"), ("gpu-hours", "bob")):
        words = ["--measure", measure, "--history", history, "--json"]
        assert json.loads(berth("stats", "--by", "user", *words))["rows"][0]["user"] == first
        job = json.loads(berth("stats", "--by", "job", *words))["rows"][0]
        assert job["job"] == {"ann": "100_1", "bob": "100_2"}[first]
    table = berth("stats", "--by", "job", "--measure", "idle-gpu-hours", "--top", "1", "--history", history)
    assert ("100_1" in table, "100_2" in table, "15.0 %" in table) == (True, False, True)
    with pytest.raises(SettingError, match="does not add up"):
        berth("report", "x.html", "--measure", "gpu-use", "--history", history)


@pytest.mark.slow
def test_a_users_report_is_of_that_user_alone(history: Path, tmp_path: Path) -> None:
    assert berth("report", tmp_path / "r.html", "--only", "user=bob", "--history", history).endswith(
        ": 1 job\n"
    )
    assert "only user=bob" in (tmp_path / "r.html").read_text()
    berth("report", tmp_path / "all.html", "--history", history)
    page = re.sub(' data-label="[^"]*"', "", (tmp_path / "all.html").read_text())
    assert "<h2>Who leaves GPUs idle</h2>" in page
    assert (
        '<th scope="row">ann</th><td>1.13</td><td>1.67</td><td>15.0 %</td><td>12.5 %</td><td>6.2 %</td>'
        in page
    )
    with pytest.raises(HistoryError, match="only user=nobody"):
        berth("report", tmp_path / "x.html", "--only", "user=nobody", "--history", history)


def test_jobs_of_a_history_with_pseudonyms_are_told_by_them(tmp_path: Path) -> None:
    key = b"k" * 32
    import_text(
        open_history(tmp_path / "p"), exports.write(tmp_path / "f", LINES, HEADER), Options("c", key=key)
    )
    told = berth("job", "100_1", "--history", tmp_path / "p")
    assert pseudonym(key, "user", "ann") in told
    assert "ann /" not in told
    assert "The use of its GPUs was not measured" in told


@pytest.mark.parametrize("end", ["2025-12-01", "2026-02-01"])
def test_a_digest_of_an_empty_period_names_the_day_of_the_last_attempt(history: Path, end: str) -> None:
    digest = berth("digest", "--to", end, "--history", history)
    assert digest.endswith(
        "No job ended in this period.\nThe last one ended on 2026-01-01: add --to 2026-01-02.\n"
    )


def test_a_digest_tells_an_operator_and_a_user_what_changed(history: Path, tmp_path: Path) -> None:
    before = line(
        90,
        "90",
        State="FAILED",
        User="<b>eve</b>",
        Submit="2025-12-30T00:00:00",
        Eligible="2025-12-30T00:00:00",
        Start="2025-12-30T00:10:00",
    )
    before = before.replace("2026-01-01T01:10:00", "2025-12-30T01:10:00")
    import_text(open_history(history), exports.write(tmp_path / "g", [before], HEADER), Options("c"))
    words = ("digest", "--to", "2026-01-02", "--days", "2", "--history", history)
    assert berth(*words) == (
        """\
GPUs
Attempts that ended from 2025-12-31 to 2026-01-01, against the 2 days before

3 jobs held 3.7 GPU-hours, 83 % more than in the period before.
9 % of the GPU-hours went to attempts that failed; of 3.3 GPU-hours that were measured, 34 % stood
idle, the most with ann (1.1 GPU-hours).
Half of the attempts waited at most 10.0 min, nine of ten waited at most 10.0 min.

                                     this period        before  change
  jobs                                         3             1  +200 %
  GPU-hours held                             3.7           2.0   +83 %
  GPU-hours idle, of those measured          1.1  not measured
  GPU-hours of failed attempts               0.3           2.0   -83 %
  median wait                           10.0 min      10.0 min    +0 %
  GPU use                                 66.0 %             –
  CPU use                                 65.0 %             –
  memory use                              61.1 %             –

Users by idle GPU-hours
  user  idle hours  held hours  GPU use
  ann          1.1         1.7     15 %

Jobs by idle GPU-hours (`berth job ID` tells all of one)
  job    user  application  state      idle hours  failed hours  held hours  GPU use
  100_1  ann   pytorch      completed         1.1           0.3         1.7     15 %

Jobs by GPU-hours of failed attempts
  job    user  application  state      idle hours  failed hours  held hours  GPU use
  100_1  ann   pytorch      completed         1.1           0.3         1.7     15 %

What jobs waited for
  cause       hours
  resources     0.2
  priority      0.2
  begin time    0.1
"""
    )
    of_bob = berth(*words, "--user", "bob")
    assert ("GPUs of bob" in of_bob, "ann" in of_bob, "Users by" in of_bob) == (True, False, False)


def test_a_digest_of_a_user_that_nobody_is_is_refused(history: Path) -> None:
    with pytest.raises(SettingError, match=r"has no user 'nobody'; it has ann, bob, cat$"):
        berth("digest", "--user", "nobody", "--history", history)


def test_a_job_is_told_without_loading_what_it_does_not_need(history: Path) -> None:
    code = (
        "import sys; from berth.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    heavy = {'rich', 'numpy', 'numba', 'plotly', 'berth.partition'}\n"
        "    print(*(heavy & set(sys.modules)), file=sys.stderr)"
    )
    words = ["job", "100_1", "--history", str(history)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (berth(*words), "\n")
