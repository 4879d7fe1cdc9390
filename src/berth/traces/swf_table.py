"""The rows of a file in the Standard Workload Format: numbers split by blanks, comments behind a semicolon."""

from __future__ import annotations

import csv
import io
from itertools import chain
from typing import IO, BinaryIO, Final, cast

from berth.traces.table import CsvTable, Readable

COLUMNS: Final = (
    *("job_number", "submit_time", "wait_time", "run_time", "allocated_processors", "average_cpu_time"),
    *("used_memory_kib", "requested_processors", "requested_time", "requested_memory_kib", "status", "user"),
    *("group", "executable", "queue", "partition", "preceding_job", "think_time"),
)
"""The eighteen fields of a row, by their order in the format's definition."""


def looks_like_swf(beginning: bytes) -> bool:
    """Whether a file that begins so has SWF's comments, or eighteen numbers in its first line."""
    line = beginning.lstrip().split(b"\n", 1)[0]
    if line.startswith(b";"):
        return True
    fields = line.split()
    return len(fields) == len(COLUMNS) and all(
        field.lstrip(b"-").replace(b".", b"", 1).isdigit() for field in fields
    )


class SwfTable(CsvTable):
    """An SWF file; its columns have the format's own names, as there is no header line."""

    def __init__(self, path: str, stream: IO[bytes], *beneath: IO[bytes]) -> None:
        self.path = path
        self.header = COLUMNS
        self._text = io.TextIOWrapper(cast(BinaryIO, stream), "utf-8", errors="surrogateescape")
        self._beneath = beneath
        self._lines_before = 0
        above: list[str] = []
        with Readable(path):
            for text in self._text:
                above.append(text)
                if text.strip() and not _is_comment(text):
                    break
        self.comments = tuple(text.strip() for text in above if _is_comment(text))
        rows = chain(above, self._text)
        words = ("" if _is_comment(text) else " ".join(text.split()) for text in rows)
        self._reader = csv.reader(words, delimiter=" ", quoting=csv.QUOTE_NONE)


def _is_comment(text: str) -> bool:
    return text.lstrip().startswith(";")
