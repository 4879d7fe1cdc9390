"""GPUs whose MIG is on, as devices: one for each place of an instance, each consuming counters of its GPU.

The counters are slices of cores, MiB, and each slice of memory by its number, so that devices are only allocated at
once whose instances do not overlap. An instance is made when a claim with its device is prepared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from berth.live.local.cards import Card
from berth.partition.mig import Place


@dataclass(frozen=True, slots=True)
class CutDevices:
    """What is published of one GPU, as `resource.k8s.io/v1` writes it."""

    name: str
    """Of the GPU and of its counters."""
    counters: Mapping[str, Any]
    devices: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class CutGpu:
    """One GPU and the places that instances may have on it."""

    card: Card
    places: tuple[Place, ...]

    @property
    def name(self) -> str:
        """Of its counters."""
        return f"gpu-{self.card.index}"

    @property
    def named(self) -> dict[str, Place]:
        """Its places by the names of their devices, such as `gpu-0-mig-2g-20gb-4`."""
        return {f"{self.name}-mig-{_word(place.profile)}-{place.start}": place for place in self.places}

    def milli(self, place: Place) -> int:
        """The part of the GPU's compute that an instance there has, rounded down."""
        return 1000 * place.slices // self._slices

    def published(
        self,
        attributes: Mapping[str, Any],
        taints: Sequence[Mapping[str, str]],
        others: Iterable[Place],
        held: Collection[tuple[str, int]],
    ) -> CutDevices:
        """Its devices, but for those that overlap an instance of `others`.

        `held` are profile and start of the instances that claims have. One that is there and that no claim has was made
        by hand: the device of exactly its profile and place stands for it.
        """
        strangers = [each for each in others if (each.profile, each.start) not in held]
        last = max(place.start + place.size for place in self.places)
        counters = _counts(self._slices, self.card.mem_mib, range(last))
        devices = tuple(
            self._device(name, place, attributes, taints)
            for name, place in self.named.items()
            if not any(_overlap(place, other) for other in strangers)
        )
        return CutDevices(self.name, {"name": self.name, "counters": counters}, devices)

    @property
    def _slices(self) -> int:
        return max(place.slices for place in self.places)

    def _device(
        self, name: str, place: Place, attributes: Mapping[str, Any], taints: Sequence[Mapping[str, str]]
    ) -> dict[str, Any]:
        taken = range(place.start, place.start + place.size)
        device: dict[str, Any] = {
            "name": name,
            "attributes": {
                **attributes,
                "profile": {"string": place.profile},
                "start": {"int": place.start},
                "parentUUID": {"string": self.card.uuid},
                "parentIndex": {"int": self.card.index},
            },
            "capacity": {
                "memory": {"value": f"{place.mem_mib}Mi"},
                "milli": {"value": str(self.milli(place))},
            },
            "consumesCounters": [
                {"counterSet": self.name, "counters": _counts(place.slices, place.mem_mib, taken)}
            ],
        }
        return {**device, "taints": list(taints)} if taints else device


def _counts(slices: int, mem_mib: int, taken: range) -> dict[str, dict[str, str]]:
    memory = {f"memory-slice-{number}": {"value": "1"} for number in taken}
    return {"slices": {"value": str(slices)}, "memory": {"value": f"{mem_mib}Mi"}, **memory}


def _overlap(place: Place, other: Place) -> bool:
    """Whether they share a slice of memory, and are not the same."""
    same = (place.profile, place.start) == (other.profile, other.start)
    return not same and place.start < other.start + other.size and other.start < place.start + place.size


def _word(profile: str) -> str:
    """A profile as part of a device's name, which has no dots."""
    return profile.replace(".", "-").lower()
