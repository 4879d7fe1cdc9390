"""sacct's text and JSON into the history."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from berth.errors import HistoryError, SettingError
from berth.history.importing.sacct import import_jobs, import_text
from berth.history.importing.sacct_json import json_rows
from berth.history.store.folder import History, open_history
from berth.history.store.import_result import ImportResult, Options, Rejected, Rejections
from berth.model import Record, RecordState, Share
from berth.statistics.tables import Tables
from tests.every_policy import some
from tests.history import exports

HOUR_MS = 3_600_000
NEW_YEAR_MS = 1_767_225_600_000  # 2026-01-01 in UTC


def read(history: History, path: Path, **options: object) -> ImportResult:
    return import_text(history, path, Options(cluster="c", **options))  # type: ignore[arg-type]


def test_a_row_becomes_a_record(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    result = read(history, exports.write(tmp_path / "f", [exports.line(NNodes=2, NodeList="gpu[01-02]")]))
    assert result == ImportResult(1, 1, 0, 0, (), 0)
    assert list(history.records()) == [
        Record(
            job_id="1",
            attempt=1,
            user="ann",
            application="pytorch",
            virtual_cluster="a100",
            submit_ms=NEW_YEAR_MS,
            queued_ms=NEW_YEAR_MS,
            start_ms=NEW_YEAR_MS + 600_000,
            end_ms=NEW_YEAR_MS + 600_000 + HOUR_MS,
            state=RecordState.COMPLETED,
            gpus=2,
            share=Share(1000, 0),
            cpu_milli=8000,
            mem_mib=16384,
            nodes=("gpu01", "gpu02"),
            gpu_model="a100",
            work_ms=None,
            cluster="c",
            name="train",
            account="ai",
            qos="normal",
            node_count=2,
            time_limit_ms=2 * HOUR_MS,
            eligible_ms=NEW_YEAR_MS,
            wait_reason="",
            comment="pytorch",
            command="",
        )
    ]


def test_broken_rows_stay_out_and_each_says_why(tmp_path: Path) -> None:
    rows = [
        exports.line(JobIDRaw=1),
        exports.line(JobIDRaw=2, JobName="a|b"),
        exports.line(JobIDRaw=3, End="2025-12-31T00:00:00", Start="2025-12-30T00:00:00"),
        exports.line(JobIDRaw=4, Start="2026-01-01T02:00:00"),
        exports.line(JobIDRaw=5, Start="yesterday"),
        exports.line(JobIDRaw=6, State="RUNNING", End="Unknown"),
        exports.line(JobIDRaw=7, State="ODD"),
        exports.line(JobIDRaw="8.batch"),
        exports.line(JobIDRaw=9, Start="2025-12-31T23:00:00"),
        "10|cut off",
    ]
    result = read(open_history(tmp_path / "h"), exports.write(tmp_path / "f", rows))
    f = f"{tmp_path / 'f'}"
    more = "; a value holds '|': export with --delimiter=$'\\x1f'"
    assert (result.read, result.imported, result.rejected_count) == (10, 1, 9)
    assert set(result.rejected) == {
        Rejected(f"{f}, line 3", f"20 fields, expected 19{more}"),
        Rejected(f"{f}, line 11", "2 fields, expected 19; the line is cut off or a value holds a line break"),
        Rejected(f"{f}, job 3", "ends before it was submitted"),
        Rejected(f"{f}, job 4", "ends before it starts"),
        Rejected(f"{f}, job 5", "Start is 'yesterday', which is no time"),
        Rejected(f"{f}, job 6", "has not ended; it comes in once it has"),
        Rejected(f"{f}, job 7", "state 'ODD' is none of Slurm's"),
        Rejected(f"{f}, job 8.batch", "a step; its job's own row counts it"),
        Rejected(f"{f}, job 9", "starts before it was submitted"),
    }


def test_times_that_no_job_has_stay_out(tmp_path: Path) -> None:
    epoch = "1970-01-01T00:00:00"
    rows = [
        exports.line(JobIDRaw=1, Submit=epoch, Eligible=epoch, Start=epoch),
        exports.line(JobIDRaw=2, Submit=60, Eligible=60),
        exports.line(JobIDRaw=3, Submit="0001-01-01T00:00:00"),
        exports.line(JobIDRaw=4, Start="2999-01-01T00:00:00", End="2999-01-01T01:00:00"),
        exports.line(JobIDRaw=5, End="2100-01-01T00:00:00"),
        exports.line(JobIDRaw=6, End="2026-01-01T01:10:00"),
        exports.line(JobIDRaw=7, Submit=60, Eligible=60, Start=120, End=180),
    ]
    history = open_history(tmp_path / "h")
    result = read(history, exports.write(tmp_path / "f", rows))
    assert [record.job_id for record in history.records()] == ["7", "6"]
    assert {(row.where.rpartition(" ")[2], row.why) for row in result.rejected} == {
        ("1", "Submit is 1970-01-01 00:00:00 UTC, which cannot be"),
        ("2", "Submit is 1970-01-01 00:01:00 UTC, which cannot be"),
        ("3", "Submit is 0001-01-01 00:00:00 UTC, which cannot be"),
        ("4", "Start is 2999-01-01 00:00:00 UTC, which cannot be"),
        ("5", "End is 2100-01-01 00:00:00 UTC, which cannot be"),
    }


def test_a_requeued_jobs_tries_are_numbered_whichever_comes_first(tmp_path: Path) -> None:
    first = exports.line(State="NODE_FAIL", End="2026-01-01T00:20:00")
    second = exports.line(Submit="2026-01-01T00:20:00", Start="2026-01-01T00:30:00")
    expected = [(1, NEW_YEAR_MS, NEW_YEAR_MS), (2, NEW_YEAR_MS, NEW_YEAR_MS + 1_200_000)]
    for name, order in (("ab", (first, second)), ("ba", (second, first))):
        history = open_history(tmp_path / name)
        for number, row in enumerate(order):
            read(history, exports.write(tmp_path / f"{name}{number}", [row]))
        assert [(r.attempt, r.submit_ms, r.queued_ms) for r in history.records()] == expected


def test_a_row_that_changed_replaces_the_old_one(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    read(history, exports.write(tmp_path / "1", [exports.line(JobIDRaw=n) for n in range(5)]))
    changed = [exports.line(JobIDRaw=n, Comment="caffe" if n == 3 else "pytorch") for n in range(6)]
    assert read(history, exports.write(tmp_path / "2", changed)) == ImportResult(6, 1, 1, 4, (), 0)
    assert [(r.job_id, r.application) for r in history.records()] == [
        *((str(n), "caffe" if n == 3 else "pytorch") for n in range(6))
    ]


@pytest.mark.slow
def test_columns_that_a_later_export_lacks_keep_their_values(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    read(history, exports.write(tmp_path / "1", [exports.line()]))
    before = list(history.records())
    poorer = "JobID|State|Submit|Start|End"
    row = "1|COMPLETED|2026-01-01T00:00:00|2026-01-01T00:10:00|2026-01-01T01:10:00"
    assert read(history, exports.write(tmp_path / "2", [row], poorer)).unchanged == 1
    assert list(history.records()) == before


@pytest.mark.slow
def test_an_import_that_is_cut_off_leaves_nothing_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = open_history(tmp_path / "h")
    read(history, exports.write(tmp_path / "1", [exports.line(JobIDRaw=1)]))
    file = exports.write(tmp_path / "2", [exports.line(JobIDRaw=n, Comment="x") for n in (1, 2)])

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(History, "_publish", die)
        with pytest.raises(KeyboardInterrupt):
            read(history, file)
    assert [(r.job_id, r.comment) for r in history.records()] == [("1", "pytorch")]
    assert read(history, file) == ImportResult(2, 1, 1, 0, (), 0)
    assert sorted(path.name for path in (tmp_path / "h").iterdir()) == [
        *("index.json", "lock", "readers", "records")
    ]


@pytest.mark.slow
def test_who_reads_while_imports_publish_sees_what_was_there_when_it_began(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    read(history, exports.write(tmp_path / "0", [exports.line(JobIDRaw=1)]))
    count = "SELECT comment, count(*) FROM records GROUP BY ALL"
    with history.database() as database:
        for number in (1, 2):
            rows = [exports.line(JobIDRaw=1, Comment=f"x{number}")]
            assert read(history, exports.write(tmp_path / "1", rows)).updated == 1
        assert database.execute(count).fetchall() == [("pytorch", 1)]
    with history.database() as database:
        assert database.execute(count).fetchall() == [("x2", 1)]
    read(history, tmp_path / "1")
    left = {f"records/{path.name}" for path in (tmp_path / "h" / "records").iterdir()}
    assert left == history.index().files()  # with those to which the last imports can be taken back


def test_times_are_of_the_zone_and_numbers_are_seconds(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    read(history, exports.write(tmp_path / "f", [exports.line()]), timezone="Asia/Seoul")
    seconds = {
        "Submit": 1_767_225_600,
        "Eligible": 1_767_225_600,
        "Start": 1_767_225_601,
        "End": 1_767_225_602,
    }
    read(history, exports.write(tmp_path / "g", [exports.line(JobIDRaw=2, **seconds)]), timezone="Asia/Seoul")
    assert [r.submit_ms for r in history.records()] == [NEW_YEAR_MS - 9 * HOUR_MS, NEW_YEAR_MS]
    with pytest.raises(SettingError, match="no time zone 'Mars'"):
        read(history, tmp_path / "f", timezone="Mars")


def test_sentinels_are_no_values(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    row = exports.line(
        State="CANCELLED by 0",
        Start="None",
        Eligible="Unknown",
        TimelimitRaw=4294967295,
        NNodes=4294967294,
        AllocTRES="",
        ReqTRES="cpu=1,energy=18446744073709551614,gres/gpu=4",
        NodeList="None assigned",
    )
    read(history, exports.write(tmp_path / "f", [row]))
    (record,) = history.records()
    assert (record.start_ms, record.eligible_ms, record.time_limit_ms, record.nodes) == (None, None, None, ())
    assert (record.state, record.gpus, record.node_count) == (RecordState.CANCELLED, 4, 0)


SENTINELS = (2**32 - 3, 2**32 - 2, 2**32 - 1, 2**64 - 3, 2**64 - 2, 2**64 - 1)


@pytest.mark.parametrize("mark", some(SENTINELS))
def test_a_mark_for_no_number_is_never_0(tmp_path: Path, mark: int) -> None:
    nothing = {"NodeList": "", "AllocTRES": "cpu=1,gres/gpu=2", "ReqTRES": ""}
    rows = [
        exports.line(JobIDRaw=1, NNodes=mark, NodeList="gpu[1-3]"),
        exports.line(JobIDRaw=2, NNodes=mark, NodeList="", AllocTRES="cpu=1,gres/gpu=2,node=2"),
        exports.line(JobIDRaw=3, NNodes=mark, **nothing),
        exports.line(JobIDRaw=4, AllocTRES=f"cpu=1,gres/gpu={mark}"),
        exports.line(JobIDRaw=5, AllocTRES=f"cpu=1,gres/gpu={mark},gres/gpu:a100=2,node=1"),
        exports.line(JobIDRaw=6, AllocTRES=f"cpu={mark},mem={mark}M,gres/gpu=2", NCPUS=mark),
        exports.line(JobIDRaw=7, AllocTRES=f"cpu={mark},gres/gpu=2", ReqTRES="", NCPUS=mark),
        exports.line(JobIDRaw=8, AllocTRES=f"cpu=1,mem={mark}M,gres/gpu=2", ReqTRES="mem=0"),
        exports.line(JobIDRaw=9, Start="None", State="CANCELLED", ReqTRES=f"cpu=1,gres/gpu={mark}"),
    ]
    history = open_history(tmp_path / "h")
    result = read(history, exports.write(tmp_path / "f", rows))
    said = "AllocTRES and ReqTRES tell no number for {}, but a mark of Slurm's for none"
    assert {(row.where.rpartition(" ")[2], row.why) for row in result.rejected} == {
        ("4", said.format("GPUs")),
        ("7", said.format("CPUs")),
        ("8", said.format("memory")),
        ("9", said.format("GPUs")),
    }
    found = {r.job_id: (r.gpus, r.node_count, r.cpu_milli, r.mem_mib) for r in history.records()}
    assert found == {
        "1": (2, 3, 8000, 16384),
        "2": (2, 2, 1000, 16384),
        "3": (2, 0, 1000, 0),
        "5": (2, 1, 1000, 16384),
        "6": (2, 1, 8000, 16384),
    }
    with history.database() as database:
        assert Tables(database).cdfs(["pytorch"])["pytorch"]["nNODE"].count == 4


def test_latin_1_is_read_where_it_is_said_and_left_out_where_not(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes("\n".join([exports.HEADER, exports.line(JobName="müller"), ""]).encode("latin-1"))
    result = read(open_history(tmp_path / "a"), path)
    assert (result.imported, result.rejected_count) == (0, 1)
    assert result.rejected[0].why == "not UTF-8; if it is Latin-1, import with --encoding latin-1"
    history = open_history(tmp_path / "b")
    assert read(history, path, encoding="latin-1").imported == 1
    assert [r.name for r in history.records()] == ["müller"]


def test_values_from_jobs_are_only_ever_data(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    names = [
        "'; DROP TABLE records; --",
        '"quoted",',
        "<script>alert(1)</script>",
        "한글이름 job",
        "a' OR '1'='1",
    ]
    read(
        history,
        exports.write(
            tmp_path / "f",
            [exports.line(JobIDRaw=n, JobName=name, User=name, Comment=name) for n, name in enumerate(names)],
        ),
    )
    assert [(r.name, r.user, r.comment) for r in history.records()] == [(name, name, name) for name in names]


def test_shards_are_parts_of_gpus_where_it_is_said_how_many_a_gpu_has(tmp_path: Path) -> None:
    row = exports.line(AllocTRES="cpu=1,gres/shard=3", ReqTRES="cpu=1,gres/shard=3")
    file = exports.write(tmp_path / "f", [row])
    held = []
    for at, shards in enumerate((0, 4, 2)):
        history = open_history(tmp_path / f"h{at}")
        read(history, file, shards_per_gpu=shards)
        held += [(r.gpus, r.share.milli) for r in history.records()]
    assert held == [(0, 1000), (1, 750), (2, 750)]


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "is empty"), ("a|b\n1|2\n", "has no column jobidraw"), ("JobID|JobID|State\n", "stands twice")],
)
def test_a_file_that_is_no_export_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(HistoryError, match=words):
        read(open_history(tmp_path / "h"), tmp_path / "f")


def test_a_file_that_is_cut_off_gives_what_was_whole_and_the_next_run_the_rest(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    path = exports.write(tmp_path / "f", [exports.line(JobIDRaw=n) for n in range(4)])
    whole = path.read_text()
    path.write_text(whole[: whole.rindex("|")])
    result = read(history, path)
    assert (result.read, result.imported, result.rejected_count) == (4, 3, 1)
    assert "the line is cut off" in result.rejected[0].why
    path.write_text(whole)
    assert read(history, path) == ImportResult(4, 1, 0, 3, (), 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"jobs": [{"job_id": 1', "no whole JSON"), ('{"a": 1}', "no list 'jobs'"), ("[]", "no list")],
)
def test_json_that_is_cut_off_or_of_something_else_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(HistoryError, match=words):
        list(json_rows(tmp_path / "f", Rejections()))


def test_exit_codes_of_json_are_those_of_either_form(tmp_path: Path) -> None:
    plain = {
        "name": "train",
        "state": {"current": "FAILED"},
        "time": {"submission": 1_767_225_600, "start": 1_767_225_600, "end": 1_767_225_700},
        "tres": {"allocated": [{"type": "cpu", "count": 1}]},
    }
    given = (
        ({}, None),
        ({"status": "FAILED", "return_code": 3}, 3),
        ({"status": "SIGNALED", "return_code": 0, "signal": {"signal_id": 9, "name": "KILL"}}, 137),
        ({"return_code": {"set": True, "number": 4}, "signal": {"id": {"set": False, "number": 0}}}, 4),
        ({"return_code": {"set": True, "number": 0}, "signal": {"id": {"set": True, "number": 15}}}, 143),
    )
    jobs = [{**plain, "job_id": at, "exit_code": told} for at, (told, _) in enumerate(given)]
    (tmp_path / "f").write_text(json.dumps({"jobs": jobs}))
    history = open_history(tmp_path / "h")
    rejections = Rejections()
    import_jobs(history, json_rows(tmp_path / "f", rejections), Options(), "f", rejections)
    assert [(record.name, record.exit_code) for record in history.records()] == [
        ("train", code) for _, code in given
    ]


def test_jobs_of_json_in_an_unknown_form_are_left_out_and_each_says_why(tmp_path: Path) -> None:
    time = {"submission": 1, "eligible": 1, "start": 1, "end": 2}
    jobs = [
        {"job_id": 7, "time": 5, "state": {"current": "COMPLETED"}},
        {"no": 1},
        {"job_id": "a"},
        {"job_id": 8, "submit_time": 1, "job_state": ["RUNNING"]},
        {"job_id": 9, "time": {**time, "end": "x"}, "state": {"current": ["COMPLETED"]}},
        {"job_id": 10, "time": time, "state": {"current": []}},
    ]
    (tmp_path / "f").write_text(json.dumps({"jobs": jobs}))
    rejections = Rejections()
    assert list(json_rows(tmp_path / "f", rejections)) == []
    kind = "something in it is of another kind than `sacct --json` writes, such as a text for a list"
    assert [(row.where.removeprefix(f"{tmp_path / 'f'}, "), row.why) for row in rejections.listed] == [
        ("jobs[0], job 7", kind),
        ("jobs[1]", "no job with a 'job_id'"),
        ("jobs[2], job a", "no 'time' in it, as `sacct --json` writes it"),
        ("jobs[3], job 8", "a job of squeue's, which tells of no end; import what `sacct --json` prints"),
        ("jobs[4], job 9", "'x' stands where a number was expected"),
        ("jobs[5], job 10", kind),
    ]


SAMPLES = {
    "sacct_X_us.txt": (242, 242, {}),
    "sacct_X_ALL.psv": (242, 206, {"8 more": 0}),
    "sacct_steps_D_ALL.psv": (501, 0, {}),
    "sacct_D_dups.psv": (44, 38, {}),
    "sacct_X_D_us_run3.txt": (48, 48, {}),
}


@pytest.mark.parametrize("name", some(SAMPLES))
def test_every_row_of_the_samples_is_accounted_for(
    name: str, tmp_path: Path, real_data: Callable[[str], Path]
) -> None:
    path = real_data(f"../slurm/samples/{name}")
    history = open_history(tmp_path / "h")
    result = read(history, path)
    rows = len(path.read_text(encoding="utf-8").rstrip("\n").split("\n")) - 1
    assert result.read == rows == result.imported + result.updated + result.unchanged + result.rejected_count
    assert len(result.rejected) == result.rejected_count
    assert len(history) == result.imported
    again = read(history, path)
    assert (again.imported, again.updated, again.unchanged) == (0, 0, rows - result.rejected_count)


@pytest.mark.parametrize(("name", "jobs"), [("sacct.json", 244), ("rest_slurmdb_jobs.json", 41)])
def test_every_job_of_the_json_samples_is_accounted_for(
    name: str, jobs: int, tmp_path: Path, real_data: Callable[[str], Path]
) -> None:
    path = real_data(f"../slurm/samples/{name}")
    rejections = Rejections()
    result = import_jobs(
        open_history(tmp_path / "h"),
        json_rows(path, rejections),
        Options(),
        str(path),
        rejections,
    )
    assert (result.read, result.imported + result.rejected_count) == (jobs, jobs)


def test_text_and_json_of_one_cluster_tell_the_same(tmp_path: Path, real_data: Callable[[str], Path]) -> None:
    history = open_history(tmp_path / "h")
    import_text(history, real_data("../slurm/samples/sacct_X_us.txt"), Options("neuron"))
    rejections = Rejections()
    path = real_data("../slurm/samples/sacct.json")
    result = import_jobs(history, json_rows(path, rejections), Options(), str(path), rejections)
    # What differs is what JSON does not hold: the command line. Jobs that had ended are the same otherwise.
    assert result.imported == len(history) - 242


def test_an_attempt_that_was_given_up_is_told_by_all_its_states(tmp_path: Path) -> None:
    time = {"submission": 1_767_225_600, "start": 1_767_225_600, "end": 1_767_225_700}
    jobs = [
        {"job_id": at, "time": {**time, "end": end}, "state": {"current": state}}
        for at, (state, end) in enumerate(
            (
                (["PENDING", "REQUEUED"], time["end"]),
                (["RUNNING", "REQUEUED"], time["end"]),
                (["PENDING", "REQUEUED"], 0),
                (["PENDING"], 0),
                (["COMPLETED", "UPDATE_DB"], time["end"]),
            )
        )
    ]
    (tmp_path / "f").write_text(json.dumps({"jobs": jobs}))
    history, rejections = open_history(tmp_path / "h"), Rejections()
    result = import_jobs(history, json_rows(tmp_path / "f", rejections), Options(), "f", rejections)
    assert [(r.job_id, r.state) for r in history.records()] == [
        *(("0", "preempted"), ("1", "preempted"), ("4", "completed"))
    ]
    assert {row.why for row in result.rejected} == {"has not ended; it comes in once it has"}


def test_a_row_that_tells_how_long_it_ran_and_no_end_has_one(tmp_path: Path) -> None:
    header = exports.HEADER.replace("TimelimitRaw", "Timelimit") + "|Elapsed|Suspended"
    rows = [
        exports.line(JobIDRaw=1, State="CANCELLED by 7", End="Unknown", TimelimitRaw="1-00:30:00")
        + "|00:10:00|00:00:30",
        exports.line(JobIDRaw=2, State="RUNNING", End="Unknown", TimelimitRaw="UNLIMITED")
        + "|00:10:00|00:00:00",
        exports.line(JobIDRaw=3, TimelimitRaw="02:30") + "|01:00:00|00:00:00",
        exports.line(JobIDRaw=4, State="CANCELLED", End="Unknown", Start="Unknown") + "|00:00:00|",
    ]
    history = open_history(tmp_path / "h")
    result = read(history, exports.write(tmp_path / "f", rows, header))
    found = [(r.job_id, r.end_ms - (r.start_ms or 0), r.time_limit_ms) for r in history.records()]
    assert found == [("1", 630_000, 88_200_000), ("3", HOUR_MS, 120_000)]
    assert [r.suspended_ms for r in history.records()] == [30_000, None]
    assert {row.where.rpartition(" ")[2] for row in result.rejected} == {"2", "4"}
    with history.database() as database:
        assert Tables(database).totals().run_hours == pytest.approx(1 + 1 / 6)
