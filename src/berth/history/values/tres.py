"""Slurm's trackable resources, `cpu=4,gres/gpu:v100=2,mem=4000M`, into numbers; and generic resources,
`gpu:v100:2(IDX:0-1)`.

An older Slurm writes `gpu:v100:2` for each node instead. A value of 2**32 − 2, 2**64 − 2 or near one of them stands for
none; what nothing else tells either is not known, which is not 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

MOST: Final = 2**31 - 1
"""No job has more of anything that is counted; Slurm's marks for "none" and "infinite" lie above it."""
MOST_AMOUNT: Final = 10**15
"""No job has used more of anything that is measured, such as milliseconds or joules."""
MARKS_MIB: Final = range(2**32 - 3, 2**32)
"""The marks of 32 bits: as memory, which may be more, exactly these are none."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)[nc]?")
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}


class Resources(NamedTuple):
    """What a job asked for or was given, over all its nodes."""

    gpus: int = 0
    gpu_model: str = ""
    """The type that most of its GPUs have, where types are accounted for."""
    shards: int = 0
    cpus: int = 0
    mem_mib: int = 0
    gpus_a_node: int = 0
    """GPUs on each node, in the form of an older Slurm, which does not tell the total."""
    nodes: int = 0
    unknown: str = ""
    """Those of `gpu`, `cpu` and `mem`, each after a space, that have a mark for none and no other number."""


NO_RESOURCES: Final = Resources()


def resources(text: str, names: Mapping[str, str] | None = None) -> Resources:
    """Read a list of resources; with `names`, what the numbers of a database's list stand for.

    What it does not know is passed over: clusters count licences, energy and much else.
    """
    amounts: list[tuple[str, int]] = []
    per_node: list[tuple[str, int]] = []
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not equals:
            per_node += [
                (old.kind, old.count) for old in gres_list(item.strip(), odd=True) if old.name == "gpu"
            ]
            continue
        name = (names or {}).get(name.strip(), name.strip()).lower()
        if size := _SIZE.fullmatch(value.strip()):
            factor = _MIB[size[2]] if name == "mem" else 1.0
            amounts.append(
                (
                    name,
                    int(size[1]) if factor == 1.0 and size[1].isdecimal() else round(float(size[1]) * factor),
                )
            )
    return resources_of(amounts, per_node)


def resources_of(
    amounts: Iterable[tuple[str, int]], gpus_per_node: Iterable[tuple[str, int]] = ()
) -> Resources:
    """Add up amounts by their name (memory in MiB), and GPUs of each node by their type."""
    gpus = shards = cpus = mem_mib = a_node = nodes = 0
    marked: set[str] = set()
    models: dict[str, int] = {}
    for model, number in gpus_per_node:
        a_node += number
        models[model] = models.get(model, 0) + number
    for name, number in amounts:
        if number > MOST and (name != "mem" or number >= 2**63 or number in MARKS_MIB):
            marked.add("gpu" if name == "gres/gpu" or name.startswith("gres/gpu:") else name)
        elif name == "cpu":
            cpus = number
        elif name == "mem":
            mem_mib = number
        elif name == "gres/gpu":
            gpus = number
        elif name.startswith("gres/gpu:"):
            models[name[9:]] = models.get(name[9:], 0) + number
        elif name == "gres/shard" or name.startswith("gres/shard:"):
            shards += number
        elif name == "node":
            nodes = number
    model = max(models, key=lambda each: models[each], default="")
    gpus = gpus or (0 if a_node else sum(models.values()))
    known = {"gpu": gpus or a_node, "cpu": cpus, "mem": mem_mib}
    unknown = "".join(f" {name}" for name in sorted(marked & known.keys()) if not known[name])
    return Resources(gpus, model, shards, cpus, mem_mib, a_node, nodes, unknown)


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
