"""The options of an import and its result: what became of its rows, and why some stayed out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from berth.history.values.applications import Rules

LISTED_PER_REASON = 1000
"""Rows that are listed one by one for each kind of reason; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that was not imported."""

    where: str
    """File and line, or the job's id."""
    why: str


@dataclass(slots=True)
class Rejections:
    """Rows that were not imported, as they are met."""

    listed: list[Rejected] = field(default_factory=list)
    count: int = 0

    def add(self, where: str, why: str, count: int = 1) -> None:
        """Note a row, or `count` of them that share a place and a reason."""
        self.listed.append(Rejected(where, why))
        self.count += count

    def extend(self, more: Iterable[Rejected], beyond: int = 0) -> None:
        """Note rows, and how many more there were that are not listed."""
        before = len(self.listed)
        self.listed.extend(more)
        self.count += len(self.listed) - before + beyond

    def result(self, read: int, imported: int, updated: int, numbered: int = 0) -> ImportResult:
        """What became of the rows `read`, of which these stayed out."""
        unchanged = read - imported - updated - self.count
        return ImportResult(read, imported, updated, unchanged, tuple(self.listed), self.count, numbered)


@dataclass(frozen=True, slots=True)
class ImportResult:
    """read = imported + updated + unchanged + rejected_count, always."""

    read: int
    imported: int
    """Attempts that the history did not have."""
    updated: int
    """Attempts that it had, and that are otherwise now."""
    unchanged: int
    rejected: tuple[Rejected, ...]
    rejected_count: int
    numbered: int = 0
    """Rows that share a job's id and moment of submission with others, and became jobs of their own."""

    def to_dict(self) -> dict[str, object]:
        """What `--json` prints."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Options:
    """How the text is to be understood."""

    cluster: str = ""
    """The cluster's name where the rows do not tell; two clusters in one history need different ones."""
    timezone: str = "UTC"
    """In which zone times without one are; numbers are seconds since 1970."""
    encoding: str = "utf-8"
    shards_per_gpu: int = 0
    """How many shards a GPU has; 0: not known, and then a job of shards counts as one without GPUs."""
    rules: Path | None = None
    """Rules for applications; None: those that ship with berth."""
    tres_names: tuple[tuple[str, str], ...] = ()
    """What a database's numbers of resources stand for."""
    key: bytes = field(default=b"", repr=False)
    """With it users, accounts and names are replaced by pseudonyms, and comments and commands left out."""
    nodes: Path | None = None
    """What tells the GPU models of nodes, for rows that do not: what `sinfo -h -N -o '%N %G'` prints."""


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
    """A view of the keys of those attempts whose resources the source does not have; empty for none."""
    rules: Rules | None = None
    """Which found the applications from name, comment and command; None if the source names them."""
    labels: str = ""
    """A view of cluster, job_id, label and queued_ms of the attempts whose job has a label beside its id; or empty."""
    tasks: bool = False
    """Whether the source may give the tasks of an array one id; one key of Slurm's is one attempt."""
