"""What is looked at to know whether a GPU has room for one more partition."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from tests.partition.conftest import CARDS, Card

from berth import partition as partitions
from berth.errors import NoRoomError

REGIONS = importlib.import_module("berth.partition.regions")  # the package names a function so


def test_a_new_partition_reads_those_of_its_own_gpu_alone(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_ROOT", str(card.folder / "root"))
    first, second = CARDS[:2]
    for name, gpu in (("one", first), ("two", second), ("three", second)):
        partitions.create(name, gpu, partitions.Limit(gpu.mem_mib // 2))
    described, describe = list[str](), REGIONS.describe

    def noted(folder: Path, uuid: str) -> object:
        described.append(folder.name)
        return describe(folder, uuid)

    monkeypatch.setattr(REGIONS, "describe", noted)
    partitions.create("four", first, partitions.Limit(first.mem_mib - first.mem_mib // 2))
    assert described == ["one", "four"]
    for gpu in (first, second):
        with pytest.raises(NoRoomError, match="0 of its"):
            partitions.create("five", gpu, partitions.Limit(1))
