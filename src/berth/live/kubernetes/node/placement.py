"""What the scheduler wrote into a pod, as the parts of one of its containers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import msgspec

from berth.errors import KubernetesError
from berth.live.kubernetes.names import BURST, PLACED_UID, PLACEMENT
from berth.live.kubernetes.node.allotments import Part
from berth.live.kubernetes.node.api_server import Pod
from berth.live.kubernetes.placements import Placed
from berth.live.local.cards import Card


def parts_of(pod: Pod, container: str, cards: Mapping[int, Card]) -> tuple[Part, ...]:
    """The parts of one container, in the placement's order; KubernetesError says what is wrong with the placement.

    The placement lists the pod's GPUs. Containers take from it in their order in the pod, as many as each asks for.
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
        placed = msgspec.json.decode(text, type=Placed)
        if placed.node not in ("", pod.node):
            raise KubernetesError(
                f"the placement of {pod} is for node {placed.node}, and it is bound to {pod.node}; it starts when berth"
                " has one for it here"
            )
        if not all(gpu.mem_mib for gpu in placed.gpus):
            raise KubernetesError(f"the placement of {pod} gives it no memory: {text[:200]}")
        burst = pod.annotations.get(BURST, "").lower() in ("true", "1", "yes")
        return tuple(
            # By its UUID where the placement names one: a restart of the machine may number GPUs anew.
            Part(
                by_uuid[gpu.uuid] if gpu.uuid else gpu.index,
                gpu.mem_mib,
                gpu.milli,
                placed.best_effort,
                burst,
            )
            for gpu in placed.gpus
        )
    except KeyError as error:
        raise KubernetesError(
            f"the annotation {PLACEMENT} of {pod} names GPU {error}, and this node has no such GPU"
        ) from error
    except msgspec.DecodeError as error:
        raise KubernetesError(
            f"the annotation {PLACEMENT} of {pod} is no placement ({error}): {text[:200]}"
        ) from error
