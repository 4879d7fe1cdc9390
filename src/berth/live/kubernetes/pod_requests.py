"""What a pod asks for, read from its spec and annotations and checked, and the job that it is on the cards of today.

It is user input, of which nothing may crash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from berth.errors import AskError, LiveError
from berth.history.values.quantities import amount
from berth.live.kubernetes import names
from berth.live.kubernetes.constraints import Constraint, constraint_of
from berth.live.kubernetes.names import DRIVER
from berth.live.kubernetes.objects import Container, Meta, Pod
from berth.live.local.request import LONGEST_NAME, SHARED_MILLI, WHOLE, duration_ms
from berth.model import WHOLE_GPU, GpuModel, Job, Share

if TYPE_CHECKING:  # the nodes' agents do without
    from berth.knowledge.out_of_memory import MemoryNeed

_MIB = 1024**2
MOST = 2**50
"""No amount is more; what says so is cut to it, so that sums stay whole numbers of 64 bits."""


@lru_cache(maxsize=65_536)
def cpu_milli(text: str | int | float) -> int:
    """Milli of CPU, rounded up."""
    return _up(amount(text) * 1000)


@lru_cache(maxsize=65_536)
def mem_mib(text: str | int | float, *, down: bool = False) -> int:
    """MiB of bytes: rounded up for what is asked, down for what there is."""
    value = amount(text) / _MIB
    return min(MOST, value.numerator // value.denominator) if down else _up(value)


@lru_cache(maxsize=65_536)
def whole(text: str | int | float) -> int:
    """A count, rounded up."""
    return _up(amount(text))


def _up(value: Fraction) -> int:
    return min(MOST, -(-value.numerator // value.denominator))


def consumed_of(capacity: Mapping[str, str | int | float]) -> tuple[int | None, int | None]:
    """MiB and milli that `consumedCapacity` says, by short names or by those of the driver; None: all that the device
    has. Raises AskError for an amount that is no quantity."""
    mem = capacity.get("memory", capacity.get(f"{DRIVER}/memory"))
    milli = capacity.get("milli", capacity.get(f"{DRIVER}/milli"))
    return None if mem is None else mem_mib(mem, down=True), None if milli is None else whole(milli)


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


class _GpusAsked(NamedTuple):
    """The fields of an `Ask` that say which part of which GPUs."""

    gpus: int
    milli: int
    mem_mib: int
    mem_milli: int
    models: tuple[str, ...]


def _gpus_asked(pod: Pod, resources: Mapping[str, int]) -> _GpusAsked:
    """By a pod's annotations and its sums of resources. Raises AskError."""
    said, gpus = pod.metadata.annotations, resources.get(names.RESOURCE, 0)
    if not gpus:
        if asked := [key for key in _ASKED if key in said or resources.get(key)]:
            kind = "annotation" if asked[0] in said else "resource"
            raise AskError(
                f"{kind} {asked[0]} without the resource {names.RESOURCE}; ask for a number of GPUs in a"
                " container's limits"
            )
        return _GpusAsked(gpus=0, milli=WHOLE, mem_mib=0, mem_milli=0, models=())
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
    return _GpusAsked(gpus, milli, mem_mib or 0, mem_milli, models=_models(said, names.MODELS))


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
            yield key, whole(text)


MOST_GANG = 4096


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that start together or not at all."""

    namespace: str
    name: str
    size: int
    """How many pods; 0: its PodGroup says."""
    group: str = ""
    """The API group of that PodGroup; empty where the pods' annotations say the size."""

    @property
    def key(self) -> tuple[str, str]:
        """What tells gangs apart: the name in an annotation has no slash, so that it is never that of a PodGroup."""
        return self.namespace, f"{self.group}/{self.name}" if self.group else self.name

    @property
    def title(self) -> str:
        return f"{'PodGroup' if self.group else 'gang'} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """What a pod asks for."""

    gpus: int
    milli: int
    """Of each."""
    mem_mib: int
    """Of each; 0: not counted, for the whole GPU is asked for, or `mem_milli` says it."""
    mem_milli: int
    """Per mille of the memory of each card; 0: `mem_mib` says it."""
    models: tuple[str, ...]
    """As the user wrote them: the start of a model's name will do."""
    cpu_milli: int
    host_mem_mib: int
    constraint: Constraint
    application: str
    """By which profiles and run times are learned: what it says, else its kind, else its controller."""
    owner: str
    """Whose pods are alike: the application that it says, or its controller. Empty for a pod of its own."""
    gang: Gang | None
    priority: int
    estimate_ms: int | None
    time_limit_ms: int | None
    new_node_ms: int | None
    """How long it waits for room before an autoscaler may make a node for it; None: for ever."""


