"""What real Slurms printed of the same jobs as JSON by each of their parsers, and as text: one history.

`recorded/VERSION` was written by jobs_of_many_kinds.sh on that Slurm; test_other_slurms.py writes it anew and compares.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from berth.history.importing.pending import read_queue
from tests.every_policy import some
from tests.history.importing.of_many_kinds import KINDS, kinds_of, queued, records

RECORDED = Path(__file__).with_name("recorded")
PARSERS = sorted(RECORDED.glob("*/sacct-*.json.xz"))


def test_parsers_of_slurm_23_11_to_26_05_are_recorded() -> None:
    assert [path.name.removesuffix(".json.xz") for path in PARSERS] == [
        f"sacct-v0.0.{number}" for number in (40, 41, 42, 43, 44, 45)
    ]


@pytest.mark.parametrize("path", some(PARSERS), ids=lambda path: path.name.removesuffix(".json.xz"))
def test_the_json_of_each_parser_tells_what_the_text_does(path: Path, tmp_path: Path) -> None:
    told = tmp_path / "sacct.json"
    told.write_bytes(lzma.decompress(path.read_bytes()))
    text = records(path.with_name("sacct.txt"), tmp_path / "text")
    assert records(told, tmp_path / "json") == text
    assert kinds_of(text.values()) == KINDS
    release = json.loads(told.read_text())["meta"]["slurm"]["release"]
    assert release == path.parent.name


@pytest.mark.parametrize("path", PARSERS, ids=lambda path: path.name.removesuffix(".json.xz"))
def test_the_queue_by_each_parser_is_what_sacct_tells_of_it(path: Path, tmp_path: Path) -> None:
    told = tmp_path / "squeue.json"
    told.write_bytes(lzma.decompress(path.with_name(path.name.replace("sacct", "squeue")).read_bytes()))
    text, found = queued(read_queue(path.with_name("queue.txt"))), queued(read_queue(told))
    assert {job: replace(found[job], application="", reason="") for job in text} == text
    # A comment is in the accounting only once the job has begun; sacct leaves out what is not eligible yet.
    assert {found[job].application for job in text if job.startswith("12_")} == {"vasp"}
    # The first is suspended, and sacct was asked for what is pending or running.
    assert set(found) - set(text) <= {"1", "2"}
    assert [job.job_id for job in found.values() if job.suspended] == ["1"]
