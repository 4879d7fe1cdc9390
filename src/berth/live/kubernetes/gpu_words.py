"""How a pod says which part of a GPU it wants: in berth's own words, or in those of another project (`--compat`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from berth.errors import AskError
from berth.live.kubernetes import names
from berth.live.kubernetes.objects import Container, Pod
from berth.live.kubernetes.quantities import amount, cpu_milli, mem_mib, whole

MOST_GPUS = 1024
MOST_MIB = 1 << 24
"""Sixteen tebibytes: no card has more."""
WHOLE_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Wish:
    """What a pod wants of GPUs, as it was said."""

    gpus: int
    milli: int | None = None
    """Of each; None: it was not said."""
    mem_mib: int | None = None
    """Of each; None: it was not said."""
    mem_milli: int | None = None
    """Per mille of each card's memory, where it was said so."""
    models: tuple[str, ...] = ()
    exclusive: bool = False


Reader = Callable[[Pod, Mapping[str, int]], Wish | None]
"""Reads one project's words from a pod and its sums of resources; None where it uses none of them."""


def wish_of(pod: Pod, resources: Mapping[str, int], compat: str | None) -> Wish | None:
    """What the pod wants, in berth's words or in those of `compat`; None where it wants no GPU.

    Raises AskError for words that make no sense, and for two ways of saying it at once.
    """
    found = [("berth", _berth(pod, resources))]
    if compat is not None:
        found.append((compat, COMPAT[compat](pod, resources)))
    said = [(name, wish) for name, wish in found if wish is not None]
    if len(said) > 1:
        raise AskError(
            f"GPUs are asked for in the words of {said[0][0]} and of {said[1][0]}; use one of them"
        )
    return said[0][1] if said else None


def known_resources(compat: str | None) -> frozenset[str]:
    """The resources by which GPUs are asked for."""
    return _RESOURCES["berth"] | _RESOURCES.get(compat or "", frozenset())


def _berth(pod: Pod, resources: Mapping[str, int]) -> Wish | None:
    said = pod.metadata.annotations
    gpus = resources.get(names.RESOURCE, 0)
    asked = [key for key in _OWN if key in said]
    if not gpus:
        if asked:
            raise AskError(
                f"annotation {asked[0]} without the resource {names.RESOURCE}; ask for a number of GPUs in a"
                " container's limits"
            )
        return None
    milli = _number(said, names.ASKED_MILLI, WHOLE_MILLI)
    mem_mib = _number(said, names.ASKED_MEM_MIB, MOST_MIB, unit=" of MiB")
    exclusive = _flag(said, names.EXCLUSIVE)
    if exclusive and (milli is not None or mem_mib is not None):
        part = names.ASKED_MILLI if milli is not None else names.ASKED_MEM_MIB
        raise AskError(f"annotations {names.EXCLUSIVE} and {part} at once; a whole GPU has no part")
    _flag(said, names.BURST)
    return Wish(_gpus(gpus), milli, mem_mib, None, _models(said, names.MODELS), exclusive)


def _hami(pod: Pod, resources: Mapping[str, int]) -> Wish | None:
    mem, percent, cores = (
        resources.get(f"nvidia.com/{word}") for word in ("gpumem", "gpumem-percentage", "gpucores")
    )
    gpus = resources.get("nvidia.com/gpu", 0)
    if not gpus:
        if mem or percent or cores:
            raise AskError("nvidia.com/gpumem or gpucores without nvidia.com/gpu; ask for a number of GPUs")
        return None
    if mem and percent:
        raise AskError("nvidia.com/gpumem and nvidia.com/gpumem-percentage at once; use one of them")
    return Wish(
        _gpus(gpus),
        _percent(cores, "nvidia.com/gpucores"),
        _mib(mem, "nvidia.com/gpumem"),
        _percent(percent, "nvidia.com/gpumem-percentage"),
        _models(pod.metadata.annotations, "nvidia.com/use-gputype"),
    )


