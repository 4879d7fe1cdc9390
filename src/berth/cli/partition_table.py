"""Partitions as a table for a terminal and as lines for a pipe."""

from __future__ import annotations

from rich.table import Table

from berth.partition import Partition, Unreadable
from berth.partition.sizes import size_text

_WIDE = 120
"""Columns of a terminal that has room for all of the table."""


def partition_table(found: list[Partition], used_pct: dict[str, float], columns: int) -> Table:
    """A narrow terminal gets what fits; `--json` has all."""
    wide = columns >= _WIDE
    rest = ("peak", "processes", "refused", "last refused") if wide else ("refused",)
    plus = any(one.burst and one.core_pct for one in found)
    table = Table(
        "partition",
        "GPU",
        "limit",
        "in use",
        "share",
        "GPU time",
        *rest,
        caption="+: may use time that no other partition wants (--burst)" if plus else None,
        caption_justify="left",
    )
    for one in found:
        cells = [*_amounts(one), _time_text(one, used_pct)]
        if wide:
            cells += [
                size_text(one.peak_bytes),
                str(len(one.processes)),
                str(one.refused),
                _last_refused(one),
            ]
        else:
            cells.append(str(one.refused))
        table.add_row(*cells)
    return table


def _last_refused(one: Partition) -> str:
    if not one.refusals:
        return ""
    last = one.refusals[-1]
    return f"{last.command} {last.call} {size_text(last.asked_bytes)}, {size_text(last.left_bytes)} left"


def _amounts(one: Partition) -> list[str]:
    """Name, GPU, limit, use and share."""
    share = f"{one.core_pct} %{' +' if one.burst else ''}" if one.core_pct else "-"
    if one.hardware is not None:
        share = one.hardware.text
    if one.priority != "normal":
        share = f"{share}, {one.priority}" if share != "-" else one.priority
    return [one.name, one.uuid[:8], size_text(one.limit_bytes), size_text(one.used_bytes), share]


def _time_text(one: Partition, used_pct: dict[str, float]) -> str:
    if not one.core_pct:
        return "-"
    key = one.name + one.uuid
    return f"{used_pct[key]:.0f} %" if key in used_pct else f"{one.gpu_ns / 1e9:.1f} s"


def partition_lines(found: list[Partition], used_pct: dict[str, float], clock: str) -> list[str]:
    """One line a partition, for a pipe or a file: the words of the table after the time of day."""
    return [
        "  ".join([clock, *_amounts(one), _time_text(one, used_pct), f"{one.refused} refused"])
        for one in found
    ]


def unreadable_text(region: Unreadable) -> str:
    """Why a region is not in the table."""
    if region.open_to is not None:
        what = f"the partition '{region.name}' of GPU {region.uuid[:8]}"
        return f"{what} is not open to this user: it is open to {region.open_to}"
    return f"the partition '{region.name}' cannot be read: {region.why}"
