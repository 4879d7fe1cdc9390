"""What the containers of this node were given of its GPUs: kept on disk, and enforced by a region each.

An allotment is given once and stays the same until it is taken back; a restart of the agent or of the machine finds it
again. No more of a GPU is given than it has, and no GPU by claims and by the device plugin at once: both share one
`Allotments`. All are in one file, so that what is given in one call is kept or lost as a whole, by one write.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from berth.errors import KubernetesError, PartitionError
from berth.files import write_whole
from berth.live.local.cards import Card
from berth.partition import (
    Limit,
    Partition,
    create,
    remove,
)
from berth.partition.gpus import plain_uuid
from berth.partition.regions import regions_in, regions_of

CLOSED_MIB = 1
"""The limit on a GPU that is not a container's: no context fits in."""


@dataclass(frozen=True, slots=True)
class Part:
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
    of: int = 1
    """How many its holder has: a claim is prepared when all are there."""
    placement: str = ""
    """A digest of the scheduler's placement that it was given by."""


class Allotments:
    def __init__(
        self,
        folder: Path,
        root: Path,
        cards: Sequence[Card],
        device_nodes: Path | None = None,
    ) -> None:
        """`folder` keeps them; `root` is where their regions are, `device_nodes` where containers' folders of device
        nodes are, which go with them. `load` reads what is there."""
        self.folder, self.root, self._device_nodes = folder, root, device_nodes
        self.cards = {card.index: card for card in cards}
        self.given: dict[str, Allotment] = {}
        self.damaged: list[str] = []
        """What was set aside or left, because it could not be read or told whose it is."""
        self.ending: Callable[[Allotment, list[Partition]], None] | None = None
        """Hears of each allotment that is taken back, with what its regions held."""
        self.held_now: Callable[[], Mapping[str, int]] = dict
        """What allotments hold of each of their GPUs, in MiB, if that is not what they were given: they have grown, or
        are suspended and hold 0."""
        self._batches = 0
        self._changed = False

    @property
    def path(self) -> Path:
        return self.folder / "given.json"

    def load(self) -> None:
        """Read what was given before, and make the regions that a restart of the machine took away.

        What has a part of a GPU that is not there now keeps it: its container may run on. A region of which nothing is
        kept is removed, since no pod has its limits.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        for found in self._read():
            try:
                for limit in (self.root / found.name).glob("*.limit"):
                    if not limit.with_suffix(".use").exists():  # killed while it was taken back
                        limit.unlink()
                self._make(found)
            except PartitionError as error:
                self.damaged.append(f"{self.path}: {found.name}: {error}")
                continue
            self.given[found.name] = found
        self._changed = bool(self.damaged)
        for folder in (self.root, *([self._device_nodes] if self._device_nodes else [])):
            for path in sorted(folder.glob("[!.]*")) if folder.exists() else ():
                if path.is_dir() and path.name not in self.given:
                    self._sweep(path)

    def _read(self) -> list[Allotment]:
        if not self.path.exists():
            return []
        try:
            entries = msgspec.json.decode(self.path.read_bytes(), type=list[msgspec.Raw])
        except (msgspec.DecodeError, OSError) as error:
            self.path.replace(self.path.with_suffix(".damaged"))
            self.damaged.append(f"{self.path}: {error}")
            return []
        found = []
        for each in entries:
            try:
                found.append(msgspec.json.decode(each, type=Allotment))
            except msgspec.DecodeError as error:
                shutil.copyfile(self.path, self.path.with_suffix(".damaged"))
                self.damaged.append(f"{self.path}: {error}")
        return found

    def _sweep(self, folder: Path) -> None:
        try:
            if folder.parent == self.root:
                self._remove_region(folder.name, force=False)
            else:
                shutil.rmtree(folder)
        except (PartitionError, OSError) as error:
            self.damaged.append(f"{folder}: nothing is kept of it, and it cannot be removed: {error}")

    def give(self, *asked: Allotment) -> None:
        """Give all of them, or none; those that are given already stay. One that is suspended, and whose container
        starts anew, needs its room again. KubernetesError or PartitionError where it cannot be."""
        made = []
        with self.batch():
            try:
                for each in asked:
                    there = self.given.get(each.name) == each
                    if there and self.held_now().get(each.name) != 0:
                        self._make(each)
                    else:
                        self._give(each)
                        made.append(each.name)
            except (KubernetesError, PartitionError, OSError):
                for name in made:
                    self.take_back(name, force=True)
                raise

    def _give(self, asked: Allotment) -> None:
        self._check_room(asked)
        if asked.name in self.given:
            self.take_back(asked.name)
        self._remove_region(asked.name, force=False)  # one that is left over has the limits of another
        try:
            self._make(asked, fresh=True)
        except (OSError, PartitionError):
            self._remove_region(asked.name, force=True)
            raise
        self.given[asked.name] = asked
        self._changed = True

    def take_back(self, name: str, *, force: bool = False) -> None:
        """Take an allotment away; PartitionError while processes use it, unless forced. Unknown names are no error."""
        found = regions_of(name, self.root)
        parts = [each for each in found if isinstance(each, Partition)]
        damaged = len(parts) < len(found)  # nothing can start in what is damaged
        idle = not any(part.processes for part in parts)
        self._remove_region(name, force=force or damaged or idle)
        if self._device_nodes is not None and (self._device_nodes / name).exists():
            shutil.rmtree(self._device_nodes / name)
        gone = self.given.pop(name, None)
        if gone is None:
            return
        self._changed = True
        with self.batch():
            pass
        if self.ending is not None:
            self.ending(gone, parts)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """What is given and taken back within is written once, at the end."""
        self._batches += 1
        try:
            yield
        finally:
            self._batches -= 1
            if not self._batches and self._changed:
                write_whole(self.path, msgspec.json.encode(list(self.given.values())), durable=True)
                self._changed = False

    def of_holder(self, uid: str) -> list[Allotment]:
        return [each for each in self.given.values() if each.holder.uid == uid]

    def _check_room(self, asked: Allotment) -> None:
        """Whether there is room for it, in place of one of its name."""
        held = self.held_now()
        for part in asked.parts:
            card, mib, milli, ways = self.cards.get(part.index), 0, 0, set[bool]()
            for each in self.given.values():
                for other in each.parts if each.name != asked.name and held.get(each.name) != 0 else ():
                    if other.index == part.index:
                        mib += held.get(each.name, other.mem_mib)
                        milli += 0 if other.best_effort else other.milli
                        ways.add(bool(each.holder.container))
            if card is None:
                raise KubernetesError(
                    f"{asked.holder} is to have a part of GPU {part.index}, and this node has"
                    f" {_list(self.cards)}; is it placed on another node's GPUs?"
                )
            if (not asked.holder.container) in ways:
                theirs = "claims" if asked.holder.container else "pods that ask for berth.dev/gpu"
                raise KubernetesError(
                    f"{asked.holder} is to have a part of GPU {part.index}, of which {theirs} have parts; a GPU is"
                    " given by one of the two ways only, and changes its way when those have ended"
                )
            if mib + part.mem_mib > card.mem_mib:
                raise KubernetesError(
                    f"{asked.holder} is to have {part.mem_mib} MiB of GPU {part.index}, of whose {card.mem_mib} MiB"
                    f" {mib} are given; it starts when others have ended"
                )
            if not part.best_effort and milli + part.milli > 1000:
                raise KubernetesError(
                    f"{asked.holder} is to have {part.milli} milli of GPU {part.index}, of which {milli} are"
                    " given; it starts when others have ended"
                )

    def _make(self, asked: Allotment, *, fresh: bool = False) -> None:
        """The regions that are not there yet, of the GPUs that are there; `fresh`: none is there."""
        there = set() if fresh else set(regions_in(self.root / asked.name))
        wanted = {index: Limit(CLOSED_MIB) for index in asked.closed}
        wanted |= {part.index: part.limit for part in asked.parts}
        for index, limit in wanted.items():
            card = self.cards.get(index)
            if card is not None and plain_uuid(card.uuid) not in there:
                create(asked.name, card.gpu, limit, overcommit=True, root=self.root)

    def _remove_region(self, name: str, *, force: bool) -> None:
        """Remove a folder of regions if it is there, finished or not."""
        if os.path.exists(f"{self.root}/{name}"):
            remove(name, force=force, unfinished=True, root=self.root)


def _list(cards: Iterable[int]) -> str:
    return ", ".join(f"GPU {index}" for index in cards) or "no GPU"
