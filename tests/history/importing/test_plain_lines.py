"""The fast way in for plain lines gives what the careful way gives, whatever a file holds."""

from __future__ import annotations

import random
import tempfile
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from berth.history.importing.sacct import import_text
from berth.history.store.folder import History, open_history
from berth.history.store.import_result import ImportResult, Options, Plain
from tests.history import exports

CAREFUL = Plain(from_bytes=1 << 60)
FAST = Plain(from_bytes=0, block_bytes=2048)
"""Blocks of some ten lines: jobs of several tries lie in several blocks."""

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


def told(result: ImportResult) -> tuple[object, ...]:
    counts = (result.read, result.imported, result.updated, result.unchanged, result.rejected_count)
    return (*counts, sorted(astuple(row) for row in result.rejected))


def both_ways(lines: list[str], options: Options, end: str = "\n", encoding: str = "utf-8") -> None:
    """Import a file both ways, then a part of it changed, then all of it again, and compare all there is."""
    with tempfile.TemporaryDirectory() as folder:
        careful, fast = open_history(Path(folder) / "careful"), open_history(Path(folder) / "fast")
        for part in (lines, [line.replace("ann", "eve") for line in lines[::2]], lines):
            path = Path(folder) / "jobs"
            path.write_bytes(("\n".join([exports.HEADER, *part]) + end).encode(encoding, "replace"))
            results = [
                told(import_text(history, path, options, delimiter="|", plain=way))
                for history, way in ((careful, CAREFUL), (fast, FAST))
            ]
            assert results[0] == results[1]
            assert records(careful) == records(fast)


def records(history: History) -> list[tuple[object, ...]]:
    return sorted((astuple(record) for record in history.records()), key=repr)


@pytest.mark.slow
@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(lines=LINES, shards=st.sampled_from((0, 4)), end=st.sampled_from(("\n", "")))
def test_both_ways_give_the_same_records_counts_and_reasons(lines: list[str], shards: int, end: str) -> None:
    both_ways(
        [exports.line(JobIDRaw=number) for number in range(100, 140)] + lines,
        Options(shards_per_gpu=shards),
        end,
    )


@pytest.mark.parametrize(
    "options",
    [
        Options(cluster="neuron"),
        Options(key=b"k" * 32),
        Options(timezone="Asia/Seoul"),
        Options(encoding="latin-1"),
        Options(tres_names=(("1", "cpu"), ("1001", "gres/gpu"))),
    ],
    ids=["cluster", "pseudonyms", "zone", "latin-1", "numbered resources"],
)
def test_both_ways_understand_the_same_options(options: Options) -> None:
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
    both_ways(lines, options, encoding=options.encoding)


def test_plain_parts_of_new_jobs_become_files_of_the_history_as_they_are(tmp_path: Path) -> None:
    lines = [exports.line(JobIDRaw=number) for number in range(1, 101)]
    path = exports.write(tmp_path / "jobs", lines)
    history = open_history(tmp_path / "history")
    assert import_text(history, path, Options(), plain=FAST).imported == 100
    files = history.index().records
    assert len(files) > 3
    again = import_text(history, path, Options(), plain=FAST)
    assert (again.imported, again.unchanged, history.index().records) == (0, 100, files)


def test_both_ways_give_the_same_exit_codes(tmp_path: Path) -> None:
    told = {"0:0": 0, "3:0": 3, "0:9": 137, "1:15": 1, "7": 7, "": None, "4294967294:0": None, "odd": None}
    lines = [
        f"{exports.line(JobIDRaw=at, Start='Unknown' if at >= 300 else exports.ROW['Start'])}|{list(told)[at % 8]}"
        for at in range(100, 500)
    ]
    path = exports.write(tmp_path / "jobs", lines, f"{exports.HEADER}|ExitCode")
    for name, way in (("careful", CAREFUL), ("fast", FAST)):
        history = open_history(tmp_path / name)
        assert import_text(history, path, Options(), plain=way).imported == 400
        assert {int(record.job_id): record.exit_code for record in history.records()} == {
            at: None if at >= 300 else list(told.values())[at % 8] for at in range(100, 500)
        }


def test_a_broken_line_is_named_by_its_number_in_the_whole_file(tmp_path: Path) -> None:
    lines = [exports.line(JobIDRaw=number) for number in range(1, 101)]
    lines[76] = "cut|off"
    result = import_text(
        open_history(tmp_path / "history"), exports.write(tmp_path / "jobs", lines), Options(), plain=FAST
    )
    assert [(row.where, result.imported) for row in result.rejected] == [
        (f"{tmp_path / 'jobs'}, line 78", 99)
    ]


def test_both_ways_give_the_same_labels_and_amounts() -> None:
    given = {
        "JobID": ("7", "12_3", "12+0", "12+10", "012_3", "12_", "12_[4-6]", "12_3.batch", "x", ""),
        "SuspendedRaw": ("", "0", "30", "00:00:00", "4294967294", "00:00:30", "x"),
        "TotalCPURaw": ("", "0", "5", "99999999999", "18446744073709551614", "4294967295", "-1", "1.5"),
    }
    header = exports.HEADER + "|" + "|".join(given)
    lines = [exports.line(JobIDRaw=at) + "|7|5|9" for at in range(200, 240)]
    for at, name in enumerate(given):
        for value in given[name]:
            rest = ["7", "5", "9"]
            rest[at] = value
            lines.append("|".join([exports.line(JobIDRaw=len(lines)), *rest]))
    with tempfile.TemporaryDirectory() as folder:
        path = exports.write(Path(folder) / "jobs", lines, header)
        careful, fast = open_history(Path(folder) / "careful"), open_history(Path(folder) / "fast")
        results = [
            told(import_text(history, path, Options(), delimiter="|", plain=way))
            for history, way in ((careful, CAREFUL), (fast, FAST))
        ]
        assert results[0] == results[1]
        assert records(careful) == records(fast)
        assert {r.label for r in fast.records()} >= {"12_3", "12+0", "12+10"}
        assert max(r.cpu_used_ms or 0 for r in fast.records()) == 99_999_999_999
