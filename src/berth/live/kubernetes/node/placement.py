"""What the scheduler wrote into a pod, as the parts of one of its containers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from berth.errors import KubernetesError
from berth.live.kubernetes.names import BURST, PLACED_UID, PLACEMENT
from berth.live.kubernetes.node.allotments import Part
from berth.live.kubernetes.node.cluster_api import Pod
from berth.live.local.cards import Card


def parts_of(pod: Pod, container: str, cards: Mapping[int, Card]) -> tuple[Part, ...]:
    """The parts of one container, in the placement's order; KubernetesError says what is wrong with the placement.

    The placement lists the pod's GPUs. Containers take from it in their order in the pod, as many as each asks for; an
    init container, which has ended when the others start, takes from the beginning.
    """
    parts = _placed(pod, {card.uuid: card.index for card in cards.values()})
    mine = next((each for each in pod.containers if each.name == container), None)
    if mine is None or mine.gpus < 1:
        raise KubernetesError(
            f"the container '{container}' of {pod} asks for no GPU; the kubelet says it has some"
        )
    start = 0
    for each in pod.containers:
        if each.name == container:
            break
        if not each.init and not mine.init:
            start += each.gpus
    found = parts[start : start + mine.gpus]
    if len(found) < mine.gpus:
        raise KubernetesError(
            f"the placement of {pod} has {len(parts)} GPUs, and its containers ask for more; it is from an older"
            " version of the pod, or written by hand"
        )
    if len({part.index for part in found}) < len(found):
        raise KubernetesError(f"the placement of {pod} names a GPU twice for the container '{container}'")
    return found


def digest_of(pod: Pod) -> str:
    """What tells a pod's placement from any other: the words by which its parts are made, in short."""
    said = [pod.annotations.get(key, "") for key in (PLACEMENT, BURST)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]


def _placed(pod: Pod, by_uuid: Mapping[str, int]) -> tuple[Part, ...]:
    text = pod.annotations.get(PLACEMENT)
    if text is None:
        raise KubernetesError(
            f"{pod} asks for GPUs and has no placement yet; it starts when berth has one for it: berth k8s why {pod}"
        )
    if pod.annotations.get(PLACED_UID) != pod.uid:
        raise KubernetesError(
            f"the placement of {pod} is for the uid {pod.annotations.get(PLACED_UID, 'of no pod')}, and this pod's is"
            f" {pod.uid}: it is another pod's, or written by hand"
        )
    try:
        told = json.loads(text)
        if (node := told.get("node", "")) not in ("", pod.node):
            raise KubernetesError(
                f"the placement of {pod} is for node {node}, and it is bound to {pod.node}; it starts when berth has"
                " one for it here"
            )
        best_effort = bool(told.get("best_effort", False))
        burst = pod.annotations.get(BURST, "").lower() in ("true", "1", "yes")
        return tuple(_part(gpu, by_uuid, best_effort=best_effort, burst=burst) for gpu in told["gpus"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KubernetesError(
            f"the annotation {PLACEMENT} of {pod} is no placement ({error!r}): {text[:200]}"
        ) from error


def _part(gpu: dict[str, Any], by_uuid: Mapping[str, int], *, best_effort: bool, burst: bool) -> Part:
    """By its UUID where the placement names one: a restart of the machine may number GPUs anew."""
    uuid = gpu.get("uuid")
    if uuid and uuid not in by_uuid:
        raise ValueError(f"this node has no GPU {uuid}")
    part = Part(
        by_uuid[uuid] if uuid else int(gpu["index"]),
        int(gpu["mem_mib"]),
        int(gpu["milli"]),
        best_effort,
        burst,
    )
    if part.mem_mib < 1 or not 0 <= part.milli <= 1000 or part.index < 0:
        raise ValueError(f"out of range: {gpu}")
    return part
