"""Texts as sacct prints them: whatever a file holds, every row is counted and comes out the same each time."""

from __future__ import annotations

import random
import tempfile
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from berth.history.importing.sacct import import_rows, import_text
from berth.history.store.folder import History, open_history
from berth.history.store.import_result import ImportResult, Options, Rejections
from tests.history import exports

# What stands in place of a plain value, column by column: all that Slurm writes, and what nobody should.
VALUES = {
    "JobIDRaw": ("7", "8", "9", "10", "11", "12.batch", "12_3", "007", "", "99999999999999999999"),
    "JobName": ("train", "", "a b", "naïve", "한국", "<script>", "x" * 300, "tab\there", "it's", '"quoted"'),
    "User": ("ann", "bob", ""),
    "State": (
        *("COMPLETED", "FAILED", "CANCELLED by 1001", "NODE_FAIL", "TIMEOUT", "RUNNING", "PENDING"),
        *("CANCELLED+", "odd", "", "completed"),
    ),
    "Submit": (
        *("2026-01-01T00:00:00", "2026-02-29T00:00:00", "2024-02-29T10:00:00", "1767225600", "Unknown", ""),
        *("2026-01-01 00:00:00", "2026-01-01T00:00:00.5", "1970-01-01T00:00:00", "soon", "4294967295"),
    ),
    "Eligible": ("2026-01-01T00:00:00", "Unknown", "", "2026-01-03T00:00:00", "None", "0"),
    "Start": (
        *(
            "2026-01-01T00:10:00",
            "Unknown",
            "None",
            "2025-12-31T00:00:00",
            "1767226200",
            "2026-13-01T00:00:00",
        ),
        *("2026-01-01T24:00:00", "2026-01-02T23:59:59", "0"),
    ),
    "End": ("2026-01-01T01:10:00", "2026-01-01T00:10:00", "Unknown", "2101-01-01T00:00:00", "1767229800"),
    "TimelimitRaw": ("120", "UNLIMITED", "Partition_Limit", "", "4294967295", "1.5", "-3", "0"),
    "NNodes": ("1", "2", "", "4K"),
    "NCPUS": ("8", "", "007"),
    "AllocTRES": (
        "cpu=8,gres/gpu:a100=2,mem=16G,node=1",
        "",
        "cpu=1",
        "gres/shard=3",
        "gpu:v100:2",
        "cpu=4294967294,gres/gpu=1",
        "gres/gpu=4294967294",
        "node=3",
    ),
    "ReqTRES": ("cpu=8,gres/gpu=2,mem=16G,node=1", "", "cpu=1"),
    "NodeList": ("gpu01", "gpu[1-3]", "None assigned", "", "gpu[3-", "gpu[01-02],login1"),
    "Reason": ("None", "Priority", "", "Resources"),
    "Comment": ("pytorch", "", "vasp", "\x1e", "né"),
}
LINES = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {}, optional={name: st.sampled_from(values) for name, values in VALUES.items()}
        ).map(lambda row: exports.line(**row)),
        st.sampled_from(("", "1|2|3", exports.line() + "|more", exports.line(JobName="a|b"), "|" * 18)),
    ),
    min_size=1,
    max_size=40,
)


def counted(result: ImportResult) -> tuple[object, ...]:
    return (
        result.imported,
        result.unchanged,
        result.rejected_count,
        sorted(row.why for row in result.rejected),
    )


def records(history: History) -> list[tuple[object, ...]]:
    return sorted((astuple(record) for record in history.records()), key=repr)


@pytest.mark.slow
@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(lines=LINES, shards=st.sampled_from((0, 4)), end=st.sampled_from(("\n", "")))
def test_a_file_and_its_rows_one_by_one_give_the_same(lines: list[str], shards: int, end: str) -> None:
    """What DuckDB reads from a file, and the same fields of rows that another reader made."""
    options = Options(shards_per_gpu=shards)
    lines = [exports.line(JobIDRaw=number) for number in range(100, 140)] + lines
    names = exports.HEADER.split("|")
    with tempfile.TemporaryDirectory() as folder:
        file, rows = open_history(Path(folder) / "file"), open_history(Path(folder) / "rows")
        for part in (lines, [line.replace("ann", "eve") for line in lines[::2]], lines):
            path = Path(folder) / "jobs"
            path.write_bytes(("\n".join([exports.HEADER, *part]) + end).encode())
            whole = [fields for fields in (line.split("|") for line in part) if len(fields) == len(names)]
            one = import_text(file, path, options, delimiter="|")
            other = import_rows(rows, whole, names, options, str(path), Rejections())
            broken = sum(line != "" for line in part) - len(whole)
            assert one.read == one.imported + one.updated + one.unchanged + one.rejected_count
            assert (one.imported, one.updated, one.rejected_count) == (
                *(other.imported, other.updated, other.rejected_count + broken),
            )
            assert records(file) == records(rows)


