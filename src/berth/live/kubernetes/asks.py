"""What a pod asks for, read from its spec and annotations and checked: user input, of which nothing may crash."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from berth.errors import AskError, LiveError
from berth.live.kubernetes import names
from berth.live.kubernetes.constraints import Constraint, constraint_of
from berth.live.kubernetes.gpu_words import gpu_ask_of, pod_resources
from berth.live.kubernetes.objects import Meta, Pod
from berth.live.local.request import LONGEST_NAME, duration_ms

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


@dataclass(frozen=True, slots=True)
class Ask:
    gpus: int
    milli: int
    mem_mib: int
    """Of each GPU; 0: not counted, for the whole GPU is asked for, or `mem_milli` says it."""
    mem_milli: int
    """Per mille of the memory of each card; 0: `mem_mib` says it."""
    cpu_milli: int
    host_mem_mib: int
    models: tuple[str, ...]
    """As the user wrote them: the start of a model's name will do."""
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


def ask_of(pod: Pod) -> Ask:
    """What the pod asks for. Raises AskError in words that its owner can act on."""
    _refuse_what_nobody_can(pod)
    said = pod.metadata.annotations
    resources = {key: value for key, value in pod_resources(pod) if value}
    owner = _text(said.get(names.APPLICATION, ""), names.APPLICATION) or controller_of(pod.metadata)
    _text(said.get(names.KIND, ""), names.KIND)
    limit_s = pod.spec.active_deadline_seconds
    return Ask(
        **gpu_ask_of(pod, resources)._asdict(),
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


def _refuse_what_nobody_can(pod: Pod) -> None:
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
