"""PBS logs, CSV tables, berth's own records, and pseudonyms."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from berth.errors import HistoryError, SettingError
from berth.history.importing.pbs import pbs_rows
from berth.history.importing.sacct import import_jobs, import_rows, import_text
from berth.history.importing.series import import_series
from berth.history.importing.simulated import import_records
from berth.history.importing.table_import import csv_rows, header_of, read_map
from berth.history.store.folder import open_history
from berth.history.store.import_result import ImportResult, Options, Rejected, Rejections
from berth.history.store.pseudonyms import key_mark, pseudonym, read_key
from berth.history.store.record_files import write_records
from berth.model import Record, RecordState
from tests.history import exports

PBS = """\
01/01/2026 00:00:00;L;license;floating license hour:3
01/01/2026 01:10:00;S;1.server;user=ann
01/01/2026 01:10:00;E;1.server;user=ann group=ai account="ai lab" jobname=pt_train queue=gpu ctime=1767225600 \
qtime=1767225600 etime=1767225660 start=1767226200 end=1767229800 exec_host=n1/0*4+n2/0*4 \
exec_vnode=(n1:ncpus=4:ngpus=2)+(n2:ncpus=4:ngpus=2) Resource_List.ncpus=8 Resource_List.ngpus=4 \
Resource_List.mem=16gb Resource_List.walltime=02:00:00 Exit_status=0 resources_used.walltime=01:00:00
01/01/2026 02:10:00;E;2.server;user=bob queue=gpu ctime=1767225600 start=1767226200 end=1767229800 \
exec_host=n1/0 Resource_List.nodes=2:ppn=4:gpus=1 Resource_List.walltime=00:30:00 Exit_status=271 \
resources_used.walltime=00:31:00
01/01/2026 03:00:00;E;3.server;user=bob queue=gpu ctime=1767225600
broken
"""


def test_a_pbs_log_becomes_records(tmp_path: Path) -> None:
    path = tmp_path / "20260101"
    path.write_text(PBS)
    history = open_history(tmp_path / "h")
    rejections = Rejections()
    result = import_jobs(history, pbs_rows(path, rejections), Options("pbs"), str(path), rejections)
    assert result == ImportResult(
        4,
        2,
        0,
        0,
        (
            Rejected(f"{path}, line 5", "job 3.server has no ctime, start or end"),
            Rejected(f"{path}, line 6", "not 'MM/DD/YYYY HH:MM:SS;KIND;JOB;key=value …'"),
        ),
        2,
    )
    first, second = history.records()
    assert (first.user, first.account, first.application, first.virtual_cluster) == (
        "ann",
        "ai lab",
        "pytorch",
        "gpu",
    )
    assert (first.gpus, first.nodes, first.cpu_milli, first.mem_mib) == (4, ("n1", "n2"), 8000, 16384)
    assert (first.queued_ms, first.eligible_ms, first.start_ms, first.end_ms) == (
        *(1_767_225_600_000, 1_767_225_660_000, 1_767_226_200_000, 1_767_229_800_000),
    )
    assert (first.state, first.time_limit_ms) == (RecordState.COMPLETED, 7_200_000)
    assert (second.gpus, second.state, second.nodes) == (2, RecordState.TIMEOUT, ("n1",))
    assert [(record.name, record.exit_code) for record in (first, second)] == [
        ("pt_train", 0),
        ("", 128 + 15),
    ]


def test_a_csv_table_is_read_by_its_map(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        "id,made,began,done,who,cards,busy,returned,title\n"
        '1,1767225600,1767225660,1767229260,"ann, b",2,0.25,3,train\n2,x\n'
        "3,1767225600,1767225660,1767229260,bob,1,7,0,train\n"
    )
    columns = read_map(
        "job=id,submit=made,start=began,end=done,user=who,gpus=cards,gpu_use=busy,exit_code=returned,name=title"
    )
    history = open_history(tmp_path / "h")
    rejections = Rejections()
    rows = csv_rows(path, columns, rejections)
    result = import_rows(history, rows, header_of(columns), Options(), str(path), rejections)
    assert result == ImportResult(
        3,
        1,
        0,
        0,
        (
            Rejected(f"{path}, line 3", "2 fields, expected 9"),
            Rejected(f"{path}, job 3", "GPU use is no fraction from 0 to 1"),
        ),
        2,
    )
    (record,) = history.records()
    assert (record.user, record.gpus, record.gpu_use_mean, record.gpu_mem_mean) == ("ann, b", 2, 0.25, None)
    assert (record.name, record.exit_code) == ("train", 3)


@pytest.mark.parametrize(
    ("content", "there"),
    [(b"", "it is empty"), (b"a,b\n", "it has a, b"), (b"\x1b[2J\x00x\n", "its first line is no text")],
)
def test_a_file_that_is_no_such_table_is_refused_without_printing_it(
    tmp_path: Path, content: bytes, there: str
) -> None:
    (tmp_path / "x").write_bytes(content)
    columns = read_map("job=id,submit=when,start=when,end=when")
    with pytest.raises(HistoryError, match=f"has no column id, when; {there}"):
        list(csv_rows(tmp_path / "x", columns, Rejections()))
    for path, reason in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(HistoryError, match=f"{path} cannot be read: {reason}"):
            import_series(open_history(tmp_path / "h"), [path])


def test_a_history_is_for_its_owner_and_group_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(exports.HEADER + "\n" + exports.line(JobIDRaw=1) + "\n")
    (tmp_path / "b").write_text(exports.HEADER + "\n" + exports.line(JobIDRaw=2) + "\n")
    for name in ("a", "b"):
        import_text(open_history(tmp_path / "h"), tmp_path / name, Options("c"))
    modes = {
        (path.is_dir(), path.stat().st_mode & 0o777)
        for path in (tmp_path / "h", *(tmp_path / "h").rglob("*"))
        if path.name not in ("lock", "readers")  # empty
    }
    assert modes == {(True, 0o750), (False, 0o640)}


def test_an_index_outlives_a_loss_of_power_only_after_its_files_and_is_never_open_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, int]] = []
    to_disk, write_text = os.fsync, Path.write_text

    def synced(handle: int) -> None:
        done.append((Path(f"/proc/self/fd/{handle}").readlink().name, os.fstat(handle).st_mode & 0o777))
        to_disk(handle)

    def written(path: Path, text: str, *options: str, **named: str) -> int:
        if path.name.startswith("index.json"):
            done.append(("content", path.stat().st_mode & 0o777 if path.exists() else -1))
        return write_text(path, text, *options, **named)

    (tmp_path / "a").write_text(exports.HEADER + "\n" + exports.line(JobIDRaw=1) + "\n")
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "write_text", written)
    import_text(open_history(tmp_path / "h"), tmp_path / "a", Options("c"))
    assert done == [
        *(("000001.parquet", 0o640), ("records", 0o750)),
        *(("content", 0o640), ("index.json.part", 0o640), ("h", 0o750)),
    ]


def imported(table: Path, columns: str) -> tuple[list[Record], ImportResult]:
    """The records that a CSV table becomes, in a history beside it, and what was said of it."""
    named = read_map(columns)
    history, rejections = open_history(table.parent / "h"), Rejections()
    rows = csv_rows(table, named, rejections)
    result = import_rows(history, rows, header_of(named), Options(), str(table), rejections)
    return list(history.records()), result


def test_a_csv_table_may_name_the_model_of_the_gpus(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    models = ["A100", "", "RTX 3090, Ti"]
    lines = [f'{at},1767225600,1767225660,1767229260,2,"{model}"' for at, model in enumerate(models)]
    path.write_text("\n".join(["id,made,began,done,cards,card", *lines]) + "\n")
    records, _ = imported(path, "gpu_model=card,job=id,submit=made,start=began,end=done,gpus=cards")
    found = sorted((r.job_id, r.gpus, r.gpu_model.lower()) for r in records)
    assert found == [("0", 2, "a100"), ("1", 2, ""), ("2", 2, "rtx_3090_ti")]
    with pytest.raises(SettingError, match="--map names gpu_model without gpus"):
        read_map("job=id,submit=made,start=began,end=done,gpu_model=card")


def test_gpus_of_a_csv_table_are_whole_numbers_from_0_on(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    given = ["2", "eins", "-1", "", "4.0", "1.5", "nan", "inf", "1e300", "0"]
    lines = [f"{at},1767225600,1767225660,1767229260,{text}" for at, text in enumerate(given)]
    path.write_text("\n".join(["id,made,began,done,cards", *lines]) + "\n")
    records, result = imported(path, "job=id,submit=made,start=began,end=done,gpus=cards")
    assert sorted((r.job_id, r.gpus) for r in records) == [("0", 2), ("3", 0), ("4", 4), ("9", 0)]
    assert [(row.where, row.why) for row in result.rejected] == [
        (f"{path}, line {at + 2}", f"{given[at]!r} is no number of GPUs") for at in (1, 2, 5, 6, 7, 8)
    ]


@pytest.mark.parametrize("text", ["job=id", "odd=x", "job"])
def test_a_map_names_known_fields_and_those_needed(text: str) -> None:
    with pytest.raises(SettingError, match="--map"):
        read_map(text)


def test_a_map_that_names_two_columns_for_one_field_is_refused() -> None:
    with pytest.raises(SettingError, match="--map names the column of job twice: id and name"):
        read_map("job=id,submit=made,start=began,end=done,job=name")


def a_record(**values: object) -> Record:
    from berth.model import Share

    record = Record(
        *("7", 1, "ann", "pytorch", "", 0, 0, 5, 105, RecordState.COMPLETED, 1, Share(500, 100), 0, 0),
        *(("n1",), "V100", 100),
        node_count=1,
        cluster="simulated",
    )
    return replace(record, **values)  # type: ignore[arg-type]


def test_simulated_records_come_in_as_they_are(tmp_path: Path) -> None:
    told = {"name": "train", "comment": "why", "command": "run.sh", "exit_code": 3}
    records = [
        a_record(**told, state=RecordState.FAILED, end_reason="failed-to-start"),
        a_record(attempt=2, queued_ms=105, start_ms=105, end_ms=300, exit_code=0),
    ]
    write_records(records, tmp_path / "r.parquet")
    history = open_history(tmp_path / "h")
    assert import_records(history, tmp_path / "r.parquet", Options("simulated")) == ImportResult(
        2, 2, 0, 0, (), 0
    )
    assert import_records(history, tmp_path / "r.parquet", Options("simulated")).unchanged == 2
    assert list(history.records()) == records


def test_a_history_of_before_exit_codes_is_read_and_added_to(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    old = [a_record(), a_record(job_id="8")]
    write_records(old, tmp_path / "r.parquet")
    import_records(history, tmp_path / "r.parquet", Options("simulated"))
    (file,) = (tmp_path / "h" / "records").iterdir()
    lacking = tmp_path / "lacking.parquet"
    duckdb.sql(
        f"COPY (SELECT * EXCLUDE (exit_code, end_reason) FROM read_parquet('{file}')) TO '{lacking}' (FORMAT parquet)"
    )
    lacking.replace(file)
    assert list(history.records()) == old
    new = [a_record(exit_code=3), a_record(job_id="9", exit_code=0)]
    write_records(new, tmp_path / "r.parquet")
    result = import_records(history, tmp_path / "r.parquet", Options("simulated"))
    assert (result.imported, result.updated) == (1, 1)
    assert list(history.records()) == [new[0], old[1], new[1]]


def test_pseudonyms_hide_people_and_keep_statistics(tmp_path: Path) -> None:
    rows = [
        exports.line(JobIDRaw=n, User=user, JobName="secret") for n, user in enumerate(("ann", "bob", "ann"))
    ]
    file = exports.write(tmp_path / "f", rows)
    key = read_key(tmp_path / "key", tmp_path / "h")
    assert read_key(tmp_path / "key", tmp_path / "h") == key
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    history = open_history(tmp_path / "h")
    import_text(history, file, Options(key=key))
    ann, bob = pseudonym(key, "user", "ann"), pseudonym(key, "user", "bob")
    account, name = pseudonym(key, "account", "ai"), pseudonym(key, "name", "secret")
    assert [(r.user, r.account, r.name, r.comment, r.application) for r in history.records()] == [
        (user, account, name, "", "pytorch") for user in (ann, bob, ann)
    ]
    for path in (tmp_path / "h").rglob("*"):
        assert path.is_dir() or not any(word in path.read_bytes() for word in (b"ann", b"secret", key))
    with pytest.raises(HistoryError, match="has pseudonyms"):
        import_text(history, file, Options())
    index = json.loads((tmp_path / "h" / "index.json").read_text())
    assert (index["cursors"], index.pop("key_mark")) == ({}, key_mark(key))
    index["cursors"]["key"] = key_mark(key)  # as it was written once
    (tmp_path / "h" / "index.json").write_text(json.dumps(index))
    assert (history.index().cursors, history.index().key_mark) == ({}, key_mark(key))
    with pytest.raises(SettingError, match="lies in the history"):
        read_key(tmp_path / "h" / "key", tmp_path / "h")


def test_records_are_pseudonymised_too(tmp_path: Path) -> None:
    write_records([a_record(name="secret", account="ai", comment="ann's")], tmp_path / "r.parquet")
    key = read_key(tmp_path / "key", tmp_path / "h")
    history = open_history(tmp_path / "h")
    import_records(history, tmp_path / "r.parquet", Options("simulated", key=key))
    assert [(r.user, r.account, r.name, r.comment, r.application) for r in history.records()] == [
        (
            *(
                pseudonym(key, "user", "ann"),
                pseudonym(key, "account", "ai"),
                pseudonym(key, "name", "secret"),
            ),
            *("", "pytorch"),
        )
    ]
    with pytest.raises(HistoryError, match="has pseudonyms"):
        import_records(history, tmp_path / "r.parquet", Options("simulated"))


def test_the_gpu_model_of_a_job_that_does_not_tell_is_its_nodes(tmp_path: Path) -> None:
    rows = [
        exports.line(JobIDRaw=1, AllocTRES="cpu=1,gres/gpu=1", ReqTRES="", NodeList="gpu02"),
        exports.line(JobIDRaw=2, AllocTRES="cpu=1,gres/gpu=1", ReqTRES="", NodeList="gpu03"),
        exports.line(JobIDRaw=3, AllocTRES="cpu=1", ReqTRES="", NodeList="gpu02"),
        exports.line(JobIDRaw=4, NodeList="gpu02"),
    ]
    (tmp_path / "nodes").write_text("gpu01 gpu:a100:8(S:0-1)\ngpu02 gpu:v100:2,shard:4\ngpu03 (null)\n")
    history = open_history(tmp_path / "h")
    import_text(history, exports.write(tmp_path / "f", rows), Options(nodes=tmp_path / "nodes"))
    assert [(r.job_id, r.gpu_model) for r in history.records()] == [
        ("1", "v100"),
        ("2", ""),
        ("3", ""),
        ("4", "a100"),
    ]
    (tmp_path / "nodes").write_text("gpu01\n")
    with pytest.raises(SettingError, match="names no node with a GPU type"):
        import_text(history, tmp_path / "f", Options(nodes=tmp_path / "nodes"))
