"""Batches to place at once, from a JSON file or made up by a seed.

The file is `{"batches": [{"name": …, "machines": […], "instances": […]}]}`, or one such batch alone. A machine
has `gpus` and, where told, `name`, `model`, `cpu_milli`, `mem_mib`, `gpu_mem_mib` and `free_milli`: what is left
of each GPU, all by default (CPU and memory are what is left). An instance has `gpus` and, where told, `id`,
`milli` (of each GPU; below 1000 only of one), `cpu_milli`, `mem_mib`, `gpu_mem_mib` and `models`, a list.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from berth.cluster import Cluster
from berth.errors import BerthError, TraceError
from berth.model import GpuModel, GpuSlot, Job, Node, Placement, Share
from berth.traces import read, read_nodes

MACHINE_KEYS = {"name", "gpus", "model", "cpu_milli", "mem_mib", "gpu_mem_mib", "free_milli"}
BATCH_KEYS = {"name", "machines", "instances"}
INSTANCE_KEYS = {"id", "gpus", "milli", "cpu_milli", "mem_mib", "gpu_mem_mib", "models"}


@dataclass(frozen=True, slots=True)
class PlacingTask:
    """Instances that wait, and machines that may be in use already."""

    name: str
    nodes: tuple[Node, ...]
    free_milli: tuple[tuple[int, ...], ...]
    """What is left of each GPU of each node."""
    jobs: tuple[Job, ...]

    def cluster(self) -> Cluster:
        """The machines, with jobs on them that hold what is not free."""
        cluster = Cluster(self.nodes)
        for node, gpus in enumerate(self.free_milli):
            for index, left in enumerate(gpus):
                if left < 1000:
                    job = Job(f"held:{node}:{index}", 0, 2**60, share=Share(1000 - left))
                    cluster.place(Placement(job, (GpuSlot(node, index),), job.share))
        return cluster


def random_batches(
    count: int, *, instances: int = 40, machines: int = 12, seed: int = 0
) -> list[PlacingTask]:
    """Batches of jobs and machines like those of `synthetic:pai-like`, the machines about half in use.

    Of each GPU nothing, quarters or all is left, of CPU and memory a fifth to all: so that not everything fits.
    """
    kinds = [node for node in read_nodes("synthetic:pai-like") if node.gpus]
    jobs = list(read(f"synthetic:pai-like?jobs=4000&seed={seed}"))
    batches = []
    for number in range(count):
        draw = random.Random(f"{seed}:{number}")
        nodes = [
            replace(
                node,
                name=f"machine-{at}",
                cpu_milli=round((node.cpu_milli or 0) * draw.uniform(0.2, 1)),
                mem_mib=round((node.mem_mib or 0) * draw.uniform(0.2, 1)),
            )
            for at, node in enumerate(draw.sample(kinds, machines))
        ]
        free = tuple(tuple(draw.choice((0, 250, 500, 750, 1000)) for _ in range(node.gpus)) for node in nodes)
        waiting = tuple(replace(job, submit_ms=0) for job in draw.sample(jobs, instances))
        batches.append(PlacingTask(f"{seed}:{number}", tuple(nodes), free, waiting))
    return batches


def read_batches(path: str | os.PathLike[str]) -> list[PlacingTask]:
    """The batches of a file. Raises TraceError that says at which batch and entry it is not as it should be."""
    name = os.fspath(path)
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise TraceError.unreadable(name, error) from error
    except (ValueError, RecursionError) as error:
        raise TraceError(name, f"a readable JSON file of batches ({error})") from error
    batches = content.get("batches", [content]) if isinstance(content, Mapping) else None
    if not isinstance(batches, list) or not batches:
        raise TraceError(name, 'a batch, or a list of them under "batches"')
    return [_batch(name, at, batch) for at, batch in enumerate(batches)]


def _batch(path: str, at: int, batch: Any) -> PlacingTask:
    where = f"batches[{at}]"
    if not isinstance(batch, Mapping) or not all(
        isinstance(batch.get(key), list) for key in ("machines", "instances")
    ):
        raise TraceError(path, 'an object with the lists "machines" and "instances"', column=where)
    if unknown := sorted(set(batch) - BATCH_KEYS):
        raise TraceError(
            path, "machines, instances and a name, nothing else", column=where, value=str(unknown)
        )
    nodes, free = [], []
    for number, machine in enumerate(batch["machines"]):
        here = f"{where}.machines[{number}]"
        node, left = _machine(path, here, number, machine)
        nodes.append(node)
        free.append(left)
    jobs = [
        _instance(path, f"{where}.instances[{number}]", number, instance)
        for number, instance in enumerate(batch["instances"])
    ]
    seen: dict[str, int] = {}
    for number, job in enumerate(jobs):
        if (other := seen.setdefault(job.id, number)) != number:
            here = f"{where}.instances[{number}].id"
            raise TraceError(path, f"an id other than that of instances[{other}]", column=here, value=job.id)
    task = PlacingTask(str(batch.get("name", at)), tuple(nodes), tuple(free), tuple(jobs))
    try:
        cluster = task.cluster()
        for job in jobs:
            cluster.request(job)
    except BerthError as error:
        raise TraceError(path, f"machines and instances that make sense: {error}", column=where) from error
    return task


def _machine(path: str, where: str, number: int, entry: Any) -> tuple[Node, tuple[int, ...]]:
    _check_keys(path, where, entry, MACHINE_KEYS)
    gpus = _number(path, where, entry, "gpus", 0, 64)
    model = (
        GpuModel(str(entry.get("model", "")), mem_mib=_number(path, where, entry, "gpu_mem_mib", 0))
        if gpus
        else None
    )
    free = entry.get("free_milli", [1000] * gpus)
    if (
        not isinstance(free, list)
        or len(free) != gpus
        or not all(type(left) is int and 0 <= left <= 1000 for left in free)
    ):
        raise TraceError(
            path, f"{gpus} whole numbers from 0 to 1000", column=f"{where}.free_milli", value=str(free)
        )
    amounts = [
        _number(path, where, entry, key, 0) if key in entry else None for key in ("cpu_milli", "mem_mib")
    ]
    name = str(entry.get("name", f"machine-{number}"))
    return Node(name, gpus, model, cpu_milli=amounts[0], mem_mib=amounts[1]), tuple(free)


def _instance(path: str, where: str, number: int, entry: Any) -> Job:
    _check_keys(path, where, entry, INSTANCE_KEYS)
    gpus = _number(path, where, entry, "gpus", 0, 64)
    milli = _number(path, where, entry, "milli", 1, 1000, default=1000)
    if gpus > 1 and milli < 1000:
        raise TraceError(
            path, f"1000, because it takes {gpus} GPUs", column=f"{where}.milli", value=str(milli)
        )
    models = entry.get("models", [])
    if not isinstance(models, list):
        raise TraceError(path, "a list of GPU models", column=f"{where}.models", value=str(models))
    return Job(
        str(entry.get("id", f"instance-{number}")),
        0,
        2**60,
        gpus=gpus,
        share=Share(milli, _number(path, where, entry, "gpu_mem_mib", 0)),
        cpu_milli=_number(path, where, entry, "cpu_milli", 0),
        mem_mib=_number(path, where, entry, "mem_mib", 0),
        models=tuple(str(model) for model in models),
    )


def _check_keys(path: str, where: str, entry: Any, keys: set[str]) -> None:
    if not isinstance(entry, Mapping):
        raise TraceError(path, "an object", column=where, value=str(entry))
    if "gpus" not in entry:
        raise TraceError(path, "the number of its GPUs", column=f"{where}.gpus")
    if unknown := sorted(set(entry) - keys):
        raise TraceError(path, f"no keys but {', '.join(sorted(keys))}", column=where, value=str(unknown))


def _number(
    path: str, where: str, entry: Mapping[str, Any], key: str, low: int, high: int = 2**40, default: int = 0
) -> int:
    value = entry.get(key, default)
    if type(value) is not int or not low <= value <= high:
        raise TraceError(
            path, f"a whole number from {low:,} to {high:,}", column=f"{where}.{key}", value=str(value)
        )
    return value
