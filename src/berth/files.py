"""Files that are there whole or not at all; names for any file system, and cells for any spreadsheet."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from berth.errors import SettingError, TraceError


@contextmanager
def whole_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """The name to write under, `.part` after the file's own; where the writing fails, the file is as it was.

    `durable`: it outlives a loss of power from here on.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        yield temporary
        if durable:
            to_disk(temporary)
        temporary.replace(path)
        if durable:
            to_disk(path.parent)
    except BaseException as error:
        with suppress(OSError):  # on a read-only disk even what is not there cannot be removed
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)  # a full disk names no file; the user knows only `path`
        raise


def write_whole(path: Path, content: str | bytes, *, durable: bool = False, private: bool = False) -> None:
    """Write a file whole or not at all; a text in UTF-8.

    `durable` is as in `whole_file`; with `private`, only its owner may read it.
    """
    with whole_file(path, durable=durable) as temporary:
        if private:
            temporary.touch(mode=0o600)
            temporary.chmod(0o600)
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def plain_name(text: str) -> str:
    """The text as far as any file system takes it; with a digest where that is not all of it."""
    import hashlib  # OpenSSL, which not every command needs

    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:80].lstrip(".")
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return plain if plain == text else f"{plain}-{digest}"


def plain_cell(text: str) -> str:
    """The text, after an apostrophe if a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def to_disk(path: Path) -> None:
    """Have a file or folder outlive a loss of power."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a header and rows, gzip where the name ends on `.gz`; the same rows give the same bytes.

    The file is written under its name with `.part` after it and renamed when it is whole. None becomes an
    empty text.
    """
    try:
        with whole_file(path) as temporary, temporary.open("wb") as raw:
            packed = gzip.GzipFile("", "wb", 6, raw, mtime=0) if path.suffix == ".gz" else raw
            with io.TextIOWrapper(cast(BinaryIO, packed), "utf-8", newline="") as stream:
                plain = csv.writer(stream, lineterminator="\n")
                quoted = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL)
                plain.writerow(header)
                for row in rows:
                    # csv leaves a lone carriage return unquoted, and then it reads as the end of a line
                    (
                        quoted if any(isinstance(text, str) and "\r" in text for text in row) else plain
                    ).writerow(row)
    except UnicodeEncodeError as error:
        raise TraceError(str(path), "texts that UTF-8 can write", value=str(error.object)) from error
    except OSError as error:
        raise TraceError(
            str(path), "a place that can be written to", cause=error.strerror or str(error)
        ) from error


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a TOML file that is to be `what`, such as `a plan`. Raises SettingError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingError(f"{path}: {reason}; expected {what} in TOML") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is not UTF-8 text; expected {what} in TOML") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path} cannot be read as {what}: {error}") from error
