"""Dimensions of a history as SQL over `records`: what is grouped by, and what people call the groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from berth.statistics.accounting import UNKNOWN, check_dimensions

DIMENSION_SQL: Final = {
    "application": "application",
    "user": '"user"',
    "account": "account",
    "server": "virtual_cluster",
    "gpu": "gpu_model",
    "qos": "qos",
    "cluster": "cluster",
    "state": "state",
    "month": "strftime(make_timestamp(end_ms * 1000), '%Y-%m')",
    "day": "strftime(make_timestamp(end_ms * 1000), '%Y-%m-%d')",
}
_MOMENT = "make_timestamp(end_ms * 1000)"
# A month's name is made once a group, not once a row.
_GROUPED: Final = {
    **DIMENSION_SQL,
    "month": f"(date_part('year', {_MOMENT}) * 12 + date_part('month', {_MOMENT}) - 1)",
    "day": f"end_ms // {24 * 3_600_000}",
}
_NAMED: Final = {
    "month": "printf('%04d-%02d', {} // 12, {} % 12 + 1)",
    "day": f"strftime(make_timestamp({{}} * {24 * 3_600_000} * 1000), '%Y-%m-%d')",
}


def keys_of(by: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is grouped by, as columns of SQL named k0, k1 …, and what people call their values."""
    check_dimensions(by)
    keys = [f"{_GROUPED[name]} AS k{at}" for at, name in enumerate(by)]
    named = [
        _NAMED.get(name, f"CASE WHEN {{}} = '' THEN '{UNKNOWN}' ELSE {{}} END").replace("{}", f"k{at}")
        for at, name in enumerate(by)
    ]
    return keys, named
