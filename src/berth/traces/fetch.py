"""Downloads a public trace from its publisher, goes on where it was cut off, and checks what came.

A file arrives under its name with `.part` after it and is renamed when it is whole and its checksum is right.
The traces are listed in public_traces.toml.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from berth.errors import FetchError

Progress = Callable[[int, int | None], None]
"""Told how many bytes there are so far, and how many there will be where that is known."""

_CHUNK_BYTES: Final = 1 << 18
_TIMEOUT_S: Final = 60.0


def fetch_file(
    file: RemoteFile,
    folder: Path,
    *,
    progress: Progress = lambda done, total: None,
    timeout_s: float = _TIMEOUT_S,
) -> Path:
    """Download one file into a folder and return its path; what is there already and right is not loaded
    again.

    Raises FetchError where the network, the server or the checksum does not go along. What has arrived stays
    in the `.part` file, unless its checksum is wrong, so that another call goes on from there.
    """
    target = folder / file.name
    part = folder / f"{file.name}.part"
    try:
        if target.exists() and (file.sha256 is None or _sha256(target) == file.sha256):
            return target
        _download(file, part, progress, timeout_s)
        if file.sha256 is not None and (came := _sha256(part)) != file.sha256:
            part.unlink()
            with suppress(OSError):  # another file is in it
                folder.rmdir()
            raise FetchError(
                f"{file.url}: the checksum is {came}, expected {file.sha256}; what came was deleted."
                " The publisher has changed the file, or somebody between here and there has"
            )
        part.replace(target)
    except OSError as error:
        raise FetchError(f"{target} cannot be written: {error.strerror or error}") from error
    return target


def _download(file: RemoteFile, part: Path, progress: Progress, timeout_s: float) -> None:
    """Bring the part file to its full length, from where it ends if the server can."""
    have = part.stat().st_size if part.exists() else 0
    if file.size_bytes is not None and have == file.size_bytes:
        return
    request = urllib.request.Request(file.url, headers={"User-Agent": "berth", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            goes_on = answer.status == 206 and _starts_at(answer) == have
            _append(file, answer, part, have if goes_on else 0, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # nothing follows what is there: the checksum tells if it is right
            return
        raise FetchError(f"{file.url}: the server answers {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise FetchError(f"{file.url}: no connection ({error.reason}); is there a network?") from error
    except (TimeoutError, ConnectionError, HTTPException) as error:
        raise _cut_off(file, part, f"{type(error).__name__}: {error}") from error


def _append(file: RemoteFile, answer: HTTPResponse, part: Path, start: int, progress: Progress) -> None:
    length = answer.headers.get("Content-Length")
    total = file.size_bytes if length is None else start + int(length)
    if file.size_bytes is not None and total != file.size_bytes:
        raise FetchError(f"{file.url}: the server offers {total} bytes, expected {file.size_bytes}")
    done = start
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("r+b" if start else "wb") as stream:
        stream.seek(start)
        progress(done, total)
        while chunk := answer.read(_CHUNK_BYTES):
            stream.write(chunk)
            done += len(chunk)
            progress(done, total)
        stream.truncate()
        stream.flush()
        os.fsync(stream.fileno())
    if total is not None and done < total:
        raise _cut_off(file, part, f"{done} of {total} bytes")


def _cut_off(file: RemoteFile, part: Path, why: str) -> FetchError:
    return FetchError(f"{file.url}: the connection was cut off ({why}); run it again to go on from {part}")


def _starts_at(answer: HTTPResponse) -> int | None:
    unit, _, span = str(answer.headers.get("Content-Range", "")).partition(" ")
    start = span.partition("-")[0]
    return int(start) if unit == "bytes" and start.isdigit() else None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
