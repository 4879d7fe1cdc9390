"""What a page shows as a CSV file."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from io import TextIOWrapper
from typing import Final

from fastapi.responses import StreamingResponse

from berth.files import plain_cell

MOST_ROWS: Final = 1_000_000
"""A file of attempts has at most this many rows."""
_PIECE_BYTES: Final = 1 << 18


def csv_file(name: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> StreamingResponse:
    """Return rows as a file of this name; they are read before this returns."""
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile(prefix="berth-export-"))
        text = TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text)
        writer.writerow(heads)
        writer.writerows(
            [plain_cell(value) if isinstance(value, str) else value for value in row] for row in rows
        )
        text.detach()
        open_file = stack.pop_all()
    length = file.tell()
    file.seek(0)

    def pieces() -> Iterator[bytes]:
        with open_file:
            while piece := file.read(_PIECE_BYTES):
                yield piece

    return StreamingResponse(
        pieces(),
        media_type="text/csv; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{name}.csv"',
            "Content-Length": str(length),
        },
    )
