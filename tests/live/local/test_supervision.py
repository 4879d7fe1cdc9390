"""No task of the broker ends unnoticed, whatever goes wrong in it."""

from __future__ import annotations

import asyncio
import csv
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from berth.errors import LiveError, StoreError
from berth.live.local.broker import Broker, supervised
from berth.live.local.entry import Entry
from berth.live.local.keeping import Commits
from berth.live.local.log import Log
from berth.live.local.places import Places
from berth.live.local.protocol import Caller
from berth.live.local.recovery import started_since
from berth.live.local.request import Request, tasks_of
from berth.live.local.service import Service
from berth.live.local.store import Store, of_meta
from tests.live.local.world import World, berth


class NoCards:
    """A machine without GPUs."""

    fake = False
    cards = ()

    @staticmethod
    def nodes(limits: Any) -> list[Any]:
        """None."""
        return []


def broker_of(places: Places, store: Store) -> Broker:
    return Broker(places, store, NoCards(), Log(None))  # type: ignore[arg-type]


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    """A broker that is not run: its parts can be asked."""
    places = Places(str(tmp_path / "state"))
    places.make()
    store = Store(places.store)
    made = broker_of(places, store)
    yield made
    store.close()


def test_a_task_that_fails_is_logged_and_started_again() -> None:
    runs: list[int] = []
    said: list[tuple[str, str]] = []

    async def work() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise StoreError("the disk is full")

    def log(event: str, **fields: str) -> None:
        said.append((event, fields["task"]))
        assert "the disk is full" in fields["why"]

    asyncio.run(supervised("keep", work, log, pause_s=0))
    assert (len(runs), said) == (3, [("task-failed", "keep")] * 2)


def test_a_task_that_fails_for_ever_is_started_again_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[int] = []
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def work() -> None:
        runs.append(1)
        if len(runs) <= 1100:
            raise StoreError("the disk is full")

    monkeypatch.setattr("berth.live.local.broker.asyncio.sleep", pause)
    asyncio.run(supervised("keep", work, lambda event, **fields: None))
    assert (len(runs), pauses[:7], set(pauses[5:])) == (1101, [1, 2, 4, 8, 16, 30, 30], {30})


@pytest.mark.slow
def test_on_a_full_disk_time_limits_hold_and_status_and_queue_say_what_is_wrong() -> None:
    world = World(module="tests.live.local.faulty_broker", options=["--record-s", "0.1"])
    try:
        world.up()
        limited = world.submit("echo began; exec sleep 600", time="5s", mem="1G")
        ended, cancelled = world.submit("true", gpus=0), world.submit("exec sleep 600", gpus=0)
        world.until(lambda: world.state_of(limited) == "running", "it runs")
        world.wait(ended)
        (world.state / "full").touch()
        with pytest.raises(LiveError, match="free some room on its disk"):
            world.submit("true")
        done = berth(world, "cancel", cancelled)  # which may be what makes room
        assert (done.returncode, done.stdout.partition(" (")[0].split()[:2]) == (0, ["job", f"{cancelled}:"])
        assert "done, but not written yet: " in done.stderr
        # One that was to be recorded, and whose store cannot be written, ended the task that heeds limits, too.
        world.until(lambda: '"not-recorded"' in world.log(), "a recording has failed")
        world.until(lambda: not world.shims(), "its time limit has ended it")
        world.until(lambda: world.state_of(limited) == "timeout", "it is told")
        assert "disk is full" in berth(world, "queue").stderr
        assert "trouble: " in berth(world, "status").stdout
        (world.state / "full").unlink()
        ends = world.wait(limited, cancelled)
        assert {job: state for job, (state, _) in ends.items()} == {
            limited: "timeout",
            cancelled: "cancelled",
        }
        world.until(lambda: not berth(world, "queue").stderr, "it is over")
    finally:
        world.close()


def test_what_follows_from_a_write_is_done_whatever_another_raises(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "queue.db"))
    done: list[str] = []
    said: list[str] = []

    def fails() -> None:
        raise RuntimeError("odd")

    async def run() -> None:
        follow = [fails, lambda: done.append("second"), lambda: done.append("third")]
        commits = Commits(
            store, lambda: ([], follow.pop(0) if follow else lambda: None),
            lambda event, **fields: said.append(event),
        )  # fmt: skip
        task = asyncio.create_task(commits.run())
        with pytest.raises(StoreError, match="cannot be"):
            await commits.ask([("INSERT INTO requests VALUES (?, ?)", (1 << 80, "{}"))])
        await commits.ask([of_meta("next", 1)])
        await commits.flushed()
        task.cancel()
        await commits.close()

    asyncio.run(run())
    assert (done, said, store.meta("next")) == (["second", "third"], ["follow-up-failed"], 1)
    store.close()


