"""Attempts that an import has read and that are not taken over yet."""

from __future__ import annotations

from dataclasses import dataclass

from berth.history.values.applications import Rules


@dataclass(frozen=True, slots=True)
class Staged:
    """What became of a text table: two views of the database that it was staged in."""

    read: int
    absent: tuple[str, ...] = ()
    """Columns that the table said nothing about; what is known of an attempt in these stays."""
    keys: str = "staged_keys"
    """cluster, job_id, queued_ms and end_ms of each attempt: cheap to go over."""
    attempts: str = "staged"
    """Attempts with every column of a record but for `attempt` and `submit_ms`."""
    key_mark: int = 0
    """Which key its names are hidden by; 0: none."""
    silent: str = ""
    """A view of the keys of those attempts of which no resources are told; empty for none."""
    rules: Rules | None = None
    """By which the applications were told from name, comment and command; None where they were told as such."""
    labels: str = ""
    """A view of cluster, job_id, label and queued_ms of the attempts whose job has a label beside its id; or empty."""
    tasks: bool = False
    """Whether the source may give the tasks of an array one id; one key of Slurm's is one attempt."""
