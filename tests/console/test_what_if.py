"""What if: who may ask, what is refused in words, whose turn it is, and what becomes of a replay that goes wrong."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from berth.console.roles import Role
from berth.console.what_if import child as children
from berth.console.what_if import store as stores
from berth.console.what_if import worker
from berth.console.what_if.answer import Answer, Row, answered
from berth.console.what_if.child import starter
from berth.console.what_if.question import Question, asked, command
from berth.console.what_if.queue import MOST_ATTEMPTS, Queue
from berth.console.what_if.store import Place, Store
from berth.console.what_if.worker import ANSWER
from berth.errors import LiveError, SettingError
from berth.history.importing.simulated import import_records
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import write_records
from tests.console.world import World
from tests.experiments.test_lived import history, record

__all__ = ["history"]
ORIGIN = 1_700_000_000_000
ASKED = Question(("sjf",), ORIGIN - 1, ORIGIN + 10**9)
BODY = {"policies": ["sjf"], "since": "2023-11-01", "until": "2023-12-01"}


class FakeChild:
    """A worker that does what the test says."""

    def __init__(self, folder: Path, mem_mib: int) -> None:
        self.folder = folder
        self.told: list[dict[str, Any]] = []
        self.ended: int | None = None
        self.rss = 0
        self.stopped = False

    def status(self) -> int | None:
        return self.ended

    def news(self) -> list[dict[str, Any]]:
        told, self.told = self.told, []
        return told

    def rss_mib(self) -> int:
        return self.rss

    def stop(self) -> None:
        self.stopped = True


class Workers:
    """Starts fake workers, and keeps them by the id of their question."""

    def __init__(self) -> None:
        self.of: dict[str, FakeChild] = {}

    def __call__(self, folder: Path, mem_mib: int) -> FakeChild:
        self.of[folder.name] = FakeChild(folder, mem_mib)
        return self.of[folder.name]


def queue_in(folder: Path, workers: Workers, processes: int = 1) -> Queue:
    ticks = iter(range(1, 10**6))
    return Queue(folder, workers, processes, 1024, clock=lambda: float(next(ticks)))


def place(queue: Queue, question_id: str) -> tuple[str, str]:
    entry = queue.get(question_id)
    assert entry is not None
    return entry.state.place.value, entry.state.detail


@pytest.fixture
def world(tmp_path: Path, history: Path) -> World:
    """A console whose workers are fake; `world.app.state.what_if.look()` lets it go on."""
    world = World(tmp_path / "state", history=history)
    world.app.state.what_if = queue_in(tmp_path / "state" / "what-if", Workers())
    return world


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"policies": ["fofi"]}, "did you mean 'fifo'"),
        ({"policies": ["os:system"]}, "there is no 'os:system'"),
        ({"policies": ["limits?file=/etc/passwd+fifo"]}, "no policy"),
        ({"policies": ["sjf+fifo"]}, "no placement 'fifo'"),
        ({"policies": []}, "choose 1 to 8 policies, not 0"),
        ({"since": "yesterday"}, "from 'yesterday' is no time"),
        ({"since": "99999999d"}, "is no time"),
        ({"since": "2023-12-02"}, "ends (2023-12-01T00:00:00+00:00) before it begins"),
        ({"cluster": "/etc/passwd"}, "is neither a file nor a spec"),
        ({"cluster": "999999x9999"}, "too large"),
        ({"interference": "magic"}, "no sharing 'magic'; there are none, time-sliced, mps, mig"),
        ({"interference": "mps", "whole_gpus": True}, "choose either"),
        ({"user_gpus": 0}, "expected 1 to 1,000,000"),
        ({"user_gpus": 4, "policies": ["limits+fifo"]}, "once"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    world: World, changed: dict[str, Any], expected: str
) -> None:
    answer = world.program().post("/api/v1/what-if", json={**BODY, **changed})
    assert answer.status_code == 400, answer.text
    assert expected in answer.json()["detail"]
    assert world.app.state.what_if.all() == []


def test_a_question_of_a_wrong_type_names_the_field(world: World) -> None:
    answer = world.program().post("/api/v1/what-if", json={**BODY, "user_gpus": "many", "more": 1})
    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        "'user_gpus' in the body is 'many'; expected a whole number; 'more' in the body is unknown; leave it out; "
        "/api/v1/openapi.json describes each request"
    )


def test_a_viewer_reads_and_does_not_ask_and_only_its_owner_deletes(world: World) -> None:
    ann, bob, eve = world.program("ann"), world.program("bob"), world.program("eve", Role.VIEWER)
    told = ann.post("/api/v1/what-if", json=BODY).json()
    address = f"/api/v1/what-if/{told['id']}"
    assert eve.post("/api/v1/what-if", json=BODY).status_code == 403
    assert eve.get(address).json()["place"] == "waiting"
    assert [bob.delete(address).status_code, bob.post(f"{address}/stop").status_code] == [403, 403]
    assert "ann's" in bob.delete(address).json()["detail"]
    assert ann.delete(address).status_code == 204
    assert ann.get(address).status_code == 404
    assert ann.get("/api/v1/what-if/..%2f..%2ftokens.json").status_code == 404


def test_the_command_beside_a_question_does_the_same(tmp_path: Path) -> None:
    question = asked(
        ORIGIN, policies=["easy+sjf", "fgd"], since="2d", until="", cluster="1x2:A100-80", whole_gpus=False,
        interference="mps", user_gpus=4, user_running=2,
    )  # fmt: skip
    assert command(question, Path("/var/my history")) == (
        "berth compare --from-history --history '/var/my history' --since 2023-11-12T22:13:20+00:00"
        " --until 2023-11-14T22:13:20+00:00 --policies"
        " 'limits?user_gpus=4&user_running=2+easy+sjf,limits?user_gpus=4&user_running=2+fgd'"
        " --cluster 1x2:A100-80 --interference mps"
    )


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
        ("tests.console.test_what_if:raises", "the policy fails: ZeroDivisionError: no node is left"),
        ("tests.console.test_what_if:short_of_memory", "more memory than the 64 MiB that one may have"),
        ("tests.console.test_what_if:absent", "absent"),
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


def test_questions_come_a_page_at_a_time(world: World) -> None:
    ann = world.program("ann")
    ids = [world.app.state.what_if.ask("ann", ASKED).id for _ in range(7)][::-1]
    pages = [ann.get("/api/v1/what-if", params={"size": 3, "page": at}).json() for at in (1, 3, 9)]
    assert [[each["id"] for each in page["questions"]] for page in pages] == [ids[:3], ids[6:], ids[6:]]
    assert [(page["total"], page["page"], page["places"]) for page in pages] == [
        (7, 1, {"waiting": 7}),
        (7, 3, {"waiting": 7}),
        (7, 3, {"waiting": 7}),
    ]
    assert ann.get("/api/v1/what-if", params={"size": 0}).status_code == 422


def test_a_long_list_of_questions_has_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berth.console.what_if.routes.PAGE", 2)
    ids = [world.app.state.what_if.ask("ann", ASKED).id for _ in range(5)]
    text = world.browser().get("/what-if?page=2").text
    assert [each in text for each in ids] == [False, True, True, False, False]
    assert "Page 2 of 3" in text
    assert 'href="/what-if?page=3" rel="next"' in text
    assert "Questions: 0 answered, 0 running, 5 waiting" in text


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
        patch.setattr(stores, "whole_file", full)
        with pytest.raises(LiveError, match=r"cannot be kept in .*: No space left on device"):
            store.add("ann", ASKED, 2.0)
        store.change(kept.id, stores.State(Place.FAILED, "why"))
    assert [entry.state.place for entry in Store(tmp_path / "what-if").all()] == [Place.WAITING]
    store.write_again()
    assert [entry.state.detail for entry in Store(tmp_path / "what-if").all()] == ["why"]


def test_a_user_keeps_so_many_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MOST_KEPT", 2)
    store = Store(tmp_path)
    for _ in range(2):
        store.add("ann", ASKED, 1.0)
    store.add("bob", ASKED, 1.0)
    with pytest.raises(SettingError, match="you keep 2 questions; delete some"):
        store.add("ann", ASKED, 1.0)


def test_an_answer_begins_with_what_really_happened(history: Path) -> None:
    answer, pictures = answered(ASKED, history)
    assert [(row.name, row.kind, row.wait_mean_s) for row in answer.rows] == [
        ("fifo", "real", 5.0),
        ("fifo", "as-it-was", 4.5),
        ("sjf", "asked", 4.5),
    ]
    assert (answer.error_wait_pct, answer.jobs, answer.left_out) == (-10.0, 2, 1)
    assert [each.name for each in pictures] == ["waiting", "completion", "queue", "allocation"]
    assert '"what really happened"' in pictures[0].figure


def test_a_history_that_is_written_meanwhile_gives_the_same_answer(tmp_path: Path, history: Path) -> None:
    before, _ = answered(ASKED, history)
    write_records([record("9", ORIGIN, ORIGIN + 1, ORIGIN + 99_000)], tmp_path / "more.parquet")
    written = False

    def meanwhile(done: float, total: float) -> None:
        nonlocal written
        if not written:
            import_records(open_history(history), tmp_path / "more.parquet", Options(cluster="here"))
            written = True

    during, _ = answered(ASKED, history, meanwhile)
    after, _ = answered(ASKED, history)
    assert (written, asdict(during), after.jobs) == (True, asdict(before), 3)


def test_the_page_of_an_answer_says_it_first_and_hostile_names_stay_text(history: Path, world: World) -> None:
    queue: Queue = world.app.state.what_if
    asked_id = queue.ask("<script>alert(1)</script>", ASKED).id
    page = world.browser("ann")
    assert "What if: waiting" in page.get(f"/what-if/{asked_id}").text
    queue.look()
    worker._answer(queue.place_of(asked_id), history)
    queue._running[asked_id].ended = 0  # type: ignore[attr-defined]
    queue.look()
    text = page.get(f"/what-if/{asked_id}").text
    assert "With sjf jobs would have waited as long as they did: 4.5 seconds on average" in text
    assert "A replay of fifo, which really decided, is -10.0 % from the real mean wait" in text
    assert text.index("What really happened") < text.index("Replay of fifo, which ran")
    for address in (f"/what-if/{asked_id}", "/what-if"):
        assert "<script>alert" not in page.get(address).text
    assert len(page.get(f"/api/v1/what-if/{asked_id}/pictures").json()) == 4
    page.cookies.set("berth-language", "ko")
    assert "평균" in page.get(f"/what-if/{asked_id}").text


def test_policies_with_equal_waits_all_have_the_shortest() -> None:
    def row(name: str, kind: str, wait_s: float | None, unserved: int = 0) -> Row:
        return Row(name, kind, wait_s, wait_s, wait_s, wait_s, wait_s, 50.0, unserved)

    rows = (
        row("", "real", 1.0),
        row("fifo", "asked", 9.0),
        row("sjf", "asked", 9.0),
        row("fgd", "asked", 9.0, 1),
    )
    answer = Answer(3, 0, 1, 1, "", rows, None, None, ())
    assert [each.name for each in answer.shortest] == ["fifo", "sjf"]
    assert Answer(0, 0, 1, 1, "", rows[:1], None, None, ()).shortest == ()


def test_a_console_without_a_history_says_so(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    assert "reads no history" in world.browser().get("/what-if").text
    answer = world.program().post("/api/v1/what-if", json=BODY)
    assert (answer.status_code, "start it with --history" in answer.json()["detail"]) == (503, True)


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
    assert "no job in" in _wait(queue, empty)[1]
    killed = queue.ask("ann", ASKED).id
    queue.look()
    running = queue._running[killed]
    assert isinstance(running, children._Process)
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
    assert isinstance(process, children._Process)
    assert process._process.stdin is not None
    process._process.stdin.close()  # as the kernel does when a console is killed
    process._process.stdin = None
    assert process._process.wait(120) == 3
    process.stop()