@pytest.mark.parametrize(
    "options",
    [
        Options(cluster="neuron"),
        Options(key=b"k" * 32),
        pytest.param(Options(timezone="Asia/Seoul"), marks=pytest.mark.slow),
        pytest.param(Options(encoding="latin-1"), marks=pytest.mark.slow),
        pytest.param(Options(tres_names=(("1", "cpu"), ("1001", "gres/gpu"))), marks=pytest.mark.slow),
    ],
    ids=["cluster", "pseudonyms", "zone", "latin-1", "numbered resources"],
)
def test_every_option_may_be_repeated_without_a_change(tmp_path: Path, options: Options) -> None:
    values = random.Random(5)
    lines = [
        exports.line(
            JobIDRaw=values.randrange(60),
            User=values.choice(("ann", "bob", "ré")),
            Submit=1_767_225_600 + values.randrange(5) * 7200,
            Start=1_767_225_600 + 40_000 + values.randrange(100),
            End=1_767_225_600 + 90_000 + values.randrange(100),
            AllocTRES=values.choice(("1=4,1001=2", "cpu=4,gres/gpu=2")),
        )
        for _ in range(200)
    ]
    path = tmp_path / "jobs"
    path.write_bytes("\n".join([exports.HEADER, *lines, ""]).encode(options.encoding))
    history = open_history(tmp_path / "h")
    first = import_text(history, path, options, delimiter="|")
    assert (first.read, first.imported, first.updated) == (200, len(history), 0)
    before = records(history)
    again = import_text(history, path, options, delimiter="|")
    assert (again.imported, again.updated, records(history)) == (0, 0, before)


def test_exit_codes_are_a_shells(tmp_path: Path) -> None:
    codes = {"0:0": 0, "3:0": 3, "0:9": 137, "1:15": 1, "7": 7, "": None, "4294967294:0": None, "odd": None}
    lines = [
        f"{exports.line(JobIDRaw=at, Start='Unknown' if at >= 300 else exports.ROW['Start'])}|{list(codes)[at % 8]}"
        for at in range(100, 500)
    ]
    path = exports.write(tmp_path / "jobs", lines, f"{exports.HEADER}|ExitCode")
    history = open_history(tmp_path / "h")
    assert import_text(history, path, Options()).imported == 400
    assert {int(record.job_id): record.exit_code for record in history.records()} == {
        at: None if at >= 300 else list(codes.values())[at % 8] for at in range(100, 500)
    }


def test_a_broken_line_is_named_by_its_number_in_the_file(tmp_path: Path) -> None:
    lines = [exports.line(JobIDRaw=number) for number in range(1, 101)]
    lines[76] = "cut|off"
    result = import_text(
        open_history(tmp_path / "history"), exports.write(tmp_path / "jobs", lines), Options()
    )
    assert [(row.where, result.imported) for row in result.rejected] == [
        (f"{tmp_path / 'jobs'}, line 78", 99)
    ]


def test_labels_and_amounts_are_read_in_every_form(tmp_path: Path) -> None:
    forms = {
        "JobID": {
            **{"7": "7", "12_3": "12_3", "12+0": "12+0", "12+10": "12+10", "12_[4-6]": "", "x": "x"},
            **{"012_3": "012_3", "12_": "12_"},
        },
        "SuspendedRaw": {
            **{"": None, "0": None, "30": 30_000, "00:00:00": None, "4294967294": None, "00:00:30": 30_000},
            **{"x": None},
        },
        "TotalCPURaw": {
            **{"": None, "0": None, "5": 5, "99999999999": 99_999_999_999, "18446744073709551614": None},
            **{"4294967295": None, "-1": None},
        },
    }
    header = exports.HEADER + "|" + "|".join(forms)
    lines, expected = [], {}
    for at, name in enumerate(forms):
        for value, meaning in forms[name].items():
            rest, parts = ["7", "5", "9"], ["7", 5000, 9]
            rest[at], parts[at] = value, meaning
            job = str(200 + len(lines))
            expected[job] = tuple(parts)
            lines.append("|".join([exports.line(JobIDRaw=job), *rest]))
    history = open_history(tmp_path / "h")
    assert import_text(history, exports.write(tmp_path / "jobs", lines, header), Options()).imported == len(
        lines
    )
    assert {r.job_id: (r.label, r.suspended_ms, r.cpu_used_ms) for r in history.records()} == expected
