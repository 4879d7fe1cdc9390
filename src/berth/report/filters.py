"""The data of a page that is filtered within the page: exact sums by date and four facets, and a sample of waits."""

from __future__ import annotations

import base64
import json
import zlib
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from berth.statistics.accounting import UNKNOWN
from berth.statistics.cells import FACETS, Cells
from berth.statistics.tables import Tables

MOST_BYTES: Final = 3_900_000
"""What the sums may take packed, a third less than in the page; if days take more, weeks are added up, then months."""
SAMPLED: Final = 20_000
"""Attempts of which waits are given: their median is within 1 % of the rank."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What the page's script reads."""

    unit: str
    """`day`, `week`, `month` or `year`: what dates are grouped by."""
    cells: int
    sampled: int
    json: Markup
    """Safe inside a script element."""


def filters_of(tables: Tables) -> Filters | None:
    """The data, dates as fine as there is room for; None if there is no attempt, or no room even for years."""
    with closing(tables.cells(SAMPLED)) as units:
        for cells in units:
            if not len(cells.day):
                return None
            text = _text(cells)
            if text is not None:
                return Filters(cells.unit, len(cells.day), len(cells.sample_day), text)
    return None


def _text(cells: Cells) -> Markup | None:
    """Cells as JSON that can stand in a script element; None if they take more than there is room for."""
    days = np.unique(cells.day)
    day, sample_day = (np.searchsorted(days, each) for each in (cells.day, cells.sample_day))
    unit = _largest_unit(cells)
    held, wasted, measured = (cells.sums[name] // unit for name in ("held", "wasted", "measured"))
    new = np.diff(cells.group, prepend=-1) > 0
    columns = {
        **cells.combinations,
        "cells": np.bincount(cells.group, minlength=len(cells.combinations["user"])),
        # Within a combination the steps from one cell's date to the next are small, and small numbers pack well.
        "day": np.where(new, day, np.diff(day, prepend=0)),
        "tries": cells.sums["tries"],
        "held": held,
        "wasted": _part(wasted, held),
        "measured": _part(measured, held),
        "idle": np.rint(cells.sums["idle"] / unit).astype(np.int64),
        "sample.group": cells.sample_group,
        "sample.day": sample_day,
        "sample.wait_s": np.rint(cells.sample_wait_ms / 1000).astype(np.int64),
    }
    layout, data = _packed(columns)
    packed = _compressed(data)
    if len(packed) > MOST_BYTES:
        return None
    content = {
        "unit": cells.unit,
        "hour": 3_600_000_000 / unit,
        "days": days.tolist(),
        "names": {name: [text or UNKNOWN for text in cells.names[name]] for name in FACETS},
        "columns": layout,
        "data": base64.b64encode(packed).decode(),
    }
    text = json.dumps(content, ensure_ascii=False)
    for character in "<>&":  # in JSON these stand only inside strings
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


_GPU_SECOND: Final = 1_000_000
"""In ms and per mille of a GPU."""


def _largest_unit(cells: Cells) -> int:
    """The largest part of a GPU-second that divides all sums, in ms and per mille of a GPU.

    Idle time is a product of a fraction, and is rounded to this unit in each cell.
    """
    return int(
        np.gcd.reduce(
            [_GPU_SECOND, *(np.gcd.reduce(cells.sums[name]) for name in ("held", "wasted", "measured"))]
        )
    )


def _part(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.int64]:
    """A part of a sum, which is mostly nothing (0) or all of it (1); any other is stored with 1 added."""
    return np.where(part == whole, np.minimum(part, 1), np.where(part == 0, 0, part + 1))


def _packed(columns: dict[str, NDArray[np.int64]]) -> tuple[dict[str, tuple[int, int, int]], bytes]:
    """Columns of whole numbers one behind the other, of each all lowest bytes first, then all second ones, and so on.

    Told are how many bytes a number has, the first byte of the column and its length.
    """
    layout: dict[str, tuple[int, int, int]] = {}
    parts: list[bytes] = []
    at = 0
    for name, column in columns.items():
        width = max((int(column.max(initial=0)).bit_length() + 7) // 8, 1)
        layout[name] = (width, at, len(column))
        parts += [((column >> 8 * byte) & 255).astype(np.uint8).tobytes() for byte in range(width)]
        at += width * len(column)
    return layout, b"".join(parts)


def _compressed(data: bytes) -> bytes:
    """As gzip does it, but looking for runs only: bytes as varied as these have no longer repeats, and it is faster."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31, 9, zlib.Z_RLE)
    return packer.compress(data) + packer.flush()