def request_of(pod: Pod) -> PodRequest:
    """What the pod asks for. Raises AskError in words that its owner can act on."""
    _refuse_impossible(pod)
    said = pod.metadata.annotations
    resources = {key: value for key, value in pod_resources(pod) if value}
    owner = _text(said.get(names.APPLICATION, ""), names.APPLICATION) or controller_of(pod.metadata)
    _text(said.get(names.KIND, ""), names.KIND)
    limit_s = pod.spec.active_deadline_seconds
    return PodRequest(
        **_gpus_asked(pod, resources)._asdict(),
        cpu_milli=resources.get("cpu", 0),
        host_mem_mib=resources.get("memory", 0),
        constraint=constraint_of(pod),
        application=names.application_of(pod.metadata.namespace, said, owner),
        owner=owner,
        gang=_gang(pod),
        priority=pod.spec.priority,
        estimate_ms=_time_ms(said, names.ESTIMATE),
        time_limit_ms=limit_s * 1000 if limit_s and 0 < limit_s < 2**40 else None,
        new_node_ms=_time_ms(said, names.NEW_NODE),
    )


def created_ms(meta: Meta) -> int:
    """When an object was created, ms since 1970; 0 where it does not say."""
    return moment_ms(meta.creation_timestamp) or 0


def moment_ms(text: str | None) -> int | None:
    """A time as the API writes it, in ms since 1970; None where there is none."""
    try:
        return round(datetime.fromisoformat(text or "").timestamp() * 1000)
    except ValueError:
        return None


_GANG = re.compile(r"(([A-Za-z0-9](?:[-A-Za-z0-9_.]{0,98}[A-Za-z0-9])?)/)?([0-9]{1,9})")


def _refuse_impossible(pod: Pod) -> None:
    """Refuse what the node could not carry out, whatever places the pod."""
    for each in pod.spec.init_containers:
        asked = {**each.resources.limits, **each.resources.requests}
        if each.restart_policy != "Always" and names.RESOURCE in asked:
            raise AskError(
                f"an init container asks for {names.RESOURCE}; the kubelet does not tell berth's agent which GPU it"
                " gave to one. Ask in a container, or in a sidecar (restartPolicy: Always)"
            )


def controller_of(meta: Meta) -> str:
    """The object that makes pods like this one, such as `Job/train`; empty where there is none."""
    owners = (each for each in meta.owner_references if each.controller)
    return next((names.controller_name(each.kind, each.name) for each in owners), "")


def pod_group(pod: Pod) -> tuple[str, str] | None:
    own = pod.spec.scheduling_group
    if own is not None and own.pod_group_name:
        return names.OWN_GROUP, own.pod_group_name
    labels = pod.metadata.labels
    found = next((labels[key] for key in names.POD_GROUP_LABELS if labels.get(key)), None)
    return None if found is None else (names.PLUGINS_GROUP, found)


def _gang(pod: Pod) -> Gang | None:
    meta = pod.metadata
    text, group = meta.annotations.get(names.GANG), pod_group(pod)
    if group is not None:
        if text is not None:
            raise AskError(f"annotation {names.GANG} and a PodGroup: expected one of them")
        return Gang(meta.namespace, group[1], 0, group[0])
    if text is None:
        return None
    found = _GANG.fullmatch(text)
    size = int(found[3]) if found else 0
    if found is None or not 1 <= size <= MOST_GANG:
        raise AskError(
            f"annotation {names.GANG} is '{text[:60]}'; expected NAME/SIZE with a size from 1 to {MOST_GANG}, such"
            " as train/4"
        )
    name = found[2] or _group_by_labels(pod)
    if not name:
        raise AskError(
            f"annotation {names.GANG} is '{text}'; a size without a name is for pods of"
            f" {', '.join(names.GROUP_LABELS)}; expected NAME/SIZE, such as train/4"
        )
    return Gang(meta.namespace, name, size)


