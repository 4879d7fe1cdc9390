"""Partitions that others make and remove while all are read."""

from __future__ import annotations

import threading

import pytest
from tests.partition.conftest import CARDS, Card

from berth import partition as partitions

ROUNDS = 150


def test_partitions_that_come_and_go_while_all_are_read_hide_no_other(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_ROOT", str(card.folder / "root"))
    partitions.create("stays", CARDS[0], partitions.Limit(64))
    over = threading.Event()

    def come_and_go() -> None:
        try:
            for _ in range(ROUNDS):
                partitions.create("goes", CARDS[0], partitions.Limit(64), overcommit=True)
                partitions.remove("goes", force=True)
        finally:
            over.set()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        while not over.is_set():
            assert "stays" in {each.name for each in partitions.partitions()}
    finally:
        other.join()
