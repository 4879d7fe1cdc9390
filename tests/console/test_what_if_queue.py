"""The queue of what-ifs: whose turn it is, what is kept, and what becomes of a replay that goes wrong."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from berth.console.what_if import queue as children
from berth.console.what_if import store as stores
from berth.console.what_if import worker
from berth.console.what_if.question import Question
from berth.console.what_if.queue import MOST_ATTEMPTS, Queue, starter
from berth.console.what_if.store import Place, Store
from berth.console.what_if.worker import ANSWER
from berth.errors import LiveError, SettingError
from tests.console.workers import ASKED, FakeChild, Workers, place, queue_in
from tests.experiments.test_recorded_run import history as history


def test_users_take_turns(tmp_path: Path) -> None:
    workers = Workers()
    queue = queue_in(tmp_path / "what-if", workers)
    first = [queue.ask("ann", ASKED).id for _ in range(3)]
    second = queue.ask("bob", ASKED).id
    queue.look()
    assert list(workers.of) == first[:1]
    assert queue.turns() == {second: 0, first[1]: 1, first[2]: 2}
    workers.of[first[0]].ended = 1
    queue.look()
    assert list(workers.of) == [first[0], second]


def test_two_run_where_two_may(tmp_path: Path) -> None:
    workers = Workers()
    queue = queue_in(tmp_path / "what-if", workers, processes=2)
    ids = [queue.ask(user, ASKED).id for user in ("ann", "ann", "bob")]
    queue.look()
    assert list(workers.of) == [ids[0], ids[2]]


@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        ({"rss": 2000}, "needs more memory than the 1,024 MiB"),
        ({"ended": -signal.SIGKILL}, "ended by signal 9, as the kernel does when memory runs out"),
        ({"ended": 2}, "ended with status 2; the operator finds why in"),
        ({"ended": 0}, "ended with status 0"),
        (
            {"ended": 1, "told": [{"done": 0.5}, {"failed": "no job ran in this period"}]},
            "no job ran in this period",
        ),
    ],
)
def test_a_replay_that_goes_wrong_says_why_and_the_next_is_answered(
    tmp_path: Path, happens: dict[str, Any], expected: str
) -> None:
    workers = Workers()
    queue = queue_in(tmp_path / "what-if", workers)
    first, second = queue.ask("ann", ASKED).id, queue.ask("ann", ASKED).id
    queue.look()
    for name, value in happens.items():
        setattr(workers.of[first], name, value)
    assert queue.look()
    told, detail = place(queue, first)
    assert (told, expected in detail, workers.of[first].stopped) == ("failed", True, True), detail
    assert place(queue, second)[0] == "running"


@pytest.mark.parametrize("place_of_fault", ["start", "news"])
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (OSError(12, "Cannot allocate memory"), "cannot be run: Cannot allocate memory"),
        (ValueError("could not convert string to float: 'x'"), "cannot be followed (ValueError("),
        (MemoryError(), "cannot be followed (MemoryError())"),
    ],
)
def test_whatever_a_worker_does_its_run_fails_and_the_next_is_answered(
    tmp_path: Path, place_of_fault: str, fault: Exception, expected: str
) -> None:
    class Faulty(Workers):
        def __call__(self, folder: Path, mem_mib: int) -> FakeChild:
            child = super().__call__(folder, mem_mib)
            if len(self.of) == 1:
                if place_of_fault == "start":
                    raise fault
                child.news = self.fail  # type: ignore[method-assign]
            return child

        def fail(self) -> list[dict[str, Any]]:
            raise fault

    workers = Faulty()
    queue = queue_in(tmp_path / "what-if", workers)
    first, second = queue.ask("ann", ASKED).id, queue.ask("ann", ASKED).id
    for _ in range(2):
        queue.look()
    told, detail = place(queue, first)
    assert (told, expected in detail) == ("failed", True), detail
    assert place(queue, second)[0] == "running"


def raises(queue: object, cluster: object, now_ms: int) -> Iterator[object]:
    """A policy with a fault."""
    raise ZeroDivisionError("no node is left")
    yield


def short_of_memory(queue: object, cluster: object, now_ms: int) -> Iterator[object]:
    """A policy that is given no memory."""
    raise MemoryError
    yield


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("tests.console.test_what_if_queue:raises", "the policy fails: ZeroDivisionError: no node is left"),
        ("tests.console.test_what_if_queue:short_of_memory", "more memory than the 64 MiB that one may have"),
        ("tests.console.test_what_if_queue:absent", "absent"),
    ],
)
def test_a_policy_that_fails_ends_its_replay_with_the_cause(
    tmp_path: Path, history: Path, capsys: pytest.CaptureFixture[str], policy: str, expected: str
) -> None:
    kept = Store(tmp_path / "what-if").add("ann", replace(ASKED, policies=(policy,)), 1.0)
    assert worker.attempt(tmp_path / "what-if" / kept.id, history, 64) == 1
    assert expected in json.loads(capsys.readouterr().out.splitlines()[-1])["failed"]


def test_a_fault_of_berth_itself_is_told_with_its_log(
    tmp_path: Path, history: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise KeyError("makespan")

    monkeypatch.setattr("berth.console.what_if.answer._pictures", fault)
    kept = Store(tmp_path / "what-if").add("ann", ASKED, 1.0)
    folder = tmp_path / "what-if" / kept.id
    assert worker.attempt(folder, history, 64) == 1
    out, err = capsys.readouterr()
    failed = json.loads(out.splitlines()[-1])["failed"]
    assert failed.startswith("the replay failed with KeyError: 'makespan'")
    assert (str(folder / "log") in failed, "Traceback" in err) == (True, True)


def test_stopped_and_asked_again(tmp_path: Path) -> None:
    workers = Workers()
    queue = queue_in(tmp_path / "what-if", workers)
    asked_id = queue.ask("ann", ASKED).id
    queue.look()
    workers.of[asked_id].told = [{"done": 0.4}, {"done": 0.3}]
    queue.look()
    entry = queue.get(asked_id)
    assert entry is not None
    assert entry.done == 0.4
    queue.stop(asked_id)
    assert (place(queue, asked_id)[0], workers.of[asked_id].stopped) == ("stopped", True)
    assert not queue.look()
    queue.again(asked_id)
    queue.look()
    assert place(queue, asked_id)[0] == "running"


def test_a_console_that_begins_again_goes_on_and_gives_up_in_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "what-if"
    queue = queue_in(folder, Workers())
    asked_id = queue.ask("ann", ASKED).id
    for _ in range(MOST_ATTEMPTS):
        queue.look()
        assert place(queue, asked_id)[0] == "running"
        queue.end()
        queue = queue_in(folder, Workers())
    told, detail = place(queue, asked_id)
    assert (told, "interrupted: the console ended 3 times" in detail) == ("failed", True)


def test_an_answer_that_was_written_while_the_console_ended_counts(tmp_path: Path) -> None:
    folder = tmp_path / "what-if"
    queue = queue_in(folder, Workers())
    asked_id = queue.ask("ann", ASKED).id
    queue.look()
    queue.end()
    (folder / asked_id / ANSWER).write_text("{}")
    assert place(queue_in(folder, Workers()), asked_id)[0] == "done"


def test_a_second_console_on_the_folder_reads_and_does_not_answer(tmp_path: Path) -> None:
    queue = queue_in(tmp_path / "what-if", Workers())
    queue.ask("ann", ASKED)
    other = queue_in(tmp_path / "what-if", Workers())
    assert len(other.all()) == 1
    with pytest.raises(LiveError, match="another console answers"):
        other.ask("bob", ASKED)


def test_what_was_cut_off_while_it_was_written_is_no_question(tmp_path: Path) -> None:
    store = Store(tmp_path)
    whole = store.add("ann", ASKED, 1.0)
    (tmp_path / "AAAAAAAAAAAA").mkdir()
    cut = store.add("ann", ASKED, 2.0)
    path = tmp_path / cut.id / stores.QUESTION
    path.write_bytes(path.read_bytes()[:20])
    assert Store(tmp_path).all() == [whole]


def test_on_a_full_disk_a_question_is_refused_and_a_state_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "what-if")
    kept = store.add("ann", ASKED, 1.0)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stores, "write_whole", full)
        with pytest.raises(LiveError, match=r"cannot be kept in .*: No space left on device"):
            store.add("ann", ASKED, 2.0)
        store.change(kept.id, stores.State(Place.FAILED, "why"))
    assert [entry.state.place for entry in Store(tmp_path / "what-if").all()] == [Place.WAITING]
    store.write_again()
    assert [entry.state.detail for entry in Store(tmp_path / "what-if").all()] == ["why"]


def test_a_user_keeps_so_many_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MOST_ANSWERS", 2)
    store = Store(tmp_path)
    for _ in range(2):
        store.add("ann", ASKED, 1.0)
    store.add("bob", ASKED, 1.0)
    with pytest.raises(SettingError, match="you keep 2 questions; delete some"):
        store.add("ann", ASKED, 1.0)


def _wait(queue: Queue, question_id: str) -> tuple[str, str]:
    deadline = time.monotonic() + 300
    while not Place(place(queue, question_id)[0]).over and time.monotonic() < deadline:
        queue.look()
        time.sleep(0.05)
    return place(queue, question_id)


@pytest.mark.slow
def test_a_real_worker_answers_dies_of_too_little_memory_and_of_a_signal(
    tmp_path: Path, history: Path
) -> None:
    queue = Queue(tmp_path / "what-if", starter(history), 1, 4096)
    answered_id = queue.ask("ann", ASKED).id
    assert _wait(queue, answered_id) == ("done", "")
    empty = queue.ask("ann", Question(("sjf",), 1, 2)).id
    assert "no job of the history ran" in _wait(queue, empty)[1]
    killed = queue.ask("ann", ASKED).id
    queue.look()
    running = queue._running[killed]
    assert isinstance(running, children.Child)
    os.kill(running._process.pid, signal.SIGKILL)
    assert "signal 9" in _wait(queue, killed)[1]
    queue.end()
    small = Queue(tmp_path / "what-if", starter(history), 1, 20)
    needy = small.ask("ann", ASKED).id
    assert "more memory than the 20 MiB" in _wait(small, needy)[1]
    small.end()


@pytest.mark.slow
def test_a_worker_ends_with_its_console(tmp_path: Path, history: Path) -> None:
    folder = Store(tmp_path / "what-if").add("ann", ASKED, 1.0)
    process = starter(history)(tmp_path / "what-if" / folder.id, 4096)
    assert isinstance(process, children.Child)
    assert process._process.stdin is not None
    process._process.stdin.close()  # as the kernel does when a console is killed
    process._process.stdin = None
    assert process._process.wait(120) == 3
    process.stop()
