"""What if: who may ask, what is refused in words, and what the pages and the answer say."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.console.roles import Role
from berth.console.what_if import worker
from berth.console.what_if.answer import Answer, Row, answered
from berth.console.what_if.question import QuestionBody, asked, command
from berth.console.what_if.queue import Queue
from berth.experiments.recorded_run import CLUSTER
from berth.history.importing.simulated import import_records
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import write_records
from tests.console.workers import ASKED, ORIGIN, Workers, queue_in
from tests.console.world import World
from tests.experiments.test_recorded_run import history as history
from tests.experiments.test_recorded_run import record

BODY = {"policies": ["sjf"], "since": "2023-11-01", "until": "2023-12-01"}


@pytest.fixture
def world(tmp_path: Path, history: Path) -> World:
    """A console whose workers are fake; `world.app.state.what_if.look()` lets it go on."""
    world = World(tmp_path / "state", history=history)
    world.app.state.what_if = queue_in(tmp_path / "state" / "what-if", Workers())
    return world


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"policies": ["fofi"]}, "did you mean 'fifo'"),
    ({"policies": ["os:system"]}, "no policy 'os:system'"),
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
    ({"keep": "p12-wait"}, "no measure 'p12-wait' to keep; there are p50-wait"),
    ({"keep": "p90-wait", "whole_gpus": True}, "leave whole GPUs out"),
    ({"user_gpus": 0}, "expected 1 to 1,000,000"),
    ({"user_gpus": 4, "policies": ["limits+fifo"]}, "once"),
]


def test_what_makes_no_sense_is_refused_in_words(world: World) -> None:
    program = world.program()
    for changed, expected in REFUSED:
        answer = program.post("/api/v1/what-if", json={**BODY, **changed})
        assert (answer.status_code, changed) == (400, changed), answer.text
        assert expected in answer.json()["detail"]
        assert world.app.state.what_if.all() == []


def test_a_question_of_a_wrong_type_names_the_field(world: World) -> None:
    answer = world.program().post("/api/v1/what-if", json={**BODY, "user_gpus": "many", "more": 1})
    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        "'user_gpus' in the body is 'many'; expected a whole number; 'more' in the body is unknown; leave it out; "
        "/api/v1/openapi.json describes each request"
    )


def test_without_a_machine_an_imported_history_is_not_asked(world: World, history: Path) -> None:
    (history / CLUSTER).unlink()
    ann = world.program()
    refused = ann.post("/api/v1/what-if", json=BODY)
    assert (refused.status_code, world.app.state.what_if.all()) == (400, [])
    assert refused.json()["detail"] == (
        "the history was imported, and does not say which GPUs its jobs ran on; give the machine (`cluster`) as nodes"
        " and GPUs of each, such as 4x8:A100-80"
    )
    queue: Queue = world.app.state.what_if
    kept = queue.ask("ann", ASKED).id  # as an earlier console took it
    queue.stop(kept)
    assert ann.post(f"/api/v1/what-if/{kept}/again").status_code == 400
    assert ann.post("/api/v1/what-if", json={**BODY, "cluster": "1x2:A100-80"}).status_code == 201


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
    body = QuestionBody(
        policies=["easy+sjf", "fgd"],
        since="2d",
        cluster="1x2:A100-80",
        interference="mps",
        user_gpus=4,
        user_running=2,
    )
    question = asked(ORIGIN, body)
    assert command(question, Path("/var/my history")) == (
        "berth compare --from-history --history '/var/my history' --since 2023-11-12T22:13:20+00:00"
        " --until 2023-11-14T22:13:20+00:00 --policies"
        " 'limits?user_gpus=4&user_running=2+easy+sjf,limits?user_gpus=4&user_running=2+fgd'"
        " --cluster 1x2:A100-80 --interference mps"
    )


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


def test_an_answer_begins_with_what_really_happened(history: Path) -> None:
    answer, pictures = answered(ASKED, history)
    assert [(row.name, row.kind, row.wait_mean_s) for row in answer.rows] == [
        ("fifo", "real", 5.0),
        ("fifo", "as-it-was", 4.5),
        ("sjf", "asked", 4.5),
    ]
    assert (answer.error_wait_pct, answer.jobs, answer.left_out) == (-10.0, 3, 0)
    assert [each.name for each in pictures] == ["waiting", "completion", "queue", "allocation"]
    assert '"what really happened"' in pictures[0].figure


def test_the_smallest_cluster_is_a_question_whose_answer_says_the_sentence_first(
    history: Path, world: World
) -> None:
    told = world.program("ann").post("/api/v1/what-if", json={**BODY, "keep": "p90-wait"}).json()
    assert told["command"].startswith("berth size --keep p90-wait --from-history --history ")
    queue: Queue = world.app.state.what_if
    queue.look()
    worker._answer(queue.place_of(told["id"]), history)
    queue._running[told["id"]].ended = 0  # type: ignore[attr-defined]
    queue.look()
    answer = world.program("ann").get(f"/api/v1/what-if/{told['id']}").json()["answer"]
    as_command = CliRunner().invoke(app, [*shlex.split(told["command"])[1:], "--json"])
    said = json.loads(as_command.stdout)
    assert answer["sentences"] == said["answers"]
    assert [(row[0], row[2], row[3]) for row in answer["rows"]] == [
        (row["policy"], f"{row['nodes_today']:,}", f"{row['nodes']:,}") for row in said["sizes"]
    ]
    text = unescape(world.browser("ann").get(f"/what-if/{told['id']}").text)
    assert f"<h1>{answer['sentences'][0]}</h1>" in text
    assert text.index("<h1>") < text.index("Nodes today")
    browser = world.browser("ann")
    browser.cookies.set("berth-language", "ko")
    korean = unescape(browser.get(f"/what-if/{told['id']}").text)
    assert [each for each in answer["sentences"] if each in korean] == []
    (picture,) = world.program("ann").get(f"/api/v1/what-if/{told['id']}/pictures").json()
    assert {trace["name"] for trace in picture["figure"]["data"]} == {"fifo", "sjf"}


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
    assert (written, asdict(during), after.jobs) == (True, asdict(before), 4)


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
    assert "With sjf jobs would have waited as long as they did: 4.5 seconds (replayed) on average" in text
    assert "A replay of fifo, which really ran, differs from reality by -10.0 % in mean wait" in text
    assert text.index("What really happened") < text.index("Replay of fifo, which ran")
    for address in (f"/what-if/{asked_id}", "/what-if"):
        assert "<script>alert" not in page.get(address).text
    assert len(page.get(f"/api/v1/what-if/{asked_id}/pictures").json()) == 4
    page.cookies.set("berth-language", "ko")
    assert "평균" in page.get(f"/what-if/{asked_id}").text


def test_of_policies_with_equal_waits_none_wins_and_an_oracle_never_does() -> None:
    def row(name: str, kind: str, wait_s: float | None, unserved: int = 0) -> Row:
        return Row(name, kind, wait_s, wait_s, wait_s, wait_s, wait_s, 50.0, unserved, name.startswith("sjf"))

    rows = (
        row("", "real", 1.0),
        row("fifo", "asked", 9.0),
        row("best-fit", "asked", 9.0),
        row("sjf", "asked", 2.0),
        row("fgd", "asked", 9.0, 1),
    )
    answer = Answer(3, 0, 1, 1, "", rows, None, None, ())
    assert answer.best == rows[1]
    assert answer.shortest == ()
    alone = Answer(3, 0, 1, 1, "", (*rows[:2], rows[3]), None, None, ())
    assert [each.name for each in alone.shortest] == ["fifo"]
    assert Answer(0, 0, 1, 1, "", rows[:1], None, None, ()).shortest == ()


@pytest.mark.parametrize(("replay_s", "won"), [(8.0, False), (9.0, False), (10.0, True)])
def test_a_policy_wins_only_if_it_waits_less_than_the_replay_of_what_ran(replay_s: float, won: bool) -> None:
    rows = tuple(
        Row(name, kind, wait_s, wait_s, wait_s, wait_s, wait_s, 50.0, 0, False)
        for name, kind, wait_s in (("", "real", 1.0), ("fifo", "as-it-was", replay_s), ("sjf", "asked", 9.0))
    )
    answer = Answer(3, 0, 1, 1, "fifo", rows, None, None, ())
    assert [row.name for row in answer.shortest] == ["sjf"] * won


def test_a_console_without_a_history_says_so(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    assert "reads no history" in world.browser().get("/what-if").text
    answer = world.program().post("/api/v1/what-if", json=BODY)
    assert (answer.status_code, "start it with --history" in answer.json()["detail"]) == (503, True)