def _group_by_labels(pod: Pod) -> str:
    """The group that a pod's controller wrote into its labels, such as `LeaderWorkerSet:serve-0`; empty without one.
    The names of annotations have no colon."""
    labels = pod.metadata.labels
    for kind, (first, *more) in names.GROUP_LABELS.items():
        if first in labels:
            return f"{kind}:{'-'.join([labels[first], *(labels[key] for key in more if key in labels)])}"
    return ""


def _time_ms(said: Mapping[str, str], key: str) -> int | None:
    if (text := said.get(key)) is None:
        return None
    try:
        found = duration_ms(f"{text}s" if re.fullmatch(r"\d{1,12}", text) else text[:40], key)
    except (LiveError, OverflowError) as error:
        raise AskError(
            f"annotation {key} is '{text[:40]}'; expected seconds such as 600, or a time such as 2h"
        ) from error
    return min(found, 2**50)


def _text(text: str, where: str) -> str:
    if len(text) > LONGEST_NAME or not text.isprintable():
        raise AskError(f"annotation {where} has {len(text)} characters; at most {LONGEST_NAME} in one line")
    return text


class Cards:
    def __init__(self, models: Iterable[GpuModel]) -> None:
        self.models = frozenset(models)
        self.sizes_mib = sorted({model.mem_mib for model in self.models})
        """The memory of the different cards, the smallest first."""

    def called(self, words: Iterable[str]) -> tuple[str, ...]:
        """The names of the models that a user's words are about: equal, or beginning with one up to a hyphen. Words
        that are about none stay as they are, so that the job fits nowhere and says so."""
        words = tuple(words)
        starts = tuple(f"{word.lower()}-" for word in words)
        found = {model.name for model in self.models if f"{model.name.lower()}-".startswith(starts)}
        return tuple(sorted(found)) or words

    def variants(self, job: Job, request: PodRequest) -> Iterator[Job]:
        """The same job for each size of card, where it asks for a part of the memory: that much of it in MiB, and the
        models of that size alone."""
        allowed = self.called(request.models) or [model.name for model in self.models]
        for size_mib in self.sizes_mib:
            there = (model.name for model in self.models if model.mem_mib == size_mib)
            if models := sorted(name for name in there if name in allowed):
                mem_mib = max(request.mem_mib, size_mib * request.mem_milli // 1000)
                yield replace(job, models=tuple(models), share=Share(request.milli, mem_mib))


def with_memory(request: PodRequest, need: MemoryNeed, cards: Cards) -> PodRequest:
    """What a pod gets whose owner's pods ran out of GPU memory: as much as that one would have needed and a margin;
    after the third time whole GPUs, by itself, whatever profiles say of it."""
    largest_mib = max(cards.sizes_mib, default=0)
    if need.alone or (largest_mib and need.mib > largest_mib):
        return replace(request, milli=WHOLE_GPU.milli, mem_mib=0, mem_milli=0, application="")
    if request.milli == WHOLE_GPU.milli and not request.mem_mib and not request.mem_milli:
        return request
    return replace(request, mem_mib=max(request.mem_mib, need.mib))


def job_of(
    uid: str, namespace: str, submit_ms: int, request: PodRequest, labels: tuple[str, ...], cards: Cards
) -> Job:
    """The job of a pod. One that asks for a part of a card's memory is for the smallest cards first;
    `PodSite.look_for_other_card` offers it others."""
    job = Job(
        id=uid,
        submit_ms=submit_ms,
        work_ms=None,
        user=namespace,
        application=request.application,
        gpus=request.gpus,
        share=Share(request.milli, request.mem_mib),
        cpu_milli=request.cpu_milli,
        mem_mib=request.host_mem_mib,
        models=cards.called(request.models) if request.gpus else (),
        labels=labels,
        priority=request.priority,
        time_limit_ms=request.time_limit_ms,
        estimate_ms=request.estimate_ms,
        virtual_cluster=namespace,
        retries=0,  # its owner makes another pod
    )
    if request.gpus and request.mem_milli:
        if len(cards.sizes_mib) == 1 and not request.models:
            mem_mib = max(request.mem_mib, cards.sizes_mib[0] * request.mem_milli // 1000)
            return replace(job, share=Share(request.milli, mem_mib))
        return next(cards.variants(job, request), job)
    return job
