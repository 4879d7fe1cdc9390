"""Which part of a GPU a pod asks for, and what it takes of a node's resources."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from berth.errors import AskError
from berth.live.kubernetes import names
from berth.live.kubernetes.objects import Container, Pod
from berth.live.kubernetes.quantities import amount, cpu_milli, mem_mib, whole
from berth.live.local.request import SHARED_MILLI, WHOLE

MOST_GPUS = 1024
MOST_MIB = 1 << 24
"""Sixteen tebibytes: no card has more."""
COUNTED = frozenset({"cpu", "memory", names.RESOURCE, names.ASKED_MILLI, names.ASKED_MEM_MIB})
"""The resources that berth counts itself."""
_ASKED = (
    names.ASKED_MILLI,
    names.ASKED_MEM_MIB,
    names.MAX_MEM_MIB,
    names.MODELS,
    names.BURST,
    names.INTERACTIVE,
)


class GpuAsk(NamedTuple):
    """What a pod asks for of GPUs."""

    gpus: int = 0
    milli: int = WHOLE
    """Of each."""
    mem_mib: int = 0
    """Of each; 0: not counted, for the whole GPU is asked for, or `mem_milli` says it."""
    mem_milli: int = 0
    """Per mille of the memory of each card; 0: `mem_mib` says it."""
    models: tuple[str, ...] = ()


def gpu_ask_of(pod: Pod, resources: Mapping[str, int]) -> GpuAsk:
    """What the pod asks for of GPUs, by its annotations and its sums of resources. Raises AskError."""
    said, gpus = pod.metadata.annotations, resources.get(names.RESOURCE, 0)
    if not gpus:
        if asked := [key for key in _ASKED if key in said or resources.get(key)]:
            kind = "annotation" if asked[0] in said else "resource"
            raise AskError(
                f"{kind} {asked[0]} without the resource {names.RESOURCE}; ask for a number of GPUs in a"
                " container's limits"
            )
        return GpuAsk()
    if gpus > MOST_GPUS:
        raise AskError(f"{gpus} GPUs; expected at most {MOST_GPUS}")
    milli = _of_each(resources, gpus, names.ASKED_MILLI, WHOLE, _number(said, names.ASKED_MILLI, WHOLE))
    asked_mib = _number(said, names.ASKED_MEM_MIB, MOST_MIB, unit=" of MiB")
    mem_mib = _of_each(resources, gpus, names.ASKED_MEM_MIB, MOST_MIB, asked_mib)
    _number(said, names.MAX_MEM_MIB, MOST_MIB, unit=" of MiB")
    _flag(said, names.BURST)
    _flag(said, names.INTERACTIVE)
    if milli is None:  # as on one machine: ten of those that ask for memory alone share a GPU
        milli = SHARED_MILLI if mem_mib else WHOLE
    mem_milli = milli if mem_mib is None and milli < WHOLE else 0  # its part of the memory, too
    return GpuAsk(gpus, milli, mem_mib or 0, mem_milli, _models(said, names.MODELS))


def _of_each(resources: Mapping[str, int], gpus: int, key: str, most: int, said: int | None) -> int | None:
    """What a resource asks for of each GPU, else what the annotation of its name said."""
    if not (total := resources.get(key, 0)):
        return said
    each, rest = divmod(total, gpus)
    if rest or each > most:
        raise AskError(
            f"{total} of resource {key} for {gpus} GPUs; expected the same whole number of each, at most {most}"
        )
    if said not in (None, each):
        raise AskError(
            f"annotation {key} is '{said}', and resource {key} is {each} of each GPU; use one of them"
        )
    return each


def _number(said: Mapping[str, str], key: str, most: int, *, unit: str = "") -> int | None:
    text = said.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,12}", text) or not 1 <= int(text) <= most:
        raise AskError(
            f"annotation {key} is '{text[:40]}'; expected a whole number{unit} from 1 to {most}, without a unit"
        )
    return int(text)


def _flag(said: Mapping[str, str], key: str) -> bool:
    text = said.get(key, "false")
    if text not in ("true", "false"):
        raise AskError(f"annotation {key} is '{text[:40]}'; expected true or false")
    return text == "true"


def _models(said: Mapping[str, str], key: str) -> tuple[str, ...]:
    if key not in said:
        return ()
    found = tuple(sorted({part.strip() for part in said[key].split(",") if part.strip()}))
    if not found or len(found) > 32 or any(len(part) > 63 for part in found):
        raise AskError(
            f"annotation {key} is '{said[key][:40]}'; expected 1 to 32 GPU models, separated by commas"
        )
    return found


def pod_resources(pod: Pod) -> Iterator[tuple[str, int]]:
    """Each resource that the pod takes while it runs, with its whole amount: what containers and sidecars ask for
    together, or the largest container that initialises, whichever is more. CPU is in milli, memory in MiB.

    A container counts with what it has if a resize has not taken that away yet. What the pod asks for as a whole
    replaces what its containers do.
    """
    has = {each.name: each.resources.requests for each in pod.status.container_statuses if each.resources}
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    for container in pod.spec.init_containers:
        asked = _of_container(container, has)
        stays = container.restart_policy == "Always"
        for key, value in asked.items():
            most[key] = max(most.get(key, 0), running.get(key, 0) + value)
            if stays:
                running[key] = running.get(key, 0) + value
    for container in pod.spec.containers:
        for key, value in _of_container(container, has).items():
            running[key] = running.get(key, 0) + value
    found = {key: max(running.get(key, 0), most.get(key, 0)) for key in running.keys() | most.keys()}
    if (whole_pod := pod.spec.resources) is not None:
        found |= dict(_asked(whole_pod.requests, whole_pod.limits))
    for key, value in _asked(pod.spec.overhead, {}):
        found[key] = found.get(key, 0) + value
    yield from found.items()


def _of_container(container: Container, has: Mapping[str, Mapping[str, str | int | float]]) -> dict[str, int]:
    asked = dict(_asked(container.resources.requests, container.resources.limits))
    for key, value in _asked(has.get(container.name, {}), {}):
        asked[key] = max(asked.get(key, 0), value)
    return asked


def _asked(
    requests: Mapping[str, str | int | float], limits: Mapping[str, str | int | float]
) -> Iterator[tuple[str, int]]:
    for key in {**limits, **requests}:
        text = requests.get(key, limits.get(key, 0))
        if key == "cpu":
            yield key, cpu_milli(text)
        elif key == "memory":
            yield key, mem_mib(text)
        else:
            amount(text)
            yield key, whole(text)
