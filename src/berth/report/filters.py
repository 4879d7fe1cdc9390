"""The data of a page that is filtered within the page: exact sums by day and four dimensions, and a sample of waits."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from berth.statistics.accounting import UNKNOWN
from berth.statistics.tables import FACETS, Tables

__all__ = ["Filters", "filters_of"]

MOST_CELLS: Final = 60_000
"""So many sums take 2 MB of the page; where days give more, weeks are added up, then months."""
SAMPLED: Final = 20_000
"""Attempts of which waits are told: a median of so many is within 1 % of the rank."""
_UNITS: Final = ("day", "week", "month")
_SUMS: Final = ("tries", "held", "wasted", "measured", "idle")


@dataclass(frozen=True, slots=True)
class Filters:
    """What the page's script reads."""

    unit: str
    """`day`, `week` or `month`: what dates are told apart by."""
    cells: int
    sampled: int
    json: Markup
    """Safe inside a script element."""


def filters_of(tables: Tables) -> Filters | None:
    """The data; None where there are too many users, accounts and applications even by month, or no attempt."""
    for unit in _UNITS:
        cells = tables.cells(unit, MOST_CELLS)
        if cells is not None:
            break
    else:
        return None
    if not len(cells["day"]):
        return None
    sample = tables.sample(SAMPLED)
    if unit != "day":  # a sampled attempt lies in the unit that holds its day
        days = np.unique(cells["day"])
        sample["day"] = days[np.clip(np.searchsorted(days, sample["day"], "right") - 1, 0, None)]
    names: dict[str, list[str]] = {}
    columns: dict[str, NDArray[Any]] = {}
    for name in FACETS:
        texts = [np.asarray(part[name], dtype=object).astype(str) for part in (cells, sample)]
        known, places = np.unique(np.concatenate(texts), return_inverse=True)
        names[name] = [text or UNKNOWN for text in known.tolist()]
        columns[name] = places[: len(texts[0])].astype("<u4")
        columns[f"sample.{name}"] = places[len(texts[0]) :].astype("<u4")
    columns["day"], columns["sample.day"] = (part["day"].astype("<i4") for part in (cells, sample))
    for name in _SUMS:
        columns[name] = cells[name].astype("<f8")
    columns["sample.wait_s"] = sample["wait_s"].astype("<f4")
    told, data = _packed(columns)
    content = {
        "unit": unit,
        "names": names,
        "columns": told,
        "data": base64.b64encode(gzip.compress(data, 9, mtime=0)).decode(),
    }
    text = json.dumps(content, ensure_ascii=False)
    for character in "<>&":  # in JSON these stand only inside strings
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Filters(unit, len(cells["day"]), len(sample["day"]), Markup(text))


def _packed(columns: dict[str, NDArray[Any]]) -> tuple[dict[str, tuple[str, int, int]], bytes]:
    """Columns one behind the other, each from a multiple of 8 bytes on: type, first byte and length of each."""
    told: dict[str, tuple[str, int, int]] = {}
    parts: list[bytes] = []
    at = 0
    for name, column in columns.items():
        data = column.tobytes()
        told[name] = (column.dtype.str[1:], at, len(column))
        parts += [data, b"\0" * (-len(data) % 8)]
        at += len(data) + -len(data) % 8
    return told, b"".join(parts)
