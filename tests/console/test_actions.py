"""Changes: who may, what is written down, and that nothing is changed where it cannot be."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from berth.cli.app import app
from berth.console.audit import Audit
from berth.console.identity import CSRF_HEADER
from berth.console.roles import Role
from berth.console.sources.local import LocalSource
from tests.console.values import ValuesSource, look_of
from tests.console.world import World

HOLD = {"source": "local", "action": "hold", "id": "100000"}
DRAIN = {"source": "local", "action": "drain", "id": "node0000:1"}


@pytest.fixture
def source() -> ValuesSource:
    return ValuesSource(look_of(gpus=8, waiting=12))


@pytest.fixture
def world(tmp_path: Path, source: ValuesSource) -> World:
    return World(tmp_path, sources=[source], actions=True)


def lines(world: World) -> list[tuple[str, str, str]]:
    return [
        (line.user, line.command, line.result)
        for line in Audit(world.settings.state / "audit.jsonl").last(99)
    ]


def test_an_owners_change_is_done_and_written_down_before_and_after(
    world: World, source: ValuesSource
) -> None:
    answer = world.browser("ann").post("/api/v1/actions", json=HOLD)
    assert answer.json() == {"done": "hold: 100000", "command": "berth hold 100000"}
    assert source.done == [("hold", "100000", "ann")]
    assert lines(world) == [("ann", "berth hold 100000", "asked"), ("ann", "berth hold 100000", "done")]


@pytest.mark.parametrize(
    ("user", "role", "body"),
    [("bob", Role.USER, HOLD), ("ann", Role.VIEWER, HOLD), ("ann", Role.USER, DRAIN)],
)
def test_what_a_role_does_not_include_is_refused(
    world: World, source: ValuesSource, user: str, role: Role, body: dict[str, str]
) -> None:
    assert world.program(user, role).post("/api/v1/actions", json=body).status_code == 403
    assert source.done == []
    assert [line[2] for line in lines(world)] in ([], ["asked", "refused"])


def test_a_job_is_submitted_by_a_user_and_written_down(world: World, source: ValuesSource) -> None:
    job = {"source": "local", "command": "python train.py --lr 1", "gpus": "0.5", "folder": "my run"}
    answer = world.browser("ann").post("/api/v1/jobs", json=job)
    command = "cd 'my run' && berth submit --gpus 0.5 -- python train.py --lr 1"
    assert (answer.status_code, answer.json()) == (201, {"id": "200001", "command": command})
    assert source.done == [("submit", "python train.py --lr 1", "ann")]
    assert lines(world) == [("ann", command, "asked"), ("ann", command, "done")]
    assert 'id="submit"' in world.browser("ann").get("/queue").text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python train.py --lr=1", "python train.py --lr=1"),
        ("./run.sh", "./run.sh"),
        ("cd data && ./run.sh", "'cd data && ./run.sh'"),
        ("LR=1 python train.py", "'LR=1 python train.py'"),
        ("echo 'two  words' *", "'echo '\"'\"'two  words'\"'\"' *'"),
    ],
)
def test_only_a_line_that_needs_a_shell_is_one_word(line: str, words: str) -> None:
    assert LocalSource.submit_command({"command": line}) == f"berth submit -- {words}"


def test_a_submission_is_refused_without_the_role_the_mark_the_option_or_with_an_unknown_field(
    tmp_path: Path, world: World, source: ValuesSource
) -> None:
    job = {"source": "local", "command": "true"}
    unmarked = world.browser("ann")
    del unmarked.headers[CSRF_HEADER]
    shows = World(tmp_path / "off", sources=[source])
    refused = [
        (world.program("ann", Role.VIEWER), job, 403),
        (unmarked, job, 403),
        (shows.program("ann"), job, 403),
        (world.program("ann"), job | {"gpu": "1"}, 422),
        (world.program("ann"), {"source": "local"}, 422),
        (world.program("ann"), job | {"command": "true\0"}, 422),
        (world.program("ann"), job | {"source": "none"}, 404),
    ]
    assert [client.post("/api/v1/jobs", json=body).status_code for client, body, _ in refused] == [
        status for _, _, status in refused
    ]
    assert source.done == []
    for client in (world.browser("ann", Role.VIEWER), shows.browser("ann")):
        assert 'id="submit"' not in client.get("/queue").text


def test_two_operators_drain_one_gpu_and_both_are_in_the_log(world: World) -> None:
    for user in ("olga", "otto"):
        assert world.program(user, Role.OPERATOR).post("/api/v1/actions", json=DRAIN).status_code == 200
    assert [line[0] for line in lines(world)] == ["olga", "olga", "otto", "otto"]
    assert (lines(world)[-1][0], lines(world)[-1][2]) == ("otto", "done")


def test_without_the_pages_mark_or_the_option_nothing_is_changed(
    tmp_path: Path, source: ValuesSource
) -> None:
    client = World(tmp_path / "on", sources=[source], actions=True).browser("ann")
    del client.headers[CSRF_HEADER]
    assert client.post("/api/v1/actions", json=HOLD).status_code == 403
    answer = World(tmp_path / "off", sources=[source]).program("ann").post("/api/v1/actions", json=HOLD)
    assert (answer.status_code, "--actions" in answer.json()["detail"]) == (403, True)
    assert source.done == []


def test_a_queue_that_is_gone_is_503_and_the_log_says_so(world: World, source: ValuesSource) -> None:
    source.gone = "the queue went away"
    answer = world.program("ann").post("/api/v1/actions", json=HOLD)
    assert (answer.status_code, answer.json()["detail"]) == (503, "the queue went away")
    assert [line[2] for line in lines(world)] == ["asked", "failed"]


def test_without_a_log_nothing_is_changed(world: World, source: ValuesSource) -> None:
    (world.settings.state / "audit.jsonl").mkdir()
    assert world.program("ann").post("/api/v1/actions", json=HOLD).status_code == 503
    assert source.done == []


def test_the_log_is_printed_and_hostile_text_in_it_is_not_obeyed(world: World) -> None:
    world.program("ann").post("/api/v1/actions", json=HOLD | {"id": "9\u001b[2J"})
    told = CliRunner().invoke(app, ["console", "audit", "--state", str(world.settings.state)]).stdout
    assert "ann (user, token)  berth hold '9?[2J'  asked" in told
    assert "\u001b" not in told


def test_a_line_that_a_crash_cut_off_does_not_hide_the_next_one(world: World, source: ValuesSource) -> None:
    world.program("ann").post("/api/v1/actions", json=HOLD)
    path = world.settings.state / "audit.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    world.program("ann").post("/api/v1/actions", json=HOLD)
    assert [line[2] for line in lines(world)] == ["asked", "asked", "done"]


def test_a_fault_in_the_middle_of_a_change_is_in_the_log(world: World, source: ValuesSource) -> None:
    source.value = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        world.program("ann").post("/api/v1/actions", json=HOLD)
    assert [line[2] for line in lines(world)] == ["asked", "failed"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xff{", "the body cannot be read as JSON"),
        (
            b'{"source": "local", "action": "hold", "id": "\\ud800"}',
            "'id' in the body is '\\ud800'; expected",
        ),
        (
            b'{"source": "local", "action": "policy", "value": "' + b"a" * 300 + b'"}',
            "'; expected at most 256 characters",
        ),
        (b'{"source": "local"}', "'action' in the body is missing"),
    ],
)
def test_a_body_that_no_log_can_hold_is_refused_in_words(
    world: World, source: ValuesSource, content: bytes, expected: str
) -> None:
    olga = world.program("olga", Role.OPERATOR)
    answer = olga.post("/api/v1/actions", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code in (400, 422), expected in answer.json()["detail"]) == (True, True), (
        answer.text
    )
    untyped = olga.post("/api/v1/actions", content=content)
    assert "the body is not sent as JSON; send the header Content-Type" in untyped.json()["detail"]
    assert (lines(world), source.done) == ([], [])


def test_two_operators_on_one_gpu_are_both_in_the_log_in_the_order_of_what_was_done(
    world: World, source: ValuesSource
) -> None:
    operators = [world.program(name, Role.OPERATOR) for name in ("olga", "oscar")]
    wanted = [(client, action) for action in ("drain", "undrain") for client in operators] * 3

    def change(which: tuple[TestClient, str]) -> int:
        client, action = which
        body = {"source": "local", "action": action, "id": "node0000:0"}
        return client.post("/api/v1/actions", json=body).status_code

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(change, wanted)) == [200] * 12
    results = Counter(lines(world))
    assert set(results.values()) == {3}
    assert len(results) == 8
    assert len(source.done) == 12


def test_a_wrong_number_in_a_pages_address_is_refused_by_a_page(world: World) -> None:
    answer = world.browser("ann").get("/queue?page=-1")
    assert (answer.status_code, answer.headers["content-type"]) == (422, "text/html; charset=utf-8")
    assert (
        "&#39;page&#39; in the address is &#39;-1&#39;; expected a value greater than or equal to 1"
        in answer.text
    )
