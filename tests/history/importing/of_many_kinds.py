"""The jobs of jobs_of_many_kinds.sh as they must come into a history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from berth.history.importing.pending import Queued
from berth.history.importing.sacct import import_jobs, import_text
from berth.history.importing.sacct_json import json_rows
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options, Rejections
from berth.model import Record

KINDS = {
    ("halted", "completed", 0, 1, 1), ("again", "preempted", 0, 1, 0), ("again", "completed", 0, 2, 0),
    ("sweep", "completed", 0, 1, 1), ("het", "completed", 0, 1, 0), ("het", "completed", 0, 1, 1),
    ("fails", "failed", 3, 1, 0), ("killed", "failed", 137, 1, 0), ("late", "cancelled", 0, 1, 1),
    ("waits", "cancelled", None, 1, 4),
}  # fmt: skip
"""Name, state, exit code, attempt and GPUs of each job; of the array of three the tasks are alike."""


def records(path: Path, folder: Path) -> dict[tuple[str, int], Record]:
    """What sacct's text or JSON brings into an empty history, by id and submit time; no job may be rejected."""
    history, rejections = open_history(folder), Rejections()
    if path.suffix == ".json":
        rows = json_rows(path, rejections)
        result = import_jobs(history, rows, Options(), str(path), rejections)
    else:
        result = import_text(history, path, Options())
    assert [each for each in result.rejected if not each.why.startswith("a step;")] == []
    return {(record.job_id, record.queued_ms): record for record in history.records()}


def kinds_of(found: Iterable[Record]) -> set[tuple[str, str, int | None, int, int]]:
    """What KINDS has of each."""
    return {(r.name, str(r.state), r.exit_code, r.attempt, r.gpus) for r in found}


def queued(jobs: Sequence[Queued]) -> dict[str, Queued]:
    """By id."""
    return {job.job_id: job for job in jobs}
