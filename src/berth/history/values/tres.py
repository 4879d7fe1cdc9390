"""Slurm's trackable resources, `cpu=4,gres/gpu:v100=2,mem=4000M`, into numbers.

An older Slurm writes `gpu:v100:2` for each node instead. A value of 2**32 − 2, 2**64 − 2 or near one of them stands for
none; what nothing else tells either is not known, which is not 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from berth.history.values.gres import gres_list

__all__ = ["Resources", "resources"]

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
    """Of `gpu`, `cpu` and `mem` those, each after a space, that stand there with a mark for none and nothing beside."""


def resources(text: str, names: Mapping[str, str] | None = None) -> Resources:
    """Read a list of resources; with `names`, what the numbers of a database's list stand for.

    What it does not know is passed over: clusters count licences, energy and much else.
    """
    gpus = shards = cpus = mem_mib = a_node = nodes = 0
    marked: set[str] = set()
    models: dict[str, int] = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not equals:
            for old in gres_list(item.strip(), odd=True):
                if old.name == "gpu":
                    a_node += old.count
                    models[old.kind] = models.get(old.kind, 0) + old.count
            continue
        name = (names or {}).get(name.strip(), name.strip()).lower()
        size = _SIZE.fullmatch(value.strip())
        if size is None:
            continue
        number = int(float(size[1]))
        if number > MOST and (name != "mem" or number >= 2**63 or (number in MARKS_MIB and size[2] in "M")):
            marked.add("gpu" if name == "gres/gpu" or name.startswith("gres/gpu:") else name)
        elif name == "cpu":
            cpus = number
        elif name == "mem":
            mem_mib = round(float(size[1]) * _MIB[size[2]])
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
    told = {"gpu": gpus or a_node, "cpu": cpus, "mem": mem_mib}
    unknown = "".join(f" {name}" for name in sorted(marked & told.keys()) if not told[name])
    return Resources(gpus, model, shards, cpus, mem_mib, a_node, nodes, unknown)
