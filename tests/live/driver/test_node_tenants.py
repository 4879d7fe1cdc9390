"""The jobs on one node's GPUs: real partitions and programs on a fake card, and an agent that is killed at any step."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from berth.errors import PartitionError
from berth.live.driver import node_tenants
from berth.live.driver.node_tenants import (
    FILES,
    Terms,
    admit,
    is_served,
    left_mib,
    room_kept,
    withdraw,
)
from berth.live.driver.suspending import MODULE
from berth.partition import Limit, create, fake_driver_folder, find, partitions, remove
from berth.partition.checkpoint import is_stopped
from berth.partition.gpus import Gpu
from berth.partition.hardware import Hardware, keep
from berth.partition.launch import environment
from tests.partition.test_reconciling import forge, write

AGENT = Path(__file__).with_name("node_agent.py")
JOB = Path(__file__).parents[1] / "local" / "growing_job.py"
CARD = Gpu(0, "GPU-b0b7bec5-ccd3-dae1-e8ef-f6fd040b1219", 16384)
LIMIT_S = 600.0


class Node:
    """One fake card, the programs on it, and at times an agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "orders").mkdir()
        self.jobs: dict[str, subprocess.Popen[str]] = {}
        self.agent: subprocess.Popen[bytes] | None = None

    def up(self, grow: str = "on", uncounted: str = "report") -> None:
        self.agent = subprocess.Popen([sys.executable, AGENT, self.folder, grow, uncounted])
        self.until(is_served, "the agent lives")

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def job(
        self, name: str, *words: object, mib: int = 4096, unkind: str = "", limit_mib: int = 0, **terms: Any
    ) -> str:
        """Start a job with `mib` promised, and its program once the agent knows the job."""
        with room_kept():
            limit = Limit(limit_mib or min(mib, left_mib(CARD)), 0)
            region = create(name, CARD, limit, overcommit=True).folder
        admit(name, Terms(name, mib, **terms), wait_s=LIMIT_S)
        words_of = environment(dict(os.environ), region=region, fake_gpu=True)
        told = {"BERTH_FAKE_CHECKPOINT": unkind} if unkind else {}
        self.jobs[name] = subprocess.Popen(
            [sys.executable, JOB, *map(str, words)], env=words_of | told, text=True, stdout=subprocess.PIPE
        )
        return name

    def order(self, name: str, *, suspended: bool) -> None:
        path = self.folder / "orders" / name
        path.touch() if suspended else path.unlink(missing_ok=True)

    def shown(self) -> dict[str, dict[str, Any]]:
        with suppress(OSError):
            found: dict[str, dict[str, Any]] = json.loads((self.folder / "shown").read_text())
            return found
        return {}

    def until_is(self, name: str, **wanted: object) -> None:
        self.until(lambda: wanted.items() <= self.shown().get(name, {}).items(), f"{name} is {wanted}")

    def until(self, true: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not true():
            if time.monotonic() > end_s:
                log = (self.folder / "log").read_text()[-3000:] if (self.folder / "log").exists() else ""
                raise AssertionError(f"not within {LIMIT_S:g} s: {what}; {self.shown()}\n{log}")
            time.sleep(0.01)

    def touch(self, name: str) -> Path:
        path = self.folder / name
        path.touch()
        return path

    def ends(self, name: str) -> tuple[int, list[str]]:
        """How a job ended, and what it said; its partition is removed."""
        said, _ = self.jobs[name].communicate(timeout=LIMIT_S)
        code = self.jobs.pop(name).returncode
        remove(name, force=True)
        return code, said.splitlines()

    def close(self) -> None:
        for name, process in self.jobs.items():
            process.kill()
            process.communicate()
            remove(name, force=True)
        if self.agent is not None:
            self.kill_agent()
        for pid in movers(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def movers(folder: Path) -> list[int]:
    """The processes that move jobs of this node now."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (
                MODULE in (path / "cmdline").read_text()
                and str(folder).encode() in (path / "environ").read_bytes()
            ):
                found.append(int(path.name))
    return found


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    fake_driver_folder()
    monkeypatch.setenv("BERTH_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("BERTH_FAKE_CARD", str(tmp_path / "card"))
    made = Node(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_limit_grows_while_the_card_has_room_and_is_shown(node: Node) -> None:
    node.up()
    node.job("blue", 4000, 4000, node.folder / "go")
    node.until_is("blue", used_mib=8000, granted=1, promise_mib=4096, max_mib=16384)
    assert 8000 <= node.shown()["blue"]["limit_mib"] <= 8192
    node.touch("go")
    assert node.ends("blue") == (0, ["holds 4000", "holds 4000"])
    node.until(lambda: not node.shown(), "it is forgotten")


def test_nothing_grows_beyond_its_terms_or_without_an_agent(node: Node) -> None:
    node.up("off")
    node.job("blue", 4000, 3000, 3000, max_mib=8192)
    assert node.ends("blue") == (1, ["holds 4000", "holds 3000", "refused 3000"])
    node.job("red", 4000, 3000)
    assert node.ends("red") == (1, ["holds 4000", "refused 3000"])
    node.kill_agent()
    node.agent = None
    assert not is_served()
    node.job("grey", 4000, 3000, max_mib=8192)
    assert node.ends("grey") == (1, ["holds 4000", "refused 3000"])


def test_one_that_finds_less_room_than_it_was_promised_gets_the_rest_later(node: Node) -> None:
    """The sum of limits is never more than the card, though neighbours have grown meanwhile."""
    node.up()
    node.job("blue", 4000, 8000, node.folder / "go")
    node.until_is("blue", used_mib=12000)
    node.job("red", 2000, 6000, mib=8192)
    node.until_is("red", used_mib=2000)
    assert sum(part.limit_bytes for part in partitions()) <= 16384 << 20
    node.touch("go")
    assert node.ends("blue")[0] == 0
    assert node.ends("red") == (0, ["holds 2000", "holds 6000"])


@pytest.mark.slow
def test_the_one_that_matters_least_leaves_for_one_that_grows_and_comes_back(node: Node) -> None:
    node.up("suspend")
    node.job("low", 6000, node.folder / "low-go", mib=6144, priority=1)
    node.job("high", 6000, node.folder / "grow", 6000, node.folder / "high-go", mib=6144, priority=2)
    node.until_is("low", used_mib=6000)
    node.until_is("high", used_mib=6000)
    node.touch("grow")
    node.until_is("high", used_mib=12000)
    node.until_is("low", suspension="suspended")
    node.touch("high-go")
    assert node.ends("high")[0] == 0
    node.until_is("low", suspension="", used_mib=6000)
    node.touch("low-go")
    assert node.ends("low") == (0, ["holds 6000"])


def test_one_that_must_stay_is_waited_for_and_no_job_has_more_than_the_card(node: Node) -> None:
    node.up("suspend")
    stays: dict[str, Any] = {"priority": 1, "leaves": False, "max_mib": 99_999_999}
    node.job("low", 6000, node.folder / "low-go", mib=6144, **stays)
    node.job("high", 6000, node.folder / "grow", 6000, mib=6144, priority=2)
    node.until_is("low", used_mib=6000, max_mib=16384)
    node.until_is("high", used_mib=6000)
    node.touch("grow")
    node.until_is("high", limit_mib=10240)  # it waits, and takes what is free
    assert node.shown()["low"]["suspension"] == ""
    node.touch("low-go")
    assert node.ends("low") == (0, ["holds 6000"])
    assert node.ends("high") == (0, ["holds 6000", "holds 6000"])


def test_a_job_leaves_when_the_site_says_so_and_its_memory_is_others_until_it_comes_back(node: Node) -> None:
    node.up()
    node.job("blue", 4000, node.folder / "go")
    node.until_is("blue", used_mib=4000)
    node.order("blue", suspended=True)
    node.until_is("blue", suspension="suspended", parked_mib=4000)
    node.job("red", 10000, node.folder / "red-go", mib=16384)
    node.until_is("red", used_mib=10000)
    node.order("blue", suspended=False)
    assert node.shown()["blue"]["suspension"] != ""
    node.touch("red-go")
    assert node.ends("red")[0] == 0
    node.until_is("blue", suspension="")
    node.touch("go")
    assert node.ends("blue") == (0, ["holds 4000"])


def throttles(node: Node) -> list[str]:
    """Why each throttled job could not leave instead."""
    log = [json.loads(line) for line in (node.folder / "log").read_text().splitlines()]
    return [each["why"] for each in log if each["event"] == "throttled"]


@pytest.mark.slow
@pytest.mark.parametrize(("unkind", "leaves"), [("", True), ("shares", False)])
def test_one_that_forges_its_counters_leaves_until_the_site_lets_it_back_or_is_throttled(
    node: Node, unkind: str, leaves: bool
) -> None:
    node.up("off", "suspend")
    forger = node.job("forger", 3000, node.folder / "go", unkind=unkind)
    node.until(lambda: find(forger)[0].used_bytes >= 3000 << 20, "it holds its memory")
    (use,) = find(forger)[0].folder.glob("*.use")
    held_bytes, had = find(forger)[0].used_bytes, find(forger)[0].core_pct
    places = forge(use, held_bytes)
    if leaves:
        node.until_is(forger, suspension="suspended")
        assert node.shown()[forger]["uncounted"].startswith("it held ")
        node.kill_agent()
        seen = looks(node)
        node.up("off", "suspend")
        node.until(lambda: looks(node) > seen + 4, "the next agent has heard of no order")
        assert node.shown()[forger]["suspension"] == "suspended"
        node.order(forger, suspended=True)
        seen = looks(node)
        node.until(lambda: looks(node) > seen + 2, "the site's order is heard")
        node.order(forger, suspended=False)
        node.until(lambda: node.shown()[forger]["suspension"] != "suspended", "it comes back")
    else:
        node.until(lambda: len(throttles(node)) == 1, "it is throttled")
        assert "shares memory" in throttles(node)[0]
        assert find(forger)[0].core_pct == 5
        seen = looks(node)
        node.until(lambda: looks(node) > seen + 2, "the site has asked for no suspension meanwhile")
        reason = node.shown()[forger]["uncounted"]
        assert re.fullmatch(
            "it holds .* counted 0 B.* left 5 % of the time, since .* shares memory .*", reason
        )
        node.kill_agent()
        node.up("off", "suspend")
        node.until(lambda: len(throttles(node)) == 2, "it is throttled again")
        write(use, places, held_bytes)
        node.until(lambda: find(forger)[0].core_pct == had, "it has its share again")
        node.until_is(forger, uncounted="")
        forge(use, held_bytes)
        node.until(lambda: find(forger)[0].core_pct == 5, "it evades once more")
        node.kill_agent()
        write(use, places, held_bytes)
        node.up("off", "suspend")
        node.until(lambda: find(forger)[0].core_pct == had, "the next agent gives it back")


def test_a_tenants_file_is_read_as_it_was_written_and_one_of_0_2_too(node: Node) -> None:
    file = create("blue", CARD, Limit(4096, 30)).folder / node_tenants.FILE
    admit("blue", Terms("7", 8192, milli=300))
    read = node_tenants._read("blue")
    assert read is not None
    assert (read.milli, read.share, read.said_mib, read.promise_mib) == (300, (300, 4096), 8192, 4096)
    kept = json.loads(file.read_text())
    for name in ("milli", "uncounted", "sent_away", "had_pct", "had_burst"):
        del kept[name]
    file.write_text(json.dumps(kept))
    old = node_tenants._read("blue")
    assert old is not None
    assert old.share == (300, 4096)
    remove("blue")


@pytest.mark.slow
def test_one_that_was_throttled_before_it_left_has_its_share_again_when_it_is_back(node: Node) -> None:
    node.up("off", "throttle")
    forger = node.job("forger", 3000, node.folder / "go")
    node.until(lambda: find(forger)[0].used_bytes >= 3000 << 20, "it holds its memory")
    (use,) = find(forger)[0].folder.glob("*.use")
    held_bytes, had = find(forger)[0].used_bytes, (find(forger)[0].core_pct, find(forger)[0].burst)
    places = forge(use, held_bytes)
    node.until(lambda: find(forger)[0].core_pct == 5, "it is throttled")
    node.order(forger, suspended=True)
    node.until_is(forger, suspension="suspended")
    write(use, places, held_bytes)
    end_s = time.monotonic() + 2.5 * node_tenants.NVML_S
    node.until(
        lambda: time.monotonic() > end_s, "the agent has looked at what processes hold while it is away"
    )
    assert node.shown()[forger]["uncounted"].endswith("it is left 5 % of the time")
    node.order(forger, suspended=False)
    node.until_is(forger, suspension="", uncounted="")
    assert (find(forger)[0].core_pct, find(forger)[0].burst) == had
    node.touch("go")
    assert node.ends(forger) == (0, ["holds 3000"])


def lent_notebook(node: Node) -> None:
    """A notebook that idles and has lent its memory to a job that grows."""
    terms: dict[str, Any] = {"mib": 12288, "interactive": True}
    node.job("notebook", 1000, node.folder / "go", 7, node.folder / "end", **terms)
    node.until_is("notebook", used_mib=1000)
    node.job("red", 2000, 8000, node.folder / "red-go")
    node.until_is("notebook", suspension="suspended", idle=True)
    node.until_is("red", used_mib=10000)


def test_a_notebook_lends_its_memory_while_it_idles_and_its_next_call_takes_it_back(node: Node) -> None:
    node.up("suspend")
    lent_notebook(node)
    node.touch("go")
    node.until_is("notebook", used_mib=1007)
    node.touch("end")
    assert node.ends("notebook") == (0, ["holds 1000", "holds 7"])
    node.until_is("red", suspension="", used_mib=10000)
    node.touch("red-go")
    assert node.ends("red") == (0, ["holds 2000", "holds 8000"])


@pytest.mark.slow
def test_a_notebook_comes_back_though_the_agent_was_killed_while_it_was_away(node: Node) -> None:
    node.up("suspend")
    lent_notebook(node)
    node.kill_agent()
    node.touch("go")
    node.up("suspend")
    node.until_is("notebook", used_mib=1007)
    node.touch("end")
    assert node.ends("notebook")[0] == 0
    node.touch("red-go")
    assert node.ends("red")[0] == 0


@pytest.mark.slow
def test_a_notebook_that_the_site_suspends_waits_for_the_site(node: Node) -> None:
    node.up("suspend")
    lent_notebook(node)
    node.order("notebook", suspended=True)
    node.until_is("notebook", suspension="suspended", idle=False)
    node.touch("go")
    node.touch("red-go")
    assert node.ends("red")[0] == 0
    assert node.shown()["notebook"]["suspension"] == "suspended"
    node.order("notebook", suspended=False)
    node.touch("end")
    assert node.ends("notebook")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("grow", "leaves"), [("on", True), ("suspend", False)])
def test_a_notebook_stays_unless_agent_and_site_let_it_leave(node: Node, grow: str, leaves: bool) -> None:
    node.up(grow)
    node.job("notebook", 1000, node.folder / "go", mib=12288, interactive=True, leaves=leaves)
    node.until_is("notebook", used_mib=1000)
    node.job("red", 2000, 8000)
    node.until_is("red", limit_mib=4096, used_mib=2000)
    before = looks(node)
    node.until(lambda: looks(node) > before + 20, "the agent has looked")
    assert node.shown()["notebook"]["suspension"] == ""
    node.touch("go")
    assert [node.ends(name)[0] for name in ("notebook", "red")] == [0, 0]


def looks(node: Node) -> int:
    """How often the agent has looked at its tenants."""
    return (node.folder / "looks").stat().st_size


def test_one_comes_back_only_when_its_part_of_the_compute_is_free(node: Node) -> None:
    node.up()
    node.job("blue", 1000, node.folder / "go", milli=600)
    node.until_is("blue", used_mib=1000)
    node.order("blue", suspended=True)
    node.until_is("blue", suspension="suspended")
    node.job("red", 1000, node.folder / "red-go", milli=600)
    node.until_is("red", used_mib=1000)
    node.order("blue", suspended=False)
    before = looks(node)
    node.until(lambda: looks(node) > before + 5, "the agent has looked")
    assert node.shown()["blue"]["suspension"] == "suspended"
    node.touch("red-go")
    node.touch("go")
    assert [node.ends(name)[0] for name in ("red", "blue")] == [0, 0]


def test_one_that_the_driver_does_not_suspend_runs_on_and_it_is_said_why(node: Node) -> None:
    node.up()
    node.job("blue", 4000, node.folder / "go", unkind="no-checkpoint")
    node.until_is("blue", used_mib=4000)
    node.order("blue", suspended=True)
    node.until(lambda: "cannot be moved" in node.shown()["blue"]["why"], "it is said why")
    node.until_is("blue", suspension="")
    node.touch("go")
    assert node.ends("blue") == (0, ["holds 4000"])


def test_what_the_site_has_stopped_leaves_its_gpu_and_stays_stopped(node: Node) -> None:
    node.up()
    node.job("blue", 4000, node.folder / "go")
    node.until_is("blue", used_mib=4000)
    os.kill(node.jobs["blue"].pid, signal.SIGSTOP)
    node.order("blue", suspended=True)
    node.until_is("blue", suspension="suspended", parked_mib=4000)
    node.touch("go")
    node.until(lambda: is_stopped(node.jobs["blue"].pid), "it is stopped")
    node.order("blue", suspended=False)
    assert node.ends("blue") == (0, ["holds 4000"])


@pytest.mark.slow
def test_one_that_is_stopped_while_it_comes_back_is_not_lost(node: Node) -> None:
    """As by Slurm, whose signal comes two seconds after `scontrol suspend`."""
    node.up()
    node.job("blue", 4000, node.folder / "go")
    node.until_is("blue", used_mib=4000)
    node.order("blue", suspended=True)
    node.until_is("blue", suspension="suspended", parked_mib=4000)
    node.order("blue", suspended=False)

    def is_moved_again() -> bool:
        os.kill(node.jobs["blue"].pid, signal.SIGSTOP)
        return "move-again" in (node.folder / "log").read_text()

    node.until(is_moved_again, "it is moved again")
    node.until_is("blue", suspension="", used_mib=4000)
    node.touch("go")
    assert node.ends("blue") == (0, ["holds 4000"])


def test_what_the_site_has_stopped_and_cannot_leave_stays_stopped(node: Node) -> None:
    node.up()
    node.job("blue", 4000, node.folder / "go", unkind="no-checkpoint")
    node.until_is("blue", used_mib=4000)
    os.kill(node.jobs["blue"].pid, signal.SIGSTOP)
    node.order("blue", suspended=True)
    node.until(lambda: node.shown()["blue"]["why"], "it is said why")
    node.until(lambda: is_stopped(node.jobs["blue"].pid), "it is stopped")
    os.kill(node.jobs["blue"].pid, signal.SIGCONT)
    node.touch("go")
    assert node.ends("blue") == (0, ["holds 4000"])


def test_one_whose_memory_the_driver_has_lost_ends(node: Node) -> None:
    node.up()
    node.job("blue", 4000, node.folder / "go", unkind="fails")
    node.until_is("blue", used_mib=4000)
    node.order("blue", suspended=True)
    node.until_is("blue", suspension="suspended")
    node.order("blue", suspended=False)
    node.until(lambda: node.jobs["blue"].poll() is not None, "it ends")
    assert node.ends("blue")[0] == -signal.SIGKILL


def test_a_name_that_is_made_anew_is_another_job(node: Node) -> None:
    node.up()
    node.job("blue", 4000, node.folder / "go")
    node.until_is("blue", used_mib=4000)
    node.order("blue", suspended=True)
    node.until_is("blue", suspension="suspended")
    node.jobs["blue"].kill()
    node.ends("blue")
    node.order("blue", suspended=False)
    node.job("blue", 3000, 3000)
    assert node.ends("blue") == (0, ["holds 3000", "holds 3000"])


@pytest.mark.slow
def test_there_is_one_agent_of_a_node(node: Node) -> None:
    node.up()
    second = subprocess.run(
        [sys.executable, AGENT, node.folder, "on"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert second.returncode == 1
    assert "another agent serves the partitions" in second.stderr


def test_who_admits_a_job_without_a_partition_is_told(node: Node) -> None:
    with pytest.raises(PartitionError, match="no partition 'none'"):
        admit("none", Terms("none", 100))


def test_nobody_waits_for_an_agent_that_does_not_serve_what_hardware_limits(node: Node) -> None:
    region = create("blue", CARD, Limit(4096))
    keep(region.folder, region.uuid, Hardware("mps", CARD.uuid, CARD.uuid, 4096))
    node.up()
    admit("blue", Terms("blue", 4096), wait_s=LIMIT_S)
    assert json.loads((region.folder / "tenant").read_text())["start"] == 1
    assert node.shown() == {}


def test_a_partition_is_withdrawn_when_no_agent_writes_into_it(node: Node) -> None:
    folder = create("blue", CARD, Limit(64)).folder
    withdrawal = threading.Thread(target=withdraw, args=("blue",))
    with room_kept(FILES):
        withdrawal.start()
        withdrawal.join(0.3)
        assert [part.name for part in partitions()] == ["blue"]
        (folder / "tenant").write_text("{}")
    withdrawal.join(LIMIT_S)
    assert not folder.exists()


@pytest.mark.slow
def test_an_agent_that_is_killed_at_any_step_loses_nothing(node: Node) -> None:
    storm(node, kills=4, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_kills_lose_nothing(node: Node, seed: int) -> None:
    storm(node, kills=20, seed=seed)


def limits() -> dict[str, int]:
    return {part.name: part.limit_bytes for part in partitions()}


def storm(node: Node, kills: int, seed: int) -> None:
    """Two jobs grow and leave for each other and by order while the agent and its movers are killed."""
    draw = random.Random(seed)
    node.up("suspend")
    steps = [node.folder / f"step-{at}" for at in range(3)]
    for name in ("blue", "red"):
        words = [each for step in steps for each in (step, "1500!")]
        node.job(name, 3000, *words, node.folder / "go", mib=3072, unkind="slow", priority=len(name))
    over = 0
    for at in range(kills):
        if at < len(steps):
            steps[at].touch()
        node.order(draw.choice(("blue", "red")), suspended=draw.random() < 0.5)
        signal.sigtimedwait([signal.SIGUSR2], draw.random() * 0.4)
        if draw.random() < 0.6:
            node.kill_agent()
            node.up("suspend")
        else:
            for pid in movers(node.folder):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with room_kept():
            first, then = limits(), limits()
        if first == then:  # else they have changed while they were read
            over = max(over, sum(first.values()) - (CARD.mem_mib << 20))
    for step in steps:
        step.touch()
    for name in ("blue", "red"):
        node.order(name, suspended=False)
    for name in ("blue", "red"):
        node.until_is(name, suspension="", used_mib=7500)
    node.touch("go")
    assert {name: node.ends(name) for name in ("blue", "red")} == {
        name: (0, ["holds 3000", *["holds 1500"] * 3]) for name in ("blue", "red")
    }
    assert over <= 0
    with pytest.raises(PartitionError):
        find("blue")


def test_who_asks_whether_an_agent_lives_is_taken_for_none_and_hinders_none(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = node.folder / "root"
    root.mkdir()
    os.close(node_tenants._alone(root))
    asking = os.open(root / node_tenants.ALIVE, os.O_RDWR)
    fcntl.flock(asking, fcntl.LOCK_SH)
    assert not is_served()
    slept: list[float] = []

    def answered(duration_s: float) -> None:
        slept.append(duration_s)
        fcntl.flock(asking, fcntl.LOCK_UN)

    monkeypatch.setattr(time, "sleep", answered)
    agent = node_tenants._alone(root)
    assert (is_served(), len(slept)) == (True, 1)
    with pytest.raises(PartitionError, match="another agent serves the partitions"):
        node_tenants._alone(root)
    os.close(agent)
    os.close(asking)
