"""A policy that cannot decide is refused in seconds, and the one that works decides on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from berth.errors import LiveError
from berth.live.driver.defaults import MACHINE_POLICY
from berth.live.local import link as of_link
from berth.live.local.book import Book
from berth.live.local.deciding import Chosen, Deciding
from berth.live.local.link import BRAIN, Link
from tests.live.local.world import PLAIN, World, berth

POLICIES = """
import time
def hangs(queue, cluster, now_ms):
    while True:
        pass
def hangs_at_once():
    while True:
        time.sleep(1)
def hangs_on_jobs(queue, cluster, now_ms):
    while any(not job.id.startswith("warm") for job in queue):
        pass
    return iter(())
"""


@pytest.fixture(scope="module")
def real() -> Iterator[World]:
    """A queue with the real brain, which has 20 s for each decision: a busy machine needs seconds for a good one."""
    made = World(brain=BRAIN, options=["--decide-s", "20"])
    try:
        made.up()
        (made.folder / "brk.py").write_text(POLICIES)
        (made.folder / "stuck.py").write_text("while True:\n    pass\n")
        yield made
    finally:
        made.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("brk:hangs", "it has not decided on jobs made up to try it within 20 s"),
        ("stuck:policy", "it was not loaded within 20 s"),
        ("brk:hangs_on_jobs", "it has not decided on the jobs that there are within 20 s"),
        ("nope", "no policy 'nope'"),
    ],
)
def test_a_policy_that_hangs_is_refused_while_the_old_one_decides(real: World, name: str, said: str) -> None:
    before = real.status()
    assert before is not None
    waiting = real.submit("true", mem="1G", begin="now+1s", gpu="0")
    gate = real.submit("while [ ! -e never ]; do sleep 0.02; done", gpu="1")
    stuck = real.submit("true", gpus=2)
    told: list[str] = []

    async def change() -> None:
        def ask() -> None:
            try:
                real.ask("policy", name=name, cwd=str(real.folder))
            except LiveError as error:
                told.append(str(error))

        asking = asyncio.create_task(asyncio.to_thread(ask))
        beside = await asyncio.to_thread(real.submit, "true", mem="1G", gpu="0")
        assert await asyncio.to_thread(real.wait, beside) == {beside: ("completed", 0)}
        await asking

    asyncio.run(change())
    assert told == [f"'{name}' cannot decide: {told[0].partition(': ')[2]}"]
    assert said in told[0]
    assert told[0].endswith(f"'{before['policy']}' goes on")
    after = real.status()
    assert after is not None
    assert (after["brain_pid"], after["brain"], after["policy"]) == (
        before["brain_pid"],
        "ready",
        before["policy"],
    )
    real.ask("cancel", ids=[gate, stuck])
    real.wait(waiting, gate, stuck)


def test_a_policy_that_there_is_not_does_not_bring_the_queue_up(tmp_path: Any) -> None:
    world = World()
    try:
        world.options = ["--policy", "no-such"]
        world.up(wait=False, ready=False)
        assert world.broker is not None
        assert world.broker.wait(300) == 2
        said = (world.folder / "errors").read_text()
        assert said == "berth: 'no-such' cannot decide: no policy 'no-such'\n"
        assert not world.state.exists()
        world.state.mkdir()  # made by the user: it stays
        world.up(wait=False, ready=False)
        assert world.broker.wait(300) == 2
        assert world.state.exists()
        world.options = []
        world.up()
        assert (world.status() or {})["policy"] == MACHINE_POLICY
    finally:
        world.close()


def test_a_job_outlives_the_refusal_of_the_first_policy() -> None:
    world = World(options=["--policy", "no-such-yet"])
    try:
        world.up(ready=False)
        job = world.submit("true")
        (world.folder / "seen").touch()
        assert world.broker is not None
        assert world.broker.wait(600) == 2
        assert (world.folder / "errors").read_text().endswith("no policy 'no-such-yet'\n")
        world.options = []
        world.up()
        assert world.wait(job) == {job: ("completed", 0)}
    finally:
        world.close()


@pytest.mark.slow
def test_a_brain_that_does_not_begin_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_link, "START_S", 1.0)
    monkeypatch.chdir(of_link.__file__.partition("/src/")[0])
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    said: list[str] = []

    def begin(policy: str, trial: bool) -> dict[str, Any]:
        return {"do": "begin", "nodes": [], "policy": policy, "events": [], "now_ms": 1}

    async def run() -> None:
        link = Link(
            begin,
            lambda message: None,
            lambda event, **fields: said.append(fields["why"]),
            brain=PLAIN,
        )
        link.start("any")
        assert link.pid > 0
        os.kill(link.pid, signal.SIGSTOP)
        await _until(lambda: bool(said))
        link.close()

    asyncio.run(run())
    assert said[0] == "it has not begun within 1 s"


def test_trouble_that_is_over_is_told_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_link, "CALM_S", 0.05)
    monkeypatch.setattr(of_link, "RESTART_S", 0.01)
    monkeypatch.chdir(of_link.__file__.partition("/src/")[0])
    monkeypatch.setenv("PYTHONPATH", os.getcwd())

    def begin(policy: str, trial: bool) -> dict[str, Any]:
        return {"do": "begin", "nodes": [], "policy": policy, "events": [], "now_ms": 1}

    async def run() -> None:
        link = Link(begin, lambda message: None, lambda event, **fields: None, brain=PLAIN)
        link.start("any")
        await _until(lambda: link.ready)
        os.kill(link.pid, signal.SIGKILL)
        await _until(lambda: bool(link.trouble))
        await _until(lambda: link.ready and not link.trouble)
        link.close()

    asyncio.run(run())


def test_a_policy_that_is_tried_is_not_ready_before_it_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(of_link.__file__.partition("/src/")[0])
    monkeypatch.setenv("PYTHONPATH", os.getcwd())

    def begin(policy: str, trial: bool) -> dict[str, Any]:
        return {"do": "begin", "nodes": [], "policy": policy, "events": [], "now_ms": 1}

    async def run() -> set[tuple[str, bool]]:
        link = Link(begin, lambda message: None, lambda event, **fields: None, brain=PLAIN)
        trying = asyncio.create_task(link.change("any"))
        seen = set()
        while not trying.done():
            seen.add((link.progress, link.ready))
            await asyncio.sleep(0)
        await trying
        await _until(lambda: link.ready)
        link.close()
        return seen

    assert ("ready", False) not in asyncio.run(run())


async def _until(holds: Any) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


@pytest.mark.slow
def test_flags_of_up_that_differ_are_refused_or_heeded() -> None:
    world = World(gpus="1xA100-80G")
    try:
        world.up()
        for words, said in (
            (["--fake-gpus", "2xA100-80G"], "--fake-gpus 2xA100-80G, and it has 1xA100-80G"),
            (["--metrics", "9400"], "--metrics 9400, and it has none"),
            (["--policy", "fifo"], "change it with: berth policy fifo"),
            (["--metrics", "99999"], "a port is from 1 to 65535"),
        ):
            done = berth(world, "up", *words)
            assert (done.returncode, done.stdout, said in done.stderr) == (2, "", True), done.stderr
        assert berth(world, "up", "--fake-gpus", "1xA100-80G").returncode == 0
        job = world.submit("while [ ! -e go ]; do sleep 0.02; done", mem="1G")
        world.until(lambda: world.state_of(job) == "running", "it runs")
        world.kill_broker()
        world.gpus = "4xA100-80G"
        world.up(wait=False, ready=False)
        assert world.broker is not None
        assert world.broker.wait(300) == 2
        assert f"jobs run on 1xA100-80G that this queue had ({job})" in (world.folder / "errors").read_text()
        (world.folder / "go").touch()
        world.until(lambda: not world.shims(), "the job has ended")
        world.up()
        status = world.status()
        assert status is not None
        assert len(status["gpus"]) == 4
        assert world.wait(job) == {job: ("completed", 0)}
    finally:
        world.close()


@pytest.mark.slow
def test_down_and_up_at_once() -> None:
    world = World(gpus="1xA100-80G")
    try:
        assert berth(world, "up", "--fake-gpus", "1xA100-80G").returncode == 0
        assert berth(world, "submit", "--gpus", "0", "true").returncode == 0
        for _ in range(2):
            assert berth(world, "down").returncode == 0
            done = berth(world, "up")
            assert (done.returncode, done.stderr.count("another broker")) == (0, 0), done.stderr
    finally:
        berth(world, "down", "--cancel")
        world.close()


def test_a_brain_that_cannot_be_started_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_link, "RESTART_S", 0.01)
    monkeypatch.chdir(of_link.__file__.partition("/src/")[0])
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    spawn, calls, fails = os.posix_spawn, [], asyncio.Event()

    def may_fail(*args: Any, **named: Any) -> int:
        calls.append(1)
        if fails.is_set():
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return spawn(*args, **named)

    def begin(policy: str, trial: bool) -> dict[str, Any]:
        return {"do": "begin", "nodes": [], "policy": policy, "events": [], "now_ms": 1}

    async def run() -> None:
        monkeypatch.setattr(os, "posix_spawn", may_fail)
        link = Link(begin, lambda message: None, lambda event, **fields: None, brain=PLAIN)
        link.start("any")
        await _until(lambda: link.ready)
        fails.set()
        os.kill(link.pid, signal.SIGKILL)
        await _until(lambda: len(calls) >= 3)
        assert "no process can be started for it (Resource temporarily unavailable)" in link.trouble
        fails.clear()
        await _until(lambda: link.ready)
        assert (link.crashes, link.deciding) == (1, "any")
        fails.set()
        with pytest.raises(
            LiveError, match=r"'other' cannot decide: no process can be started.*'any' goes on"
        ):
            await link.change("other")
        assert link.ready
        link.close()

    asyncio.run(run())


def test_no_job_is_shown_as_measured_by_a_brain_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next says what it measures when it has decided."""
    monkeypatch.chdir(of_link.__file__.partition("/src/")[0])
    monkeypatch.setenv("PYTHONPATH", os.getcwd())

    async def run() -> None:
        deciding = Deciding(
            Book(), [], "", Chosen("any", "user"), lambda event, **fields: None,
            now_ms=lambda: 1, act=lambda: None, wake_at=lambda now_ms: None, is_ready=lambda: None,
            has_decided=lambda seconds: None, brain=PLAIN,
        )  # fmt: skip
        deciding.link.start("any")
        decided = {"say": "decided", "serial": 0, "seconds": 0.1, "wake_ms": None, "measured": ["1"]}
        deciding.on_message(decided)
        assert list(deciding.measured) == ["1"]
        deciding.link.start("any")
        assert list(deciding.measured) == []
        deciding.link.close()

    asyncio.run(run())