def test_a_wait_that_is_over_leaves_nothing_behind(broker: Any) -> None:
    book = broker.book
    book.add(book.draft(Request(("true",), gpus=0), tasks_of({}), key=1, uid=0, user="root", now_ms=1), 1)

    async def run() -> None:
        told = await Service(broker).do_wait({"ids": ["1"], "timeout": 0.01}, Caller(0, lambda: False))
        assert told == {"late": 1, "jobs": []}
        gone = Caller(0, lambda: True)
        assert (await Service(broker).do_wait({"ids": ["1"]}, gone))["late"] == 1

    asyncio.run(run())
    assert broker._waiters == {}


def test_what_start_intervals_have_learned_is_told_to_the_brain_of_the_next_broker(broker: Any) -> None:
    broker.deciding.on_message({"say": "learned-starts", "text": "much"})
    broker.store.write(broker._collect()[0])
    again = broker_of(broker.places, broker.store)
    assert again.deciding._begin("fifo+best-fit", False)["learned_starts"] == "much"
    assert broker._collect()[0] == [], "it is written when it has changed"


def test_knowledge_that_is_only_tried_is_told_to_no_other_brain(broker: Any) -> None:
    told: list[tuple[str, str]] = []

    async def change(policy: str, accepted: Any) -> None:
        told.append(
            (
                broker.deciding._begin(policy, True)["knowledge"],
                broker.deciding._begin("fifo", False)["knowledge"],
            )
        )
        raise LiveError("it cannot decide")

    broker.link.change = change
    broker.link.policy = "fifo"
    message = {"name": "sjf", "knowledge": "user", "cwd": "/"}
    with pytest.raises(LiveError, match="cannot decide"):
        asyncio.run(Service(broker).do_policy(message, Caller(0, lambda: False)))
    assert (told, broker.deciding.chosen.knowledge) == ([("user", "history")], "history")


def test_a_measured_model_of_slow_downs_leaves_the_queue_its_own_history(broker: Any) -> None:
    deciding = broker.deciding
    folder = Path(deciding._history)

    def named(knowledge: str) -> str:
        deciding.chosen = replace(deciding.chosen, knowledge=knowledge)
        told: str = deciding._begin("fifo", False)["knowledge"]
        return told

    broker.link.policy = "fifo"
    assert (named("history"), named("history?interference=mps")) == ("history", "history?interference=mps")
    folder.mkdir(parents=True)
    (folder / "index.json").write_text("{}")
    assert named("history") == f"history?begin={folder}"
    assert named("history?interference=/m.json") == f"history?begin={folder}&interference=/m.json"
    assert named("history?begin=/b&interference=mps") == "history?begin=/b&interference=mps"


def test_a_job_file_that_makes_no_sense_keeps_no_broker_from_starting(tmp_path: Path) -> None:
    for at, text in enumerate(
        ("[]", "{}", '{"request": 3}', '{"entry": {"id": 1}, "request": {"odd": 1}, "texts": 3}', "not JSON"),
        1,
    ):
        (tmp_path / f"{at}-1").mkdir()
        (tmp_path / f"{at}-1" / "job").write_text(text)
    assert started_since(str(tmp_path), {}, lambda: 1, "boot") == ([], [])


def test_two_edits_at_once_are_both_done(shared: World) -> None:
    job = shared.submit("true", mem="1G", begin="now+1h")
    clients = []
    for flags in ({"name": "new"}, {"mem": "2G"}):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(shared.places.socket)
        client.sendall(json.dumps({"do": "edit", "ids": [job], "flags": flags}).encode() + b"\n")
        clients.append(client)
    answers = []
    for client in clients:
        answers.append(json.loads(client.makefile().readline()))
        client.close()
    told = shared.job(job)
    shared.ask("cancel", ids=[job])
    assert [answer["ok"] for answer in answers] == [True, True], answers
    assert (told["name"], told["mem_mib"]) == ("new", 2048)


def test_what_was_meant_otherwise_is_said_and_a_bad_line_of_a_script_named(shared: World) -> None:
    (shared.folder / "bad.sh").write_text("#!/bin/sh\n#BERTH --gpus 0\n#BERTH --cpus many\ntrue\n")
    done = berth(shared, "submit", "./bad.sh")
    assert done.returncode == 2
    assert done.stderr.startswith("berth: ./bad.sh, line 3: --cpus 'many'; expected a number")
    done = berth(shared, "submit", "--output", "none/out", "--gpus", "0", "true")
    assert (done.returncode, "there is no folder none; make it first" in done.stderr) == (2, True)
    done = berth(shared, "submit", "--gpus", "0", "--profile", "new", "--param", "lr=1,2", "true", "{other}")
    assert done.returncode == 0
    assert "there is no profile 'new' yet; it will be recorded from this job's runs" in done.stderr
    assert "no {lr} in the command: the job finds it in BERTH_PARAM_lr" in done.stderr
    shared.wait(done.stdout.split()[1].rstrip(":"))
    held = shared.submit("true", gpus=0, begin="now+1h")
    done = berth(shared, "wait", "--all", "--timeout", "0.01")
    assert (done.returncode, done.stdout) == (124, "")
    assert f"waiting for job {held} (its start time has not come yet)" in done.stderr
    assert "1 job has not ended yet" in done.stderr
    shared.ask("cancel", all=True)


