"""Slurm's short form of many host names, `gpu[01-03,07],login1`, into names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

NOBODY = frozenset({"", "None", "None assigned", "(null)", "Unknown"})
MOST_HOSTS = 100_000
"""A list that is said to hold more is taken to be broken."""

_PART = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")


def expand(text: str) -> tuple[str, ...]:
    """The names, in the order of the list; ValueError where it is none."""
    text = text.strip()
    if text in NOBODY:
        return ()
    names: list[str] = []
    position = 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None or text[part.end() : part.end() + 1] not in ("", ","):
            raise ValueError(f"no list of hosts: {text[:80]!r}")
        names.extend(_names(part.group()))
        if len(names) > MOST_HOSTS:
            raise ValueError(f"a list of more than {MOST_HOSTS:,} hosts: {text[:80]!r}")
        position = part.end() + 1
    return tuple(names)


def _names(part: str) -> Iterator[str]:
    fixed = _BRACKETS.split(part)
    texts, ranges = fixed[::2], [list(_numbers(group)) for group in fixed[1::2]]
    for numbers in product(*ranges):
        yield texts[0] + "".join(number + text for number, text in zip(numbers, texts[1:], strict=True))


def _numbers(group: str) -> Iterator[str]:
    for item in group.split(","):
        first, dash, last = item.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"no range of hosts: {group[:80]!r}")
        numbers = range(int(first), int(last or first) + 1)
        if len(numbers) > MOST_HOSTS:
            raise ValueError(f"a list of more than {MOST_HOSTS:,} hosts: {group[:80]!r}")
        for number in numbers:
            yield str(number).zfill(len(first))
