"""What an import tells when it is done: how many rows it read, what became of them, and why some stayed out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["LISTED_PER_REASON", "ImportResult", "Rejected", "Rejections"]

LISTED_PER_REASON = 1000
"""So many rows are listed one by one for each kind of reason; the rest are counted."""


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


@dataclass(frozen=True, slots=True)
class ImportResult:
    """read = imported + updated + unchanged + rejected_count, always."""

    read: int
    imported: int
    """Tries that the history did not have."""
    updated: int
    """Tries that it had, and that are otherwise now."""
    unchanged: int
    rejected: tuple[Rejected, ...]
    rejected_count: int

    def to_dict(self) -> dict[str, object]:
        """What `--json` prints."""
        return {
            "read": self.read,
            "imported": self.imported,
            "updated": self.updated,
            "unchanged": self.unchanged,
            "rejected_count": self.rejected_count,
            "rejected": [{"where": row.where, "why": row.why} for row in self.rejected],
        }
