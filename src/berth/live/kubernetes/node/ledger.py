"""What pods used of their GPUs until they ended: gathered as allotments are taken back, and kept for the history."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from berth.files import whole_file
from berth.live.kubernetes.names import application_of
from berth.live.kubernetes.node.allotments import CLOSED_MIB, Allotment, Part
from berth.live.kubernetes.node.cluster_api import Pod
from berth.partition import Partition


@dataclass(frozen=True, slots=True)
class Usage:
    """What regions counted."""

    peak_mib: int = 0
    refused: int = 0
    needed_mib: int = 0
    """What would have been enough when a call was refused."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            max(self.peak_mib, other.peak_mib),
            self.refused + other.refused,
            max(self.needed_mib, other.needed_mib),
        )


def usage_of(parts: Sequence[Partition]) -> Usage:
    """Of the regions of one allotment; those of GPUs that are not its own do not count."""
    own = [part for part in parts if part.limit_bytes >> 20 != CLOSED_MIB]
    needed = [
        refusal.limit_bytes - min(refusal.left_bytes, refusal.limit_bytes) + refusal.asked_bytes
        for part in own
        for refusal in part.refusals
    ]
    peak = max((part.peak_bytes for part in own), default=0)
    return Usage(-(-peak >> 20), sum(part.refused for part in own), -(-max(needed, default=0) >> 20))


@dataclass(slots=True)
class _Open:
    parts: list[Part] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)


class Ledger:
    """By the uid of a pod or claim: what was taken back of it and not asked for yet."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self.claims: dict[str, tuple[str, str]] = {}
        """Namespace and name of each claim among them."""

    def ending(self, allotment: Allotment, parts: Sequence[Partition]) -> None:
        """Note what an allotment used, which is being taken back."""
        entry = self._open.setdefault(allotment.holder.uid, _Open())
        entry.parts += [part for part in allotment.parts if part not in entry.parts]
        entry.usage += usage_of(parts)
        if not allotment.holder.container:
            self.claims[allotment.holder.uid] = (allotment.holder.namespace, allotment.holder.name)

    def take(self, uids: Sequence[str]) -> tuple[tuple[Part, ...], Usage]:
        """What these used together; it is forgotten here."""
        found = [self._open.pop(uid) for uid in uids if uid in self._open]
        total = Usage()
        for uid in uids:
            self.claims.pop(uid, None)
        for each in found:
            total += each.usage
        return tuple(part for each in found for part in each.parts), total

    def holders(self) -> set[str]:
        """The uids that there is something of."""
        return set(self._open)


@dataclass(frozen=True, slots=True)
class Ended:
    """One pod that has ended, as the history wants it."""

    job: str
    uid: str
    user: str
    name: str
    application: str
    program: str
    state: str
    """`completed`, `failed`, `out-of-memory` or `cancelled`."""
    exit_code: int | None
    submit_ms: int
    start_ms: int | None
    end_ms: int
    gpus: int
    milli: int
    mem_mib: int
    cards: tuple[int, ...]
    """Its GPUs, by their numbers on the node; the first of them is `card`."""
    peak_mib: int
    refused: int
    needed_mib: int
    cpu_milli: int = 0
    host_mem_mib: int = 0
    """CPU and memory of the node that it requested."""

    @property
    def card(self) -> int:
        """The first of its GPUs."""
        return min(self.cards, default=0)


def ended_pod(pod: Pod, parts: Sequence[Part], usage: Usage, now_ms: int) -> Ended:
    """How a pod ended. One that failed after calls for memory were refused ran out of it."""
    state = {"Succeeded": "completed", "Failed": "failed"}.get(pod.phase, "cancelled")
    if state == "failed" and usage.refused:
        state = "out-of-memory"
    program = next((each.program for each in pod.containers if each.program and not each.init), "")
    end_ms = pod.end_ms or now_ms
    return Ended(
        str(pod),
        pod.uid,
        pod.namespace,
        pod.name,
        application_of(pod.namespace, pod.annotations, pod.controller) or program.partition(" ")[0],
        program,
        state,
        pod.exit_code,
        pod.created_ms or end_ms,
        pod.start_ms,
        end_ms,
        len(parts),
        max((part.milli for part in parts), default=0),
        max((part.mem_mib for part in parts), default=0),
        tuple(sorted({part.index for part in parts})),
        usage.peak_mib,
        usage.refused,
        usage.needed_mib,
        *pod.requests,
    )


def keep_ended(folder: Path, ended: Ended, card: Mapping[str, object]) -> None:
    """Write it down for `recording`, whole or not at all; `card` says the model and MiB of its GPU."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / f"{ended.uid}.json") as aside:
        aside.write_text(json.dumps({**asdict(ended), "hardware": dict(card)}), encoding="utf-8")
