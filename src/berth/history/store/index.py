"""What `index.json` of a history says: which files count, and what counted before the last imports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

VERSION: Final = 1
UNDOABLE: Final = 3
"""The number of imports that can be taken back; their files stay until then."""
KINDS: Final = ("records", "usage", "series", "spools")
"""The folders of a history's files."""


@dataclass(frozen=True, slots=True)
class PastImport:
    """An import, and what `index.json` said before it."""

    id: str
    what: str
    at_ms: int
    imported: int
    updated: int
    before: Mapping[str, Any]

    def files(self) -> set[str]:
        """The files that counted before it."""
        return {name for kind in KINDS for name in self.before.get(kind, ())}


@dataclass(frozen=True, slots=True)
class Index:
    """What `index.json` says."""

    records: tuple[str, ...] = ()
    usage: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    spools: tuple[str, ...] = ()
    """How far the segments of spools have been read (see `spool_marks.py`)."""
    cursors: Mapping[str, int] = field(default_factory=dict)
    """How far each source has been read."""
    next_number: int = 1
    key_mark: int | None = None
    """Of the key to the pseudonyms, 0 for real names (see `pseudonyms.key_mark`); None before any record."""
    imports: tuple[PastImport, ...] = ()
    """The last imports that changed something, the newest last; at most UNDOABLE."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Index:
        """The index of what `index.json` holds, which may lack what later versions added."""
        known: dict[str, Any] = {
            field.name: content[field.name] for field in fields(cls) if field.name in content
        }
        known |= {name: tuple(known[name]) for name in KINDS if name in known}
        known["imports"] = tuple(PastImport(**each) for each in known.get("imports", ()))
        return cls(**known)

    def files(self) -> set[str]:
        """Every file that counts, or that would count again if imports were taken back."""
        files = {*self.records, *self.usage, *self.series, *self.spools}
        return files.union(*(past.files() for past in self.imports))
