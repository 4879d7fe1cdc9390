"""Partitions that others remove while they are read."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.partition.conftest import CARDS, Card

from berth import partition as partitions
from berth.errors import PartitionError
from berth.partition import lifecycle

REGIONS = importlib.import_module("berth.partition.regions")  # the package names a function so
STEPS = ("_stems", "open_to", "describe", "hardware_in")
"""What a look at partitions calls for each of them."""


def before_each_step(card: Card, monkeypatch: pytest.MonkeyPatch, look: Callable[[], None]) -> int:
    """Look again and again, while the partition `goes` is removed before the first step, the second and so on."""
    monkeypatch.setenv("BERTH_ROOT", str(card.folder / "root"))
    partitions.create("stays", CARDS[0], partitions.Limit(64))
    for at in count():
        folder = partitions.create("goes", CARDS[0], partitions.Limit(64), overcommit=True).folder
        with monkeypatch.context() as patch:
            steps = count()
            for name in STEPS:
                patch.setattr(REGIONS, name, removing(folder, steps, at, getattr(REGIONS, name)))
            look()
        if folder.exists():
            return at
    raise AssertionError


def removing(folder: Path, steps: count[int], at: int, step: Callable[..., Any]) -> Callable[..., Any]:
    def call(*words: Any) -> Any:
        if next(steps) == at:
            shutil.rmtree(folder)
        return step(*words)

    return call


def test_one_that_is_removed_while_all_are_read_hides_no_other(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> None:
        assert "stays" in {each.name for each in partitions.partitions()}

    assert before_each_step(card, monkeypatch, look) == 10


def test_one_that_is_removed_while_it_is_read_is_found_whole_or_not_at_all(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> None:
        try:
            (found,) = partitions.find("goes")
        except PartitionError:
            return
        assert (found.name, found.limit_bytes) == ("goes", 64 << 20)

    assert before_each_step(card, monkeypatch, look) == 5


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (lambda: partitions.resize("goes", mem_mib=32), ("_check_writable", "locked", "find", "_changed")),
        (lambda: partitions.remove("goes"), ("_check_writable", "_check_idle", "regions_in", "_release")),
    ],
)
def test_one_that_is_removed_while_it_is_changed_is_named(
    card: Card, monkeypatch: pytest.MonkeyPatch, change: Callable[[], None], steps: tuple[str, ...]
) -> None:
    monkeypatch.setenv("BERTH_ROOT", str(card.folder / "root"))
    for step in steps:
        folder = partitions.create("goes", CARDS[0], partitions.Limit(64)).folder
        with monkeypatch.context() as patch:
            patch.setattr(lifecycle, step, removing(folder, count(), 0, getattr(lifecycle, step)))
            with pytest.raises(PartitionError, match=r"^the partition 'goes' was removed meanwhile$"):
                change()
