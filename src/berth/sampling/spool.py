"""A spool that survives a crash: segments that are only ever appended to, with a checksum on every line.

    SPOOL/NODE-20261121T080000-1a2b3c4d.spool

A segment belongs to one run of the sampler; its first line says whose it is, every other what a job used over a few
seconds. A line is the CRC-32 of the rest of it, a space and JSON. What a crash cut off does not fit its checksum and
is passed over; nothing before it is lost.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from berth.errors import SamplingError

FORMAT: Final = "berth-spool"
SUFFIX: Final = ".spool"
_LONGEST_FIRST: Final = 1 << 16
_SLICE: Final = re.compile(rb'\{"job_id":"[^"\\]*(?:\\.[^"\\]*)*","begin_ms":\d+,"end_ms":(\d{1,15}),')
"""How a line of a job's use begins."""
LARGEST_BYTES: Final = 64 << 20
"""Size at which another segment is begun."""


@dataclass(frozen=True, slots=True)
class Slice:
    """What one job used of a node's GPUs over a few seconds: sums over time and GPUs, from which means are made."""

    job_id: str
    begin_ms: int
    end_ms: int
    """Milliseconds since 1970."""
    samples: int
    watched_ms: float
    """How long it was looked at."""
    gpu_ms: float
    """The same, for each GPU of this node that it was known to be on."""
    use_ms: float | None
    """Fraction of a GPU in use × ms."""
    mem_ms: float | None
    """Fraction of a GPU's memory in use × ms."""
    sm_ms: float | None
    pcie_kb: float | None
    energy_j: float | None
    use_peak: float | None
    mem_peak: float | None


@dataclass(frozen=True, slots=True)
class Segment:
    name: str
    node: str
    cluster: str
    interval_ms: int


class SpoolWriter:
    """Appends slices to segments; a context manager."""

    def __init__(self, folder: Path, node: str, cluster: str, interval_ms: int) -> None:
        """SamplingError where the folder cannot be written to."""
        if not re.fullmatch(r"[\w.-]+", node):
            raise SamplingError(f"a node's name has letters, digits, '.', '_' and '-', not {node!r}")
        self.folder = folder
        self._first = {
            "format": FORMAT,
            "version": 1,
            "node": node,
            "cluster": cluster,
            "interval_ms": interval_ms,
        }
        self._node = node
        self._file = -1
        self._size = 0

    def __enter__(self) -> SpoolWriter:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _begin(self) -> None:
        """Go on in a new segment; where there can be none, the last one stays."""
        stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.urandom(4).hex()}"
        path = self.folder / f"{self._node}-{stamp}{SUFFIX}"
        try:
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise SamplingError(
                f"the spool {self.folder} cannot be written to: {error.strerror or error}"
            ) from error
        last = self._file, self._size
        self._file, self._size = new, 0
        try:
            self._append([self._first])
        except SamplingError:
            self._file, self._size = last
            os.close(new)
            path.unlink(missing_ok=True)
            raise
        if last[0] >= 0:
            os.close(last[0])

    def write(self, slices: list[Slice]) -> None:
        """Append slices, all of them or, where the machine dies meanwhile, the first of them."""
        if self._size >= LARGEST_BYTES:
            self._begin()
        self._append([asdict(each) for each in slices])

    def _append(self, contents: list[dict[str, Any]]) -> None:
        data = b"".join(_line(content) for content in contents)
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
            os.fdatasync(self._file)
        except OSError as error:
            raise SamplingError(
                f"the spool {self.folder} cannot be written to: {error.strerror or error}"
            ) from error
        self._size += len(data)


def _line(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def segments(folder: Path) -> list[Path]:
    """The segments of a spool, or the one that is named; SamplingError where there is none."""
    if folder.is_file():
        return [folder]
    found = sorted(folder.glob(f"*{SUFFIX}"))
    if not found:
        raise SamplingError(f"there is no spool in {folder}; `berth sample --spool {folder}` writes one")
    return found


def first_line_of(path: Path) -> Segment:
    """What a segment's first line says; SamplingError where it is none of a spool's."""
    try:
        with path.open("rb") as file:
            line = file.readline(_LONGEST_FIRST).removesuffix(b"\n")
    except OSError as error:
        raise SamplingError(f"{path} cannot be read: {error.strerror or error}") from error
    first = json.loads(line[9:]) if line[:9] == b"%08x " % zlib.crc32(line[9:]) else None
    if not isinstance(first, dict) or (first.get("format"), first.get("version")) != (FORMAT, 1):
        raise SamplingError(f"{path} is no segment of a spool: its first line is broken or of something else")
    return Segment(
        path.name.removesuffix(SUFFIX), str(first["node"]), str(first["cluster"]), int(first["interval_ms"])
    )


def checked_lines(path: Path, begin_at: int = 0) -> tuple[int, Iterator[tuple[int, int, bytes]]]:
    """How long a segment is, and its lines from a byte on: where each begins, its `end_ms`, and its JSON.

    `end_ms` is -1 where a line does not fit its checksum or is none of a job's use. The first line of the segment is
    left out. SamplingError where it cannot be read.
    """
    try:
        with path.open("rb") as file:
            file.seek(begin_at)
            data = file.read()
    except OSError as error:
        raise SamplingError(f"{path} cannot be read: {error.strerror or error}") from error
    return begin_at + len(data), _lines(data, begin_at)


def _lines(data: bytes, begin_at: int) -> Iterator[tuple[int, int, bytes]]:
    crc32, ends = zlib.crc32, _SLICE.match
    place = begin_at
    for line in data.split(b"\n"):
        if line and place:
            text = line[9:]
            found = ends(text) if line[:9] == b"%08x " % crc32(text) and text[-1:] == b"}" else None
            yield place, -1 if found is None else int(found[1]), text
        place += len(line) + 1
