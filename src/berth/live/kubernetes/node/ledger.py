"""What pods use of their GPUs: gathered as allotments are taken back, and kept for the history and for profiles."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from berth.files import whole_file
from berth.live.kubernetes.node.allotments import CLOSED_MIB, Allotment, Holder, Part
from berth.live.kubernetes.node.api_server import Pod
from berth.live.kubernetes.placements import Measured
from berth.partition import Partition

SEEN = "seen"
"""Folder of what `recording` is to take in: a file a pod."""


def usage_of(parts: Sequence[Partition]) -> Measured:
    """Of the regions of one allotment; those of GPUs that are not its own do not count."""
    own = [part for part in parts if part.limit_bytes >> 20 != CLOSED_MIB]
    needed = [
        refusal.limit_bytes - min(refusal.left_bytes, refusal.limit_bytes) + refusal.asked_bytes
        for part in own
        for refusal in part.refusals
    ]
    peak = max((part.peak_bytes for part in own), default=0)
    return Measured(-(-peak >> 20), sum(part.refused for part in own), -(-max(needed, default=0) >> 20))


@dataclass(slots=True)
class _Open:
    parts: list[Part] = field(default_factory=list)
    usage: Measured = field(default_factory=Measured)


class Ledger:
    """By the key of a pod or claim: what was taken back of it and not asked for yet."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def ending(self, allotment: Allotment, parts: Sequence[Partition]) -> None:
        """Note what an allotment used, which is being taken back."""
        entry = self._open.setdefault(key_of(allotment.holder), _Open())
        entry.parts += [part for part in allotment.parts if part not in entry.parts]
        entry.usage += usage_of(parts)

    def take(self, keys: Set[str]) -> tuple[tuple[Part, ...], Measured]:
        """What these used together; it is forgotten here."""
        found = [self._open.pop(key) for key in sorted(keys & self._open.keys())]
        total = sum((each.usage for each in found), Measured())
        return tuple(part for each in found for part in each.parts), total

    def keys(self) -> set[str]:
        return set(self._open)


def key_of(holder: Holder) -> str:
    """What tells holders apart: the uid of a pod, or the name of a claim, by which pods name it."""
    return holder.uid if holder.container else f"{holder.namespace}/{holder.name}"


def keys_of(pod: Pod) -> set[str]:
    """The keys of all that a pod may hold."""
    return {pod.uid, *(f"{pod.namespace}/{claim}" for claim in pod.claims)}


@dataclass(frozen=True, slots=True)
class Seen:
    """A pod that has ended, or runs on, as `recording` takes it in."""

    pod: Pod
    parts: tuple[Part, ...]
    usage: Measured
    model: str
    card_mib: int
    """Of the first of its GPUs, as NVML has them."""
    now_ms: int
    since_ms: int | None = None
    """Of a pod that runs on: samples from then on are new. None: it has ended."""


def ran_out_of_memory(pod: Pod, usage: Measured) -> bool:
    """Whether a pod failed after calls for memory were refused."""
    return pod.phase == "Failed" and usage.refused > 0


def keep_seen(state: Path, seen: Seen) -> None:
    """Write it down for `recording`, whole or not at all."""
    folder = state / SEEN
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / f"{seen.pod.uid}.json") as temporary:
        temporary.write_bytes(msgspec.json.encode(seen))
