"""A region whose path leads elsewhere, whose file system cannot keep it, or which somebody else may not touch."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from berth import partition as partitions
from berth.partition.gpus import Gpu
from conftest import Card

GPU = Gpu(0, "GPU-b0b7bec5-ccd3-dae1-e8ef-f6fd040b1219", 16384)
STRANGER = 12345


class Member:
    """A process of a partition that does what it is told (native/tests/told.c)."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.state = process.stdout.readline().strip()

    def __call__(self, words: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Member]


@pytest.fixture
def member(card: Card) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(name: str = "blue", **settings: str) -> Member:
            region = str(card.folder / "root" / name)
            limits = {"BERTH_REGION": region, "BERTH_GPU_MEM_MIB": None, "BERTH_FAKE_WATCH": None} | settings
            found = Member(card.start("told", **limits))
            stack.callback(found.kill)
            return found

        yield start


@pytest.fixture
def root(card: Card) -> Path:
    return card.folder / "root"


def in_the_end(answer: Callable[[], str], wanted: str) -> bool:
    """A process is gone a moment after it was killed."""
    for _ in range(500):
        if answer() == wanted:
            return True
        time.sleep(0.01)
    return False


def blue(root: Path, mem_mib: int = 64) -> None:
    partitions.create("blue", GPU, partitions.Limit(mem_mib), root=root)


USERS = pytest.mark.parametrize("user", [None, STRANGER])


@contextmanager
def open_to(card: Card, user: int | None) -> Iterator[dict[str, str]]:
    """The settings of a member that runs as this user, whom the card and the partition let in."""
    if user is None:
        yield {}
        return
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    card.folder.chmod(0o777)
    yield {"BERTH_TEST_UID": str(user)}


@USERS
def test_a_living_member_is_not_buried_when_another_partition_takes_the_name(
    card: Card, member: Start, root: Path, user: int | None
) -> None:
    with open_to(card, user) as settings:
        partitions.create("blue", GPU, partitions.Limit(64), root=root)
        one, two = member(**settings), member(**settings)
        assert (one("take 40"), two("take 40")) == ("yes", "no")
        partitions.remove("blue", force=True, root=root)
        partitions.create("blue", GPU, partitions.Limit(64), root=root)
        for _ in range(40):  # what lives without a proof is believed for a tenth of a second only
            assert (two("take 40"), two("room")) == ("no", "24")
            time.sleep(0.01)
        assert (one("take 24"), two("room")) == ("yes", "0")


@USERS
@pytest.mark.parametrize("path", ["gone", "taken by another"])
def test_what_a_dead_member_held_is_given_back_whatever_became_of_the_path(
    card: Card, member: Start, root: Path, user: int | None, path: str
) -> None:
    with open_to(card, user) as settings:
        partitions.create("blue", GPU, partitions.Limit(64), root=root)
        one, two = member(**settings), member(**settings)
        assert (one("take 40"), two("take 40")) == ("yes", "no")
        partitions.remove("blue", force=True, root=root)
        if path != "gone":
            partitions.create("blue", GPU, partitions.Limit(64), root=root)
        one.kill()
        assert in_the_end(lambda: two("take 40"), "yes")
        assert two("take 25") == "no"
