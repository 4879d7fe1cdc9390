"""The rows of a file in the Standard Workload Format: numbers split by blanks, comments behind a semicolon."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import IO, BinaryIO, Final, cast

from berth.errors import TraceError
from berth.traces.table import Block, Readable, Table

COLUMNS: Final = (
    *("job_number", "submit_time", "wait_time", "run_time", "allocated_processors", "average_cpu_time"),
    *("used_memory_kib", "requested_processors", "requested_time", "requested_memory_kib", "status", "user"),
    *("group", "executable", "queue", "partition", "preceding_job", "think_time"),
)
"""The eighteen fields of a row, by their order in the format's definition."""

_BLOCK_ROWS = 2048


def looks_like_swf(beginning: bytes) -> bool:
    """Whether a file that begins so has SWF's comments, or eighteen numbers in its first line."""
    line = beginning.lstrip().split(b"\n", 1)[0]
    if line.startswith(b";"):
        return True
    fields = line.split()
    return len(fields) == len(COLUMNS) and all(
        field.lstrip(b"-").replace(b".", b"", 1).isdigit() for field in fields
    )


class SwfTable(Table):
    """An SWF file; its columns have the format's own names, as there is no header line."""

    def __init__(self, path: str, stream: IO[bytes], *beneath: IO[bytes]) -> None:
        self.path = path
        self.header = COLUMNS
        self._text = io.TextIOWrapper(cast(BinaryIO, stream), "utf-8", errors="surrogateescape")
        self._beneath = beneath
        self._line = 0
        self.comments: tuple[str, ...] = ()
        """Those above the first row."""
        self._first: str | None = None
        comments: list[str] = []
        with Readable(path):
            for text in self._text:
                self._line += 1
                if text.lstrip().startswith(";"):
                    comments.append(text.strip())
                elif text.strip():
                    self._first = text
                    break
        self.comments = tuple(comments)

    def close(self) -> None:
        self._text.close()
        for stream in self._beneath:
            stream.close()

    def blocks(self, skip_bad: list[TraceError] | None = None) -> Iterator[Block]:
        lines: list[int] = []
        block = Block([], lines)
        try:
            with Readable(self.path):
                text = self._first
                while text is not None:
                    if text.strip() and not text.lstrip().startswith(";"):
                        block.rows.append(text.split())
                        lines.append(self._line)
                        if len(block.rows) == _BLOCK_ROWS:
                            yield block
                            lines = []
                            block = Block([], lines)
                    text = next(self._text, None)
                    self._line += 1
        except TraceError as error:
            if block.rows:
                yield block
            if skip_bad is None:
                raise error from error.__cause__
            skip_bad.append(error)
            return
        if block.rows:
            yield block
