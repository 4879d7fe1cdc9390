"""What the containers of this node were given of its GPUs: kept on disk, and enforced by a region each.

An allotment is given once and stays the same until it is taken back; a restart of the agent or of the machine finds it
again. No more of a GPU is given than it has: the device plugin and the DRA driver share one `Allotments`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from berth.errors import KubernetesError, PartitionError
from berth.files import whole_file
from berth.live.local.cards import Card
from berth.partition import Limit, Partition, create, remove
from berth.partition.regions import regions_in, regions_of

__all__ = ["CLOSED_MIB", "Allotment", "Allotments", "Holder", "Part"]

CLOSED_MIB = 1
"""The limit on a GPU that is not a container's: no context fits in."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one container gets of one GPU."""

    index: int
    mem_mib: int
    milli: int
    best_effort: bool = False
    """No promise of time: the container takes what others leave."""
    burst: bool = False
    """It may take more than its share while the rest is unused."""
    priority: str = "normal"

    @property
    def limit(self) -> Limit:
        """As a partition keeps it; per cent are rounded up, so that a share is never less than was promised."""
        core = 0 if self.best_effort or self.milli >= 1000 else -(-self.milli // 10)
        return Limit(self.mem_mib, core, self.burst and bool(core), priority=self.priority)


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose an allotment is: a container of a pod, or a claim."""

    namespace: str
    name: str
    uid: str
    container: str = ""
    """Empty: a claim's, whichever containers use it."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" + (f" ({self.container})" if self.container else "")


@dataclass(frozen=True, slots=True)
class Allotment:
    """The parts that one holder has, under the name of its partition."""

    name: str
    holder: Holder
    parts: tuple[Part, ...]
    device_ids: tuple[str, ...] = ()
    """The kubelet's units, of which a container has as many as GPUs."""
    closed: tuple[int, ...] = ()
    """GPUs that have a region of this name too, in which nothing fits."""
    request: str = ""
    """The request of the claim, and the device that answers it."""
    device: str = ""
    share: str = ""


class Allotments:
    """All allotments of this node."""

    def __init__(self, folder: Path, root: Path, cards: Sequence[Card]) -> None:
        """`folder` keeps them, a file each; `root` is where their regions are. `load` reads what is there."""
        self.folder, self.root = folder, root
        self.cards = {card.index: card for card in cards}
        self.given: dict[str, Allotment] = {}
        self.damaged: list[str] = []
        """Files that were set aside, because they could not be read."""
        self.ending: Callable[[Allotment, list[Partition]], None] | None = None
        """Hears of each allotment that is taken back, with what its regions held."""

    def load(self) -> None:
        """Read what was given before, and make the regions that a restart of the machine took away."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        for path in sorted(self.folder.glob("*.json")):
            try:
                found = msgspec.json.decode(path.read_bytes(), type=Allotment)
                self._make(found)
            except (msgspec.DecodeError, PartitionError) as error:
                path.replace(path.with_suffix(".damaged"))
                self.damaged.append(f"{path}: {error}")
                continue
            self.given[found.name] = found

    def give(self, asked: Allotment) -> None:
        """Give it, unless it is given already; KubernetesError or PartitionError where it cannot be."""
        if self.given.get(asked.name) == asked:
            self._make(asked)
            return
        if asked.name in self.given:
            self.take_back(asked.name)
        self._check_room(asked)
        try:
            self._make(asked)
            with whole_file(self._path(asked.name)) as aside:
                aside.write_bytes(msgspec.json.encode(asked))
        except (OSError, PartitionError):
            self._remove_region(asked.name, force=True)
            raise
        self.given[asked.name] = asked

    def take_back(self, name: str, *, force: bool = False) -> None:
        """Take an allotment away; PartitionError while processes use it, unless forced. Unknown names are no error."""
        found = regions_of(name, self.root)
        parts = [each for each in found if isinstance(each, Partition)]
        damaged = len(parts) < len(found)  # nobody can start anything in what is damaged
        self._remove_region(name, force=force or damaged)
        self._path(name).unlink(missing_ok=True)
        gone = self.given.pop(name, None)
        if gone is not None and self.ending is not None:
            self.ending(gone, parts)

    def of_devices(self, device_ids: Iterable[str]) -> list[Allotment]:
        """Those that hold any of these units."""
        asked = set(device_ids)
        return [each for each in self.given.values() if asked.intersection(each.device_ids)]

    def of_holder(self, uid: str) -> list[Allotment]:
        """Those of a pod or claim."""
        return [each for each in self.given.values() if each.holder.uid == uid]

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _check_room(self, asked: Allotment) -> None:
        for part in asked.parts:
            card = self.cards.get(part.index)
            if card is None:
                raise KubernetesError(
                    f"{asked.holder} is to have a part of GPU {part.index}, and this node has"
                    f" {_list(self.cards)}; is it placed on another node's GPUs?"
                )
            others = [
                each for other in self.given.values() for each in other.parts if each.index == part.index
            ]
            mem_mib = sum(each.mem_mib for each in others)
            if mem_mib + part.mem_mib > card.mem_mib:
                raise KubernetesError(
                    f"{asked.holder} is to have {part.mem_mib} MiB of GPU {part.index}, of whose {card.mem_mib} MiB"
                    f" {mem_mib} are given; it starts when others have ended"
                )
            milli = sum(each.milli for each in others if not each.best_effort)
            if not part.best_effort and milli + part.milli > 1000:
                raise KubernetesError(
                    f"{asked.holder} is to have {part.milli} milli of GPU {part.index}, of which {milli} are given;"
                    " it starts when others have ended"
                )

    def _make(self, asked: Allotment) -> None:
        """The regions that are not there yet."""
        there = set(regions_in(self.root / asked.name))
        wanted = {part.index: part.limit for part in asked.parts}
        wanted |= {index: Limit(CLOSED_MIB) for index in asked.closed}
        for index, limit in wanted.items():
            card = self.cards.get(index)
            if card is None:
                raise PartitionError(f"{asked.holder} has a part of GPU {index}, which this node lacks now")
            if card.uuid.removeprefix("GPU-").lower() not in there:
                create(asked.name, card.gpu, limit, overcommit=True, root=self.root)

    def _remove_region(self, name: str, *, force: bool) -> None:
        if (self.root / name).exists():
            remove(name, force=force, root=self.root)


def _list(cards: Iterable[int]) -> str:
    return ", ".join(f"GPU {index}" for index in cards) or "no GPU"
