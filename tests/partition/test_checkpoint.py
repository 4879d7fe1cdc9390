"""What a partition's processes hold leaves its GPU for the host's memory and comes back, all of it or none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.partition.conftest import CARDS, Card

from berth.partition import Limit, create, find, remove
from berth.partition.checkpoint import LOCKED, NOT_READY, RUNNING, Calls, start_of, suspend

DONE = {"done": True, "why": "", "no_room": False, "lost": False, "again": False}


class Suspended:
    """A partition `a` of 100 MiB on a fake card of 200 MiB, with processes in it."""

    def __init__(self, card: Card, tmp_path: Path) -> None:
        self.card, self.root = card, tmp_path / "root"
        self.members: list[subprocess.Popen[str]] = []
        card.settings |= {"BERTH_FAKE_MEM_MIB": "200", "BERTH_FAKE_WATCH": ""}
        self.make("a", 100)

    def make(self, name: str, mem_mib: int) -> None:
        create(name, CARDS[0].__class__(0, CARDS[0].uuid, 200), Limit(mem_mib), root=self.root)

    def member(self, *takes: int, name: str = "a", **unkind: str) -> subprocess.Popen[str]:
        """A process that holds this many MiB."""
        region = {
            "BERTH_REGION": str(self.root / name),
            "BERTH_GPU_MEM_MIB": None,
            "BERTH_GPU_CORE_PCT": None,
        }
        process = self.card.start("member", **region, **unkind)
        self.members.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n", self.card.log
        for mib in takes:
            assert self.says(process, f"take {mib}") == "yes"
        return process

    def tell(self, process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def says(self, process: subprocess.Popen[str], line: str) -> str:
        self.tell(process, line)
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def do(self, what: str, name: str = "a", **settings: str) -> dict[str, Any]:
        environment = {
            **os.environ, "BERTH_ROOT": str(self.root), "BERTH_FAKE_CARD": str(self.card.folder / "card"),
            "BERTH_FAKE_MEM_MIB": "200", **settings,
        }  # fmt: skip
        words = [
            sys.executable,
            "-m",
            "berth.partition.checkpoint",
            what,
            name,
            str(self.card.native / "fake"),
        ]
        ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr
        return dict(json.loads(ran.stdout))

    def limit_mib(self, name: str = "a") -> int:
        (part,) = find(name, self.root)
        return part.limit_bytes >> 20


@pytest.fixture
def made(card: Card, tmp_path: Path) -> Iterator[Suspended]:
    world = Suspended(card, tmp_path)
    try:
        yield world
    finally:
        for member in world.members:
            member.kill()
            member.communicate()


@contextmanager
def waiting(made: Suspended, process: subprocess.Popen[str], line: str) -> Iterator[None]:
    """A call that waits meanwhile, and answers afterwards."""
    made.tell(process, line)
    yield
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "yes"


def test_a_suspended_partition_frees_its_card_and_its_promise_and_runs_on_with_all_it_held(
    made: Suspended,
) -> None:
    one, two = made.member(30), made.member(40)
    assert made.do("suspend") == DONE
    with waiting(made, one, "take 20"):
        assert made.do("suspend") == DONE, "it may be asked for again"
        assert made.limit_mib() == 0
        made.make("b", 200)
        other = made.member(190, name="b")
        found = made.do("resume")
        assert (found["done"], found["no_room"]) == (False, True)
        assert "200 MiB" in found["why"] or "not promised" in found["why"]
        other.kill()
        other.communicate()
        (made.root / "b").rename(made.root / ".gone")
        assert made.do("resume") == DONE
    assert (made.says(one, "held"), made.says(two, "held")) == ("50", "40")
    assert (made.limit_mib(), made.says(two, "take 20"), made.says(two, "take 10")) == (100, "no", "yes")
    assert made.do("resume") == DONE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unkind", "why"),
    [
        ("no-lock", "cannot be stopped (its work on the GPU took longer than 10 s)"),
        ("no-checkpoint", "cannot be moved (it shares memory with other processes, or has managed memory)"),
        ("shares", "cannot be moved (it shares memory with other processes, or has managed memory)"),
    ],
)
def test_what_cannot_be_suspended_runs_on_with_all_others(made: Suspended, unkind: str, why: str) -> None:
    one, two = made.member(30), made.member(40, BERTH_FAKE_CHECKPOINT=unkind)
    found = made.do("suspend")
    assert (found["done"], found["lost"]) == (False, False)
    assert found["why"] == f"process {two.pid} {why}"
    assert (made.says(one, "take 10"), made.says(two, "take 10"), made.limit_mib()) == ("yes", "yes", 100)


def test_too_little_memory_of_the_host_suspends_none(made: Suspended) -> None:
    one, two = made.member(30), made.member(40)
    found = made.do("suspend", BERTH_FAKE_HOST_MIB="60")
    assert (found["done"], found["lost"]) == (False, False)
    assert "too little memory" in found["why"]
    assert (made.says(one, "held"), made.says(two, "held")) == ("30", "40")


@pytest.mark.slow
def test_a_failure_that_passes_is_tried_again(made: Suspended) -> None:
    one = made.member(30, BERTH_FAKE_CHECKPOINT="no-restore-once,no-unlock-once")
    assert made.do("suspend") == DONE
    assert made.do("resume") == DONE
    assert made.says(one, "held") == "30"


@pytest.mark.slow
def test_one_that_a_signal_has_stopped_is_not_lost_and_comes_back_when_it_goes_on(made: Suspended) -> None:
    one, two = made.member(30), made.member(40)
    assert made.do("suspend") == DONE
    two.send_signal(signal.SIGSTOP)
    stopped = {"done": False, "why": f"process {two.pid} was stopped by a signal", "again": True}
    assert made.do("resume") == {**DONE, **stopped}
    two.send_signal(signal.SIGCONT)
    assert made.do("resume") == DONE
    assert (made.says(one, "held"), made.says(two, "held")) == ("30", "40")


class Stopping(Calls):
    """A driver whose process something stops between its lock and its move."""

    def __init__(self, pid: int) -> None:
        self.pid, self.now = pid, RUNNING

    def state(self, pid: int) -> int | None:
        return self.now

    def lock(self, pid: int) -> int:
        self.now = LOCKED
        return 0

    def checkpoint(self, pid: int) -> int:
        os.kill(self.pid, signal.SIGSTOP)
        return NOT_READY

    def unlock(self, pid: int) -> int:
        return NOT_READY


@pytest.mark.slow
def test_one_that_a_signal_stops_while_it_leaves_is_not_lost(made: Suspended) -> None:
    one = made.member(30)
    found = suspend("a", Stopping(one.pid), made.root)
    assert (found.done, found.lost, found.again) == (False, False, True)
    one.send_signal(signal.SIGCONT)
    assert made.do("suspend") == DONE
    assert made.do("resume") == DONE


def test_a_process_of_any_name_has_a_start(made: Suspended) -> None:
    name = "import ctypes, sys; ctypes.CDLL(None).prctl(15, bytes([255, 254])); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert int(start_of(process.pid)) > 0


def test_what_the_driver_has_lost_is_said(made: Suspended) -> None:
    made.member(30, BERTH_FAKE_CHECKPOINT="fails")
    assert made.do("suspend") == DONE
    assert made.do("resume")["lost"]


@pytest.mark.slow
def test_a_process_that_dies_meanwhile_is_no_failure(made: Suspended) -> None:
    one, two = made.member(30), made.member(40)
    assert made.do("suspend") == DONE
    two.kill()
    two.communicate()
    assert made.do("resume") == DONE
    assert made.says(one, "take 60") == "yes"


def test_one_that_is_killed_while_it_comes_back_leaves_nothing_on_its_card(made: Suspended) -> None:
    made.member(30, BERTH_FAKE_CHECKPOINT="dies")
    assert made.do("suspend") == DONE
    assert made.do("resume") == DONE
    remove("a", root=made.root)
    made.make("b", 200)
    made.member(200, name="b")


@pytest.mark.slow
def test_a_card_that_strangers_filled_meanwhile_keeps_it_suspended(made: Suspended) -> None:
    one = made.member(80)
    assert made.do("suspend") == DONE
    made.make("b", 90)
    other = made.member(90, name="b")
    stranger = made.card.start("member", BERTH_REGION=None, LD_PRELOAD=None)
    made.members.append(stranger)
    assert stranger.stdout is not None
    assert stranger.stdout.readline() == "started\n"
    assert made.says(stranger, "take 50") == "yes"
    found = made.do("resume")
    assert (found["done"], found["no_room"], found["lost"]) == (False, True, False)
    assert (made.limit_mib(), other.poll()) == (0, None)
    stranger.kill()
    stranger.communicate()
    assert made.do("resume") == DONE
    assert made.says(one, "held") == "80"


def test_memory_that_was_exported_is_refused_by_the_driver(made: Suspended) -> None:
    one = made.member(10, BERTH_FAKE_CHECKPOINT="shares-once")
    assert not made.do("suspend")["done"]
    assert made.do("suspend") == DONE
    assert made.do("resume") == DONE
    assert made.says(one, "held") == "10"