def _kai(pod: Pod, resources: Mapping[str, int]) -> Wish | None:
    said = pod.metadata.annotations
    gpus = resources.get("nvidia.com/gpu", 0)
    fraction, mem_mib = said.get("gpu-fraction"), _number(said, "gpu-memory", MOST_MIB, unit=" of MiB")
    devices = _number(said, "gpu-fraction-num-devices", MOST_GPUS) or 1
    if fraction is None and mem_mib is None:
        return Wish(_gpus(gpus)) if gpus else None
    if gpus or (fraction is not None and mem_mib is not None):
        raise AskError("two of gpu-fraction, gpu-memory and nvidia.com/gpu at once; use one of them")
    if fraction is None:
        return Wish(devices, None, mem_mib)
    if not re.fullmatch(r"0?\.\d{1,6}|1(\.0*)?|0\.\d{1,6}", fraction) or not 0 < float(fraction) <= 1:
        raise AskError(f"annotation gpu-fraction is '{fraction[:40]}'; expected a part of a GPU such as 0.5")
    milli = max(1, round(float(fraction) * WHOLE_MILLI))
    return Wish(devices, milli, None, milli)


def _alibaba(pod: Pod, resources: Mapping[str, int]) -> Wish | None:
    mem_gib, gpus = resources.get("aliyun.com/gpu-mem", 0), resources.get("aliyun.com/gpu-count", 0)
    if not mem_gib:
        return Wish(_gpus(gpus)) if gpus else None
    return Wish(_gpus(gpus or 1), None, _mib(mem_gib * 1024, "aliyun.com/gpu-mem"))


def _volcano(pod: Pod, resources: Mapping[str, int]) -> Wish | None:
    new, old = resources.get("volcano.sh/vgpu-memory"), resources.get("volcano.sh/gpu-memory")
    if new and old:
        raise AskError("volcano.sh/vgpu-memory and volcano.sh/gpu-memory at once; use one of them")
    cores, percent = (
        resources.get("volcano.sh/vgpu-cores"),
        resources.get("volcano.sh/vgpu-memory-percentage"),
    )
    gpus = resources.get("volcano.sh/vgpu-number", 0) or resources.get("volcano.sh/gpu-number", 0)
    if not (gpus or new or old or cores or percent):
        return None
    return Wish(
        _gpus(gpus or 1),
        _percent(cores, "volcano.sh/vgpu-cores"),
        _mib(new or old, "volcano.sh/vgpu-memory"),
        _percent(percent, "volcano.sh/vgpu-memory-percentage"),
    )


COMPAT: dict[str, Reader] = {"hami": _hami, "kai": _kai, "alibaba": _alibaba, "volcano": _volcano}
"""Whose words `--compat` reads."""

_OWN = (names.ASKED_MILLI, names.ASKED_MEM_MIB, names.MODELS, names.EXCLUSIVE, names.BURST)
_RESOURCES = {
    "berth": frozenset({names.RESOURCE}),
    "hami": frozenset(f"nvidia.com/{word}" for word in ("gpu", "gpumem", "gpumem-percentage", "gpucores")),
    "kai": frozenset({"nvidia.com/gpu"}),
    "alibaba": frozenset({"aliyun.com/gpu-mem", "aliyun.com/gpu-count"}),
    "volcano": frozenset(
        f"volcano.sh/{word}"
        for word in (
            "vgpu-number",
            "vgpu-memory",
            "vgpu-memory-percentage",
            "vgpu-cores",
            "gpu-number",
            "gpu-memory",
        )
    ),
}


def _gpus(gpus: int) -> int:
    if gpus > MOST_GPUS:
        raise AskError(f"{gpus} GPUs; expected at most {MOST_GPUS}")
    return gpus


def _mib(mem_mib: int | None, where: str) -> int | None:
    if mem_mib is not None and mem_mib > MOST_MIB:
        raise AskError(f"{where} is {mem_mib} MiB; expected at most {MOST_MIB}")
    return mem_mib or None


def _percent(percent: int | None, where: str) -> int | None:
    """Per mille of a percentage; None where it was not said."""
    if percent is not None and percent > 100:
        raise AskError(f"{where} is {percent}; expected 1 to 100")
    return percent * 10 if percent else None


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
