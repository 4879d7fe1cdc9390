"""Writes a CSV file whole or not at all, so that reading gives back each text to the character."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from berth.errors import TraceError
from berth.files import whole_file


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
