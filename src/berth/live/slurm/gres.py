"""Slurm's generic resources, `gpu:v100:2(IDX:0-1),shard:8`, as values: what is wanted, there or used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Gres", "base_type", "gres_list", "indices"]

_ITEM = re.compile(r"(?:gres[:/])?([a-z_]\w*)(?::([A-Za-z][\w.-]*))?(?:[:=](\d+))?(?:\((.*)\))?")
_NUMBERED = re.compile(r"(.+?)_(\d+)")
_EMPTY = frozenset({"", "(null)", "N/A", "none"})


class Gres(NamedTuple):
    """One kind of a resource, and how many of it."""

    name: str
    """`gpu`, `shard`, or whatever else the cluster has."""
    kind: str
    """Its type, such as `v100`; empty: none or any."""
    count: int  # type: ignore[assignment]  # it hides tuple.count, which this does not need
    where: tuple[int, ...] = ()
    """The indices of those that are meant, where they are told."""


def gres_list(text: str) -> tuple[Gres, ...]:
    """Read a list of resources; ValueError for an item that is none."""
    return () if text in _EMPTY else tuple(_items(text))


def _items(text: str) -> Iterator[Gres]:
    for item in _split(text):
        found = _ITEM.fullmatch(item.strip())
        if found is None:
            raise ValueError(f"no generic resource: {item[:80]!r}")
        name, kind, count, details = found.groups()
        where: tuple[int, ...] = ()
        if details and details.startswith("IDX:"):
            where = indices(details.removeprefix("IDX:"))
        yield Gres(name, kind or "", 1 if count is None else int(count), where)


def _split(text: str) -> Iterator[str]:
    """The items between the commas that stand outside brackets."""
    depth, begin = 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]


def indices(text: str) -> tuple[int, ...]:
    """The numbers of `0-2,5` or `1-9:2`; none of `N/A`. ValueError where it is neither."""
    if text in _EMPTY:
        return ()
    found: list[int] = []
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        found.extend(range(int(first), int(last or first) + 1, int(step or 1)))
    return tuple(found)


def base_type(kind: str) -> str:
    """The type that GPUs share of which each has one of its own: `a100` of `a100_3`."""
    numbered = _NUMBERED.fullmatch(kind)
    return kind if numbered is None else numbered[1]
