"""Slurm's generic resources, `gpu:v100:2(IDX:0-1),shard:8`, as values: what is wanted, there or used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_KIND = re.compile(r"\w[\w.-]*")
_COUNT = re.compile(r"(\d+)([KMGTP]?)")
_TIMES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_DETAILS = re.compile(r"([^()]*)(?:\((.*)\))?")
_NUMBERED = re.compile(r"(.+?)_(\d+)")
_EMPTY = frozenset({"", "(null)", "N/A", "none"})


class Gres(NamedTuple):
    """One kind of a resource, and how many of it."""

    name: str
    """`gpu`, `shard`, or whatever else the cluster has."""
    kind: str
    """Its type, such as `v100` or `1g.5gb`; empty: none or any."""
    count: int  # type: ignore[assignment]  # it hides tuple.count, which this does not need
    where: tuple[int, ...] = ()
    """The indices of those that are meant, where they are told."""


def gres_list(text: str, *, odd: bool = False) -> tuple[Gres, ...]:
    """Read a list of resources. ValueError for an item that is none; with `odd` it is passed over."""
    return () if text in _EMPTY else tuple(_items(text, odd))


def same_gres(one: str, other: str) -> bool:
    """Whether two lists mean the same, in whatever order and form: Slurm wrote `gres:gpu:1`, and `gres/gpu:1` later."""
    return one == other or sorted(gres_list(one, odd=True)) == sorted(gres_list(other, odd=True)) != []


def _items(text: str, odd: bool) -> Iterator[Gres]:
    for item in _split(text):
        found = _DETAILS.fullmatch(item.strip().removeprefix("gres:").removeprefix("gres/"))
        words = [] if found is None else re.split("[:=]", found[1])
        words = [word for word in words if word != "no_consume"]
        size = _COUNT.fullmatch(words[-1]) if len(words) > 1 else None
        name, kind = words[0] if words else "", words[1:] if size is None else words[1:-1]
        if found is None or not _NAME.fullmatch(name) or len(kind) > 1 or not all(map(_KIND.fullmatch, kind)):
            if odd:
                continue
            raise ValueError(f"no generic resource: {item[:80]!r}")
        where: tuple[int, ...] = ()
        if found[2] and found[2].startswith("IDX:"):
            where = indices(found[2].removeprefix("IDX:"))
        count = 1 if size is None else int(size[1]) * _TIMES[size[2]]
        yield Gres(name, kind[0] if kind else "", count, where)


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
