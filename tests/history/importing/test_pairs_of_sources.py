"""One try that two sources tell of: what one of them does not tell never replaces what the other told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from itertools import permutations
from pathlib import Path

import pytest

from berth.history.importing.pbs import pbs_rows
from berth.history.importing.sacct import import_jobs, import_rows, import_text
from berth.history.importing.sacct_json import json_rows
from berth.history.importing.simulated import import_records
from berth.history.importing.slurmdbd import Table, columns_of
from berth.history.importing.table_import import csv_rows, header_of, read_map
from berth.history.store.folder import History, open_history
from berth.history.store.import_result import Options, Rejections
from berth.history.store.pseudonyms import read_key
from berth.history.store.record_files import write_records
from berth.history.values.applications import read_rules
from berth.model import Record, RecordState, Share
from tests.history import exports

BASE_S = 1_767_225_600
START_S, END_S = BASE_S + 600, BASE_S + 4200
TIMES = {"Submit": BASE_S, "Eligible": BASE_S + 60, "Start": START_S, "End": END_S}
Source = Callable[[History, Path, Options], None]


def full_text(history: History, folder: Path, options: Options) -> None:
    """sacct's text with all columns."""
    row = exports.line(**TIMES, Reason="Priority")
    import_text(history, exports.write(folder / "full", [row]), options)


def needed_text(history: History, folder: Path, options: Options) -> None:
    """sacct's text with no column but those that are needed."""
    row = f"1|COMPLETED|{BASE_S}|{START_S}|{END_S}"
    import_text(history, exports.write(folder / "needed", [row], "JobID|State|Submit|Start|End"), options)


def named_text(history: History, folder: Path, options: Options) -> None:
    """sacct's text with the job's name, which tells another application than its comment, and no resources."""
    row = f"1|vasp_run|ann|COMPLETED|{BASE_S}|{START_S}|{END_S}"
    header = "JobID|JobName|User|State|Submit|Start|End"
    import_text(history, exports.write(folder / "named", [row], header), options)


def empty_text(history: History, folder: Path, options: Options) -> None:
    """sacct's text with all columns, and nothing in those that need not hold something."""
    nothing = dict.fromkeys(exports.ROW, "")
    row = exports.line(**{**nothing, **TIMES, "JobIDRaw": 1, "State": "COMPLETED", "Eligible": ""})
    import_text(history, exports.write(folder / "empty", [row]), options)


def json_text(history: History, folder: Path, options: Options) -> None:
    """`sacct --json` of an older Slurm: no command line, no number of nodes."""
    job = {
        **{
            "job_id": 1,
            "name": "train",
            "association": {"user": "ann"},
            "account": "ai",
            "partition": "a100",
        },
        **{"state": {"current": "COMPLETED", "reason": "None"}, "qos": "normal", "nodes": "gpu01"},
        "time": {"submission": BASE_S, "eligible": BASE_S + 60, "start": START_S, "end": END_S, "limit": 120},
        "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 2}, {"type": "cpu", "count": 8}]},
    }
    (folder / "j.json").write_text(json.dumps({"jobs": [job]}))
    rejections = Rejections()
    rows = json_rows(folder / "j.json", rejections)
    import_jobs(history, rows, options, "j.json", rejections)


def database(history: History, folder: Path, options: Options) -> None:
    """Rows as they come from a slurmdbd."""
    told = {
        **{
            "JobIDRaw": 1,
            "Cluster": "c",
            "JobName": "train",
            "User": "ann",
            "Account": "ai",
            "QOS": "normal",
        },
        **{"Partition": "a100", "State": "COMPLETED", "TimelimitRaw": 120, "NNodes": 1, "NCPUS": 8, **TIMES},
        **{"AllocTRES": "1=8,2=16384,1001=2,1002=2", "ReqTRES": "1=8,2=16384,1001=2", "NodeList": "gpu01"},
        **{"Reason": "Resources", "Comment": "", "Container": "", "SubmitLine": "sbatch train.sh"},
        **{
            "ExitCode": "0:15",
            "JobID": "1",
            "SuspendedRaw": 60,
            "ConsumedEnergyRaw": 99,
            "TotalCPURaw": 5000,
        },
        **{"MemPeakMiB": 7, "GPUUtilPeak": 120, "GPUMemPeakMiB": 3},
    }
    assert told.keys() == columns_of(Table("c", frozenset(), {}), str, {}).keys()
    names = (("1", "cpu"), ("2", "mem"), ("1001", "gres/gpu"), ("1002", "gres/gpu:a100"))
    options = replace(options, tres_names=names)
    import_rows(history, [tuple(told.values())], tuple(told), options, "slurmdbd", Rejections())


