"""Several GPUs of a node in the value of one label, such as `0-3.6`: label values take letters, digits, `-`, `_`, `.`
and at most 63 characters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from berth.errors import AskError

MOST_GPUS = 64
"""Of a node; a label that says more is a mistake."""
MOST_CHARACTERS = 63
_PART = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def label_of(indices: Iterable[int]) -> str:
    """The value of a label that names these GPUs. Raises AskError where it would be too long for a label."""
    there = sorted(set(indices))
    starts = [at for at, index in enumerate(there) if not at or there[at - 1] != index - 1]
    runs = [there[start:end] for start, end in pairwise([*starts, len(there)])]
    text = ".".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    if len(text) > MOST_CHARACTERS:
        raise AskError(
            f"GPUs {text} do not fit into a label of {MOST_CHARACTERS} characters; serve GPUs whose numbers follow"
            " each other"
        )
    return text


def indices_of(text: str) -> tuple[int, ...]:
    """The GPUs that a label's value names, in order. Raises AskError."""
    found: set[int] = set()
    for part in text.split(".") if text else ():
        said = _PART.fullmatch(part)
        first = int(said[1]) if said else 0
        last = int(said[2] or first) if said else -1
        if not 0 <= last - first < MOST_GPUS:
            raise AskError(f"'{text[:63]}' names no GPUs; expected numbers and ranges such as 0-3.6")
        found.update(range(first, last + 1))
    if len(found) > MOST_GPUS:
        raise AskError(f"'{text[:63]}' names {len(found)} GPUs; expected at most {MOST_GPUS}")
    return tuple(sorted(found))