def test_a_dependency_that_closes_a_circle_is_refused(shared: World) -> None:
    first = shared.submit("true", gpus=0, begin="now+1h")
    array = shared.submit("true", gpus=0, after=f"ok:{first}", array="1-2")
    last = shared.submit("true", gpus=0, after=f"any:{array}_2")
    with pytest.raises(LiveError, match=f"job {last} waits for job {first} itself"):
        shared.ask("edit", ids=[first], flags={"after": f"ok:{last}"})
    shared.ask("edit", ids=[last], flags={"after": f"ok:{first}"})
    shared.ask("cancel", ids=[first, array, last])


def test_why_of_an_array_explains_what_is_alike_once(shared: World) -> None:
    room = shared.submit("sleep 600", array="1-2")
    shared.until(lambda: shared.ask("status")["jobs"]["running"] == 2, "both run")
    array = shared.submit("true", array="1-40")
    head, *rows = berth(shared, "queue", "--limit", "3").stdout.splitlines()
    assert head.split() == ["ID", "USER", "NAME", "STATE", "GPUS", "MEM", "TIME", "WHERE", "OR", "WHY"]
    assert [row.split()[0] for row in rows] == [f"{room}_1", f"{room}_2", f"{array}_1"]
    assert (rows[0].split()[-2], " waits for room" in rows[2]) == ("GPU", True)
    shown = json.loads(berth(shared, "queue", "--json").stdout)
    listed = shown["jobs"]
    other = json.loads(berth(shared, "status", "--json").stdout)  # the same snapshot
    assert (set(other) - {"service"}, [job["id"] for job in other["jobs"]]) == (
        set(shown),
        [job["id"] for job in listed],
    )
    cells = list(csv.DictReader(berth(shared, "queue", "--csv").stdout.splitlines()))
    assert [(row["id"], row["state"]) for row in cells] == [(job["id"], job["state"]) for job in listed]
    cards = list(csv.DictReader(berth(shared, "status", "--csv").stdout.splitlines()))
    assert [row["index"] for row in cards] == ["0", "1"]
    told = shared.ask("why", id=array)["jobs"]
    assert [job["like"] for job in told] == ["", *[f"{array}_1"] * 39]
    said = berth(shared, "why", array).stdout
    assert f"the same holds for {array}_2, {array}_3, {array}_4, {array}_5, {array}_6 and 34 more\n" in said
    shared.ask("cancel", ids=[array, room])
    shared.wait(room)


@pytest.mark.parametrize("given_up", [True, False])
def test_a_start_that_breaks_off_counts_as_none_only_if_it_was_given_up(broker: Any, given_up: bool) -> None:
    book = broker.book
    (entry,) = made = book.draft(
        Request(("true",), gpus=0), tasks_of({}), key=1, uid=0, user="root", now_ms=1
    )
    book.add(made, 1)
    book.placed(entry.id, entry.version, (), (1000, 0), 1)
    adopted: list[Entry] = []

    def breaks(entry: Entry) -> None:
        raise OSError(24, "Too many open files")

    async def run() -> None:
        broker.runner.start, broker.runner.adopt = breaks, adopted.append
        broker.runner.give_up = lambda entry: given_up
        broker._start(entry)

    asyncio.run(run())
    assert (entry.over is not None, adopted) == ((True, []) if given_up else (False, [entry]))


def test_a_job_named_twice_is_changed_once_and_a_wait_of_no_time_ends(broker: Any) -> None:
    book = broker.book
    made = book.draft(Request(("true",), gpus=0), tasks_of({}), key=1, uid=0, user="root", now_ms=1)
    book.add(made, 1)
    caller = Caller(0, lambda: False)
    assert [each.id for each in Service(broker)._controlled({"ids": ["1", "1"]}, caller)] == ["1"]

    async def run() -> None:
        told = await asyncio.wait_for(Service(broker).do_wait({"ids": ["1"], "timeout": 0}, caller), 30)
        assert told == {"late": 1, "jobs": []}

    asyncio.run(run())


def test_a_decision_of_before_a_brain_began_anew_counts_no_more(broker: Any) -> None:
    book = broker.book
    (entry,) = made = book.draft(
        Request(("true",), gpus=0), tasks_of({}), key=1, uid=0, user="root", now_ms=1
    )
    book.add(made, 1)
    before = entry.version
    broker.deciding._begin("fifo", True)
    assert entry.version == before
    begin = broker.deciding._begin("fifo", False)
    assert [event["event"] for event in begin["events"]] == ["waits"]
    start = {"say": "start", "id": "1", "slots": [], "share": [1000, 0], "best_effort": False}
    broker.deciding.on_message({**start, "version": before})
    assert entry.state == "waiting"
    broker.deciding.on_message({**start, "version": entry.version})
    assert entry.state == "starting"
