"""Public traces that `berth trace fetch` downloads from their publishers: address, licence, size, checksum.

They are listed in `public_traces.toml`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from berth.errors import FetchError


@dataclass(frozen=True)
class RemoteFile:
    """One file at its publisher."""

    name: str
    url: str
    size_bytes: int | None = None
    """None if the publisher tells none."""
    sha256: str | None = None
    """None if the publisher tells none."""


@dataclass(frozen=True)
class PublicTrace:
    """A published trace: who may do what with it, and its files."""

    name: str
    summary: str
    publisher: str
    licence: str
    cite: str
    files: tuple[RemoteFile, ...]
    readable: bool
    """Whether berth reads its files as they are."""


def _public_trace(name: str, folder: str, files: list[dict[str, Any]], **known: Any) -> PublicTrace:
    there = tuple(RemoteFile(url=f"{folder}/{file['name']}", **file) for file in files)
    return PublicTrace(name=name, files=there, **known)


PUBLIC_TRACES: Final = {
    name: _public_trace(name, **table)
    for name, table in tomllib.loads(
        files("berth.traces").joinpath("public_traces.toml").read_text(encoding="utf-8")
    ).items()
}
"""Every trace of the catalogue by its name."""


def public_trace(name: str) -> PublicTrace:
    """The trace of this name; FetchError where the catalogue has none."""
    if name not in PUBLIC_TRACES:
        raise FetchError(f"no public trace '{name}'; there are {', '.join(PUBLIC_TRACES)}")
    return PUBLIC_TRACES[name]
