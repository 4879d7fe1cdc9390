"""A limit that grows: a call that does not fit asks, waits for an answer, and only then is refused."""

from __future__ import annotations

import ctypes
import json
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.partition.conftest import CARDS, ROOT, Card
from tests.partition.test_region import Member

from berth import partition as partitions
from berth.errors import PartitionError
from berth.partition import Demand, Granter, Watching
from berth.partition.library import make_region

MIB = 1 << 20
LONG_MS = 600_000
"""A call that had to wait this long would fail its test."""
UUID = CARDS[0].uuid.removeprefix("GPU-")
Start = Callable[..., Member]


@pytest.fixture
def folder(card: Card) -> Path:
    """Of a partition of 64 MiB."""
    root = card.folder / "root"
    partitions.create("blue", CARDS[0], partitions.Limit(64), root=root)
    return root / "blue"


@pytest.fixture
def member(card: Card, folder: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(**settings: str) -> Member:
            found = Member(card.start("member", **(limits(folder) | settings)))
            stack.callback(found.kill)
            return found

        yield start


def limits(folder: Path) -> dict[str, str | None]:
    """The settings of a program of the partition."""
    return {"BERTH_REGION": str(folder), "BERTH_GPU_MEM_MIB": None, "BERTH_FAKE_WATCH": None}


class Answers:
    """A granter that says yes to whatever fits below its maximum, unless it is silent or says no."""

    def __init__(self, folder: Path, max_mib: int = 128, ask_ms: int = LONG_MS, *, says: str = "yes") -> None:
        self.says, self._max_bytes, self._asked = says, max_mib << 20, threading.Event()
        self._granter: Granter | None = None
        self._ready = threading.Event()
        self.granter = Granter(folder, UUID, self._answer)
        self.granter.allow(promise_mib=64, max_mib=max_mib, ask_ms=ask_ms)
        self._ready.set()

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self._ready.set()
        self.granter.close()

    def _answer(self) -> None:
        self._ready.wait()
        demand = self.granter.demand()
        if demand.wishes:
            self._asked.set()
        if self.says != "nothing":
            self.answer(demand)

    def answer(self, demand: Demand) -> None:
        for wish in demand.wishes:
            needed = demand.used_bytes + wish.wanted_bytes
            if self.says == "yes" and needed <= self._max_bytes:
                self.granter.grant(wish, max(needed, demand.limit_bytes))
            else:
                self.granter.refuse(wish)

    def wait_for_wish(self) -> Demand:
        assert self._asked.wait(300)
        return self.granter.demand()


def region(folder: Path) -> partitions.Partition:
    (found,) = partitions.find("blue", folder.parent)
    return found


def test_what_does_not_fit_is_asked_for_and_granted(member: Start, folder: Path) -> None:
    with Answers(folder):
        one = member()
        assert (one("take 40"), one("take 40"), one("room")) == ("yes", "yes", "0")
        seen = region(folder)
    assert (seen.limit_bytes, seen.promise_bytes, seen.max_bytes) == (80 * MIB, 64 * MIB, 128 * MIB)
    assert (seen.asked, seen.granted, seen.refused) == (1, 1, 0)


def test_no_is_an_answer_and_no_time_out(member: Start, folder: Path) -> None:
    with Answers(folder, says="no"):
        one = member()
        assert (one("take 40"), one("take 40"), one("take 24")) == ("yes", "no", "yes")
    seen = region(folder)
    assert (seen.asked, seen.granted, seen.refused, seen.limit_bytes) == (1, 0, 1, 64 * MIB)
    assert [(each.call, each.asked_bytes, each.left_bytes) for each in seen.refusals] == [
        ("cuMemAlloc", 40 * MIB, 24 * MIB)
    ]


def test_a_call_waits_no_longer_than_it_may(member: Start, folder: Path) -> None:
    with Answers(folder, ask_ms=50, says="nothing"):
        assert member()("take 65") == "no"
    assert (region(folder).asked, region(folder).refused) == (1, 1)


def test_who_did_not_answer_is_asked_again_once_it_answers_anything(member: Start, folder: Path) -> None:
    with Answers(folder, ask_ms=50, says="nothing"):
        one = member()
        assert (one("take 65"), one("take 65"), one("take 65")) == ("no", "no", "no")
        assert region(folder).asked == 1
    with Answers(folder):
        assert one("take 65") == "yes"


@pytest.mark.parametrize(
    ("max_mib", "ask_ms", "mib"), [(128, 0, 65), (0, LONG_MS, 65), (64, LONG_MS, 65), (128, LONG_MS, 129)]
)
def test_nothing_is_asked_that_cannot_be_granted(
    member: Start, folder: Path, max_mib: int, ask_ms: int, mib: int
) -> None:
    with Answers(folder, max_mib, ask_ms, says="nothing"):
        assert member()(f"take {mib}") == "no"
    assert (region(folder).asked, region(folder).refused) == (0, 1)


def test_nobody_is_asked_where_nobody_answers(member: Start, folder: Path) -> None:
    with Answers(folder):
        pass
    assert member()("take 65") == "no"
    assert region(folder).asked == 0


def test_a_granter_that_was_killed_is_not_waited_for(member: Start, folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from berth.partition import Granter;"
        f"g = Granter(Path({str(folder)!r}), {UUID!r});"
        f"g.allow(promise_mib=64, max_mib=128, ask_ms={LONG_MS}); print('ready', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
    assert member()("take 65") == "no"
    assert region(folder).asked == 0
    with Answers(folder):
        assert member()("take 65") == "yes"


def test_a_successor_answers_what_was_asked_of_the_one_before(member: Start, folder: Path) -> None:
    first = Answers(folder, says="nothing")
    one = member()
    assert one.process.stdin is not None
    assert one.process.stdout is not None
    one.process.stdin.write("take 65\n")
    one.process.stdin.flush()
    assert [wish.wanted_bytes for wish in first.wait_for_wish().wishes] == [65 * MIB]
    first.granter.close()
    with Answers(folder):
        assert one.process.stdout.readline() == "yes\n"


def test_who_shows_itself_during_a_wait_is_asked_again(member: Start, folder: Path) -> None:
    with Answers(folder, says="nothing") as answers:
        one = member()
        assert one.process.stdin is not None
        assert one.process.stdout is not None
        one.process.stdin.write("take 65\n")
        one.process.stdin.flush()
        answers.wait_for_wish()
        answers.granter.allow(promise_mib=64, max_mib=128, ask_ms=1)
        answers.granter.watch(Watching.COUNTS)  # wakes the call, whose time is over
        assert one.process.stdout.readline() == "no\n"
        answers.granter.allow(promise_mib=64, max_mib=128, ask_ms=LONG_MS)
        answers.says = "yes"
        assert one("take 65") == "yes"


@pytest.mark.parametrize("call", ["call", "copy"])
def test_the_next_call_of_a_process_that_is_away_asks_to_come_back(
    member: Start, folder: Path, call: str
) -> None:
    granter, asked = Granter(folder, UUID), threading.Event()
    granter.watch(Watching.COUNTS)
    granter.allow(promise_mib=64, max_mib=0, ask_ms=LONG_MS)
    granter.close()
    one = member()
    granter = Granter(folder, UUID, asked.set)
    try:
        before = granter.demand().calls
        assert one(call) == "done"
        counted = granter.demand().calls
        assert counted != before
        granter.watch(Watching.AWAY)
        granter.limit(0)
        assert one("card") == "64", "NVML answers, and the card has not shrunk"
        assert granter.demand().calls == counted
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(one, call)
            while not (wishes := granter.demand().wishes):
                assert asked.wait(300)
                asked.clear()
            assert [wish.comes_back for wish in wishes] == [True]
            assert not waiting.done()
            granter.watch(Watching.COUNTS)
            granter.grant(wishes[0], 64 * MIB)
            assert waiting.result(300) == "done"
    finally:
        granter.close()


def test_a_region_has_one_granter(folder: Path) -> None:
    with Answers(folder), pytest.raises(PartitionError, match="another process answers"):
        Granter(folder, UUID)
    Granter(folder, UUID).close()


def test_the_wish_of_a_dead_process_is_no_wish(member: Start, folder: Path) -> None:
    with Answers(folder, says="nothing") as answers:
        one = member()
        assert one.process.stdin is not None
        one.process.stdin.write("take 65\n")
        one.process.stdin.flush()
        (wish,) = answers.wait_for_wish().wishes
        assert wish.pid == one.process.pid
        one.kill()
        until = time.monotonic() + 300
        while answers.granter.demand().wishes:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_processes_that_ask_at_once_all_get_what_fits(member: Start, folder: Path) -> None:
    with Answers(folder, max_mib=640) as answers:
        members = [member() for _ in range(8)]
        for one in members:
            assert one.process.stdin is not None
            one.process.stdin.write("take 80\n")
            one.process.stdin.flush()
        for one in members:
            assert one.process.stdout is not None
            assert one.process.stdout.readline() == "yes\n"
        assert answers.granter.demand() == Demand(640 * MIB, 640 * MIB, ())
        assert members[0]("take 1") == "no"
    assert region(folder).refused == 1


@pytest.mark.parametrize("shows_max", [False, True])
def test_programs_see_a_card_of_the_limit_or_of_what_it_may_become(
    member: Start, folder: Path, shows_max: bool
) -> None:
    with Answers(folder) as answers:
        answers.granter.allow(promise_mib=64, max_mib=128, ask_ms=LONG_MS, shows_max=shows_max)
        seen = "128" if shows_max else "64"
        one = member()
        assert (one("room"), member(BERTH_TEST_NVML="1")("card")) == (seen, seen)
        assert (one("take 64"), one("room")) == ("yes", "64" if shows_max else "0")


def test_every_path_asks(card: Card, folder: Path) -> None:
    with Answers(folder):
        assert card.run("check", "grows", **limits(folder)) == (0, "")
    seen = region(folder)
    assert (seen.refused, seen.granted) == (0, seen.asked)


@pytest.mark.parametrize(
    ("program", "said"),
    [("asks_in_no_capture", "captured\n"), ("asks_when_a_captured_stream_is_gone", "gone\n")],
)
def test_a_call_asks_only_when_captures_have_ended_with_their_streams_or_before(
    card: Card, folder: Path, program: str, said: str
) -> None:
    with Answers(folder):
        assert card.run("check", program, **limits(folder)) == (0, said)
    assert (region(folder).asked, region(folder).refused) == (1, 1)


@pytest.mark.parametrize("program", ["asks_beside_others", "forks_while_it_asks"])
def test_a_call_that_waits_keeps_nobody_else_waiting(card: Card, folder: Path, program: str) -> None:
    with (
        Answers(folder, says="nothing") as answers,
        card.start("check", program, **limits(folder)) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        demand = answers.wait_for_wish()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        answers.says = "yes"
        answers.answer(demand)
        assert process.communicate("\n", timeout=600) == ("", None)
        assert process.returncode == 0


def test_a_page_of_an_older_version_has_a_limit_that_does_not_grow(card: Card) -> None:
    """Such a page has zeros where a page has what grows by now, and a slot may hold what was swapped out."""
    folder = card.folder / "root" / "blue"
    folder.mkdir(parents=True)
    uuid = bytes.fromhex(UUID.replace("-", ""))
    page = struct.pack("<QII16s64sQIIQQ", 0x314C485452454231, 1, 4096, uuid, b"blue", 64 * MIB, 0, 2, 1, 0)
    (folder / f"{UUID}.limit").write_bytes(page.ljust(4096, b"\0"))
    other = card.folder / "other"
    other.mkdir()
    make_region(other, UUID, "other", 64 * MIB, 0, 2)
    (folder / f"{UUID}.use").write_bytes((other / f"{UUID}.use").read_bytes())
    seen = region(folder)
    assert (seen.limit_bytes, seen.promise_bytes, seen.max_bytes) == (64 * MIB, 64 * MIB, 64 * MIB)
    assert (seen.asked, seen.granted) == (0, 0)
    with Answers(folder):
        assert card.run("check", "grows", **limits(folder)) == (0, "")


def test_a_call_is_refused_where_room_was_asked_for_and_nowhere_else() -> None:
    """What could be helped by room goes through `obtain`; the others ask for more than there may ever be."""
    found = {
        path.name: len(re.findall(r"(?<![\w_])(?:region_)?refuse\(", path.read_text()))
        for path in (ROOT / "native").glob("*.c")
    }
    assert {name: count for name, count in found.items() if count} == {
        "account.c": 1,  # the record itself
        "devices.c": 4,  # `refuse`, its record, `obtain`, and the driver where hardware keeps the limit
        "async.c": 1,  # more than the limit may become
        "pool.c": 1,  # the same of a graph
    }


def test_a_granter_that_is_closed_twice_is_closed(folder: Path) -> None:
    granter = Granter(folder, UUID, lambda: None)
    granter.close()
    granter.close()
    assert ctypes.sizeof(ctypes.c_void_p) == 8


@pytest.mark.slow
def test_kills_while_processes_ask_leave_nothing_and_nothing_passes_the_maximum(card: Card) -> None:
    """The granter comes and goes too, and takes the limit back to its promise each time."""
    root, max_mib = card.folder / "root", 256
    partitions.create("blue", CARDS[0], partitions.Limit(64), root=root)
    folder = root / "blue"
    words = limits(folder) | {"BERTH_FAKE_WATCH": f"1:{max_mib * MIB}"}
    with card.start("storm", "16", "3", "20", "16", **words) as storm:
        while storm.poll() is None:
            with Answers(folder, max_mib, ask_ms=50) as answers:
                answers.granter.limit(64 * MIB)
                time.sleep(0.1)
        assert storm.stdout is not None
        seen = json.loads(storm.stdout.read())
    counts = ("failed", "violations", "left_bytes", "driver_bytes")
    assert [seen[name] for name in counts] == [0, 0, 0, 0]
    assert seen["killed"] > 0
    assert region(folder).granted > 0
    assert (region(folder).used_bytes, region(folder).processes) == (0, ())