def csv_table(history: History, folder: Path, options: Options) -> None:
    """A table that tells the times, GPUs and their use."""
    (folder / "c.csv").write_text(f"id,made,began,done,cards,busy\n1,{BASE_S},{START_S},{END_S},2,0.25\n")
    columns = read_map("job=id,submit=made,start=began,end=done,gpus=cards,gpu_use=busy")
    rejections = Rejections()
    rows = csv_rows(folder / "c.csv", columns, rejections)
    import_rows(history, rows, header_of(columns), options, "c.csv", rejections)


def pbs_log(history: History, folder: Path, options: Options) -> None:
    """A line of PBS: no QOS, no reason, no comment."""
    (folder / "pbs").write_text(
        f"01/01/2026 01:10:00;E;1.server;user=ann account=ai jobname=train queue=a100 ctime={BASE_S} "
        f"qtime={BASE_S} start={START_S} end={END_S} exec_vnode=(gpu01:ncpus=8:ngpus=2) "
        "Resource_List.ncpus=8 Resource_List.walltime=02:00:00 Exit_status=0\n"
    )
    rejections = Rejections()
    rows = pbs_rows(folder / "pbs", rejections)
    import_jobs(history, rows, options, "pbs", rejections)


def simulation(history: History, folder: Path, options: Options) -> None:
    """A record as the simulator writes it: no name, account, QOS, reason, comment."""
    record = Record(
        *("1", 1, "ann", "pytorch", "", BASE_S * 1000, BASE_S * 1000, START_S * 1000, END_S * 1000),
        *(RecordState.COMPLETED, 2, Share(1000, 0), 0, 0, ("gpu01",), "", 3_000_000),
        node_count=1,
        cluster="c",
    )
    write_records([record], folder / "r.parquet")
    import_records(history, folder / "r.parquet", options)


SOURCES: tuple[Source, ...] = (
    *(full_text, needed_text, named_text, empty_text, json_text, database, csv_table, pbs_log, simulation),
)


def told(history: History) -> dict[str, object]:
    """The one record that there is."""
    (record,) = history.records()
    return asdict(record)


def joined(first: dict[str, object], second: dict[str, object], by_name: bool) -> dict[str, object]:
    """What two sources tell together: what the second tells, and what only the first does.

    An application follows from the texts of both, unless the second tells it `by_name`, or there are no texts.
    """
    found = {name: first[name] if value in (None, "", 0, ()) else value for name, value in second.items()}
    if second["exit_code"] == 0:  # which is told, other than 0 of what there is none of
        found["exit_code"] = 0
    texts = tuple(str(found[name]) for name in ("comment", "name", "command"))
    if any(texts) and not by_name:
        found["application"] = read_rules().application(*texts)
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Source], dict[str, object]]:
    """What a source tells by itself."""

    @cache
    def found(source: Source) -> dict[str, object]:
        folder = tmp_path_factory.mktemp(source.__name__)
        source(open_history(folder / "h"), folder, Options("c"))
        return told(open_history(folder / "h"))

    return found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            *pair,
            id=f"{pair[0].__name__}-{pair[1].__name__}",
            marks=[pytest.mark.slow] if number % 24 else [],
        )
        for number, pair in enumerate(permutations(SOURCES, 2))
    ],
)
def test_what_one_source_does_not_tell_stays_as_the_other_told_it(
    tmp_path: Path, alone: Callable[[Source], dict[str, object]], one: Source, other: Source
) -> None:
    both = open_history(tmp_path / "both")
    one(both, tmp_path, Options("c"))
    other(both, tmp_path, Options("c"))
    expected = joined(alone(one), alone(other), other is simulation)
    assert told(both) == expected
    before = both.index().records
    other(both, tmp_path, Options("c"))
    assert (told(both), both.index().records) == (expected, before)


@pytest.mark.slow
def test_an_application_told_from_more_stays_where_names_are_hidden(tmp_path: Path) -> None:
    key = read_key(tmp_path / "key", tmp_path / "h")
    history = open_history(tmp_path / "h")
    for source in (full_text, named_text, needed_text, empty_text):
        source(history, tmp_path, Options("c", key=key))
        assert told(history)["application"] == "pytorch"


def test_rules_that_know_less_are_applied_to_what_is_there(tmp_path: Path) -> None:
    history = open_history(tmp_path / "h")
    (tmp_path / "rules").write_text("vasp: vasp\n")
    full_text(history, tmp_path, Options("c"))
    full_text(history, tmp_path, Options("c", rules=tmp_path / "rules"))
    assert told(history)["application"] == ""
