"""The history in pages and in the API: figures, the jobs behind them, who sees what, and wrong questions."""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from berth.console.history import api
from berth.console.history.question import Measure
from berth.console.roles import Role
from berth.history.importing.simulated import import_records
from berth.history.store.import_result import Options
from berth.history.store.record_files import write_records
from tests.console.histories import DAYS, HOSTILE, SECRET, made, records
from tests.console.world import World

JOBS = "/api/v1/history/jobs"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("console")
    made(folder)
    return World(folder / "state", history=folder / "history")


@pytest.fixture(scope="module")
def operator(world: World) -> TestClient:
    return world.browser("olga", Role.OPERATOR)


@pytest.fixture(scope="module")
def ann(world: World) -> TestClient:
    return world.program("ann", Role.USER)


def rows(client: TestClient, **asked: object) -> dict[str, object]:
    answer = client.get(JOBS, params={"size": 500, **asked})
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


def test_the_page_says_first_who_used_most(operator: TestClient) -> None:
    text = operator.get("/then").text
    assert "<h1>bob used most: 52 % of 134 GPU-hours</h1>" in text


def figure(text: str, name: str) -> dict[str, Any] | None:
    """What a picture of a page draws, or None if it is not there."""
    _, found, rest = text.partition(f'id="{name}-figure">')
    return json.loads(rest.partition("</script>")[0]) if found else None


def test_use_of_gpus_is_drawn_from_0_to_100_per_cent(operator: TestClient) -> None:
    drawn = figure(operator.get("/then", params={"measure": "efficiency"}).text, "lines")
    assert drawn is not None
    assert drawn["layout"]["yaxis"]["range"] == [0, 102]


@pytest.mark.parametrize("measure", Measure)
def test_one_day_has_bars_and_no_line_of_one_dot(operator: TestClient, measure: Measure) -> None:
    asked = {"measure": measure.value, "from": "2024-11-01"}
    one, two = (operator.get("/then", params={**asked, "to": to}).text for to in ("2024-11-02", "2024-11-03"))
    assert figure(one, "lines") is None
    assert figure(two, "lines") is not None


def test_lines_of_nothing_but_0_are_not_drawn(operator: TestClient) -> None:
    asked = {"measure": "failures", "from": "2024-11-01", "to": "2024-11-03"}
    assert figure(operator.get("/then", params={**asked, "user": "ann"}).text, "lines") is None


def test_the_sum_of_all_others_stands_in_the_table_and_presses_no_line(
    operator: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "LINES", 1)
    text = operator.get("/then", params={"from": "2024-10-20", "to": "2024-11-07"}).text
    drawn = figure(text, "lines")
    assert drawn is not None
    assert [trace["name"] for trace in drawn["data"]] == ["bob"]
    assert '<th scope="col" class="number">all others</th>' in text


def test_parallel_coordinates_open_with_all_attempts_and_narrow_to_an_application(
    operator: TestClient,
) -> None:
    shown = {}
    for name in ("", "pytorch"):
        drawn = figure(operator.get("/then/lines", params={"application": name}).text, "lines")
        assert drawn is not None
        shown[name] = len(base64.b64decode(drawn["data"][0]["dimensions"][2]["values"]["bdata"])) // 8
    assert shown == {"": 67, "pytorch": 28}
    assert "<h1>67 attempts by six variables</h1>" in operator.get("/then/lines").text


def test_a_long_table_of_groups_is_shown_whole_where_asked(
    operator: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berth.console.history.page.LISTED", 2)
    first = operator.get("/then", params={"by": "user"}).text
    whole = operator.get("/then", params={"by": "user", "groups": "all"}).text
    assert [text.count('class="alone"') for text in (first, whole)] == [2, 3]
    assert ["Show all 3</a>" in text for text in (first, whole)] == [True, False]
    assert operator.get("/then", params={"groups": "some"}).status_code == 422


def test_groups_are_those_of_berth_stats(operator: TestClient) -> None:
    found = operator.get(
        "/api/v1/history/groups", params={"from": "2024-10-04", "to": "2024-11-13", "by": "user"}
    ).json()
    assert [(each["name"], each["jobs"], each["gpu_hours"]) for each in found["groups"]] == [
        ("bob", 50, 100.0),
        ("ann", 40, 80.0),
        (HOSTILE, 4, 8.0),
    ]
    assert found["groups"][1]["gpu_use"] == pytest.approx(0.25)
    assert found["groups"][0]["failed_gpu_hours"] == 20.0
    assert found["groups"][2]["idle_gpu_hours"] is None  # nobody measured


@pytest.mark.parametrize("path", ["/groups", "/series", "/jobs"])
def test_a_parameter_that_is_unknown_is_refused_by_name(operator: TestClient, path: str) -> None:
    answer = operator.get(f"/api/v1/history{path}", params={"form": "2024-11-01"})
    assert answer.status_code == 422, answer.text
    assert "'form' in the address is no parameter of this request" in answer.json()["detail"]


def test_a_refused_parameter_is_told_with_those_that_there_are(operator: TestClient) -> None:
    answer = operator.get("/api/v1/history/groups", params={"form": "2024-11-01", "to": "2024-11-03"})
    assert answer.json()["detail"] == (
        "'form' in the address is no parameter of this request (did you mean 'from'?); there are measure, by, from,"
        " to, user, account, application, server, gpu, pick, at, range"
    )
    told = operator.get("/api/v1/sources", params={"all": "1"}).json()["detail"]
    assert told == "'all' in the address is no parameter of this request; there are none"


def test_the_default_period_is_the_last_four_weeks(operator: TestClient) -> None:
    found = operator.get("/api/v1/history/groups").json()
    assert (found["begin"], found["end"]) == ("2024-10-16", "2024-11-13")


def test_a_bar_leads_to_the_jobs_behind_it(operator: TestClient) -> None:
    found = rows(operator, pick="bob", by="user", measure="failures", **{"from": "2024-10-04"})
    assert found["total"] == 10
    assert {each["state"] for each in found["attempts"]} == {"failed"}  # type: ignore[union-attr]


def test_a_point_leads_to_the_jobs_of_its_day(operator: TestClient) -> None:
    found = rows(operator, pick="ann", at="2024-11-01")
    assert [each["job"] for each in found["attempts"]] == ["annpytorch28"]  # type: ignore[union-attr]


def test_jobs_come_in_pages(operator: TestClient) -> None:
    first, second = (
        rows(operator, pick="ann", size=10, page=page, **{"from": "2024-10-04"}) for page in (1, 2)
    )
    ids = [each["job_id"] for page in (first, second) for each in page["attempts"]]  # type: ignore[union-attr]
    assert (first["total"], len(ids), len(set(ids))) == (DAYS, 20, 20)


def test_ranges_of_the_parallel_coordinates_pick_jobs(operator: TestClient) -> None:
    assert rows(operator, range="WAIT_h:0.5:1.5")["total"] == rows(operator)["total"]
    assert rows(operator, range="WAIT_h:2:3")["total"] == 0
    both = rows(operator, range=["WAIT_h:0:2", "uGPUcore:0.2:0.3"])
    assert {each["user"] for each in both["attempts"]} == {"ann", "bob"}  # type: ignore[union-attr]


def test_a_user_sees_neither_commands_nor_names_nor_use_of_others(
    ann: TestClient, operator: TestClient
) -> None:
    hidden = ("name", "command", "nodes", "exit_code", "gpu_use", "gpu_mem")
    bobs = rows(ann, pick="bob")["attempts"][0]  # type: ignore[index]
    assert [bobs[name] for name in hidden] == ["", "", "", None, None, None]
    own = rows(ann, pick="ann")["attempts"][0]  # type: ignore[index]
    assert [own[name] for name in hidden] == ["train", "", "n1", None, 0.25, 0.2]
    seen = rows(operator, pick="lammps", by="application")["attempts"][0]  # type: ignore[index]
    assert [seen[name] for name in hidden] == ["secret", SECRET, "n1", 3, 0.25, 0.2]


@pytest.mark.parametrize("asked", [{"measure": "efficiency"}, {"range": "uGPUcore:0:0.5"}])
def test_no_order_and_no_range_tells_what_is_hidden(ann: TestClient, asked: dict[str, str]) -> None:
    found = rows(ann, **asked)
    assert found["own_only"] is True
    assert {each["user"] for each in found["attempts"]} == {"ann"}  # type: ignore[union-attr]


def test_a_viewer_sees_sums_and_no_measured_use_of_any_job(world: World) -> None:
    client = world.program("ann", Role.VIEWER)
    assert client.get("/api/v1/history/groups").status_code == 200
    assert rows(client, measure="efficiency")["total"] == 0
    assert rows(client, pick="ann")["attempts"][0]["gpu_use"] is None  # type: ignore[index]


@pytest.mark.parametrize("path", ["/then", "/then?measure=waits", "/then/lines", f"/then?user={HOSTILE}"])
@pytest.mark.parametrize("language", ["en", "ko"])
def test_hostile_names_are_texts_and_nothing_else(operator: TestClient, path: str, language: str) -> None:
    answer = operator.get(path, headers={"Accept-Language": language})
    assert (answer.status_code, "<img" in answer.text) == (200, False)
    if path == "/then":
        assert "&lt;img" in answer.text


def test_only_the_page_of_parallel_coordinates_may_compile(operator: TestClient) -> None:
    allowed = {
        path: "unsafe-eval" in operator.get(path).headers["Content-Security-Policy"]
        for path in ("/then", "/then/lines")
    }
    assert allowed == {"/then": False, "/then/lines": True}


def test_single_attempts_are_drawn_to_their_owner_alone(
    world: World, ann: TestClient, operator: TestClient
) -> None:
    asked = {"application": "lammps", "user": "bob"}
    address = "/then/lines"
    assert "28 attempts of lammps" in operator.get(address, params=asked).text
    assert "28 attempts" not in ann.get(address, params=asked).text
    own = ann.get(address).text
    assert ("28 attempts by six variables" in own, "These are your own attempts" in own) == (True, True)
    refused = world.program("ann", Role.VIEWER).get(address)
    assert (refused.status_code, "single attempts" in refused.json()["detail"]) == (403, True)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"from": "yesterday"}, "no date: from='yesterday'; expected a day such as 2026-11-21"),
        ({"from": "2024-11-05", "to": "2024-11-01"}, "from=2024-11-05 is not before to=2024-11-01"),
        (
            {"measure": "joy"},
            "'measure' in the address is 'joy'; expected 'use', 'waits', 'failures' or 'efficiency'",
        ),
        ({"by": "shoe"}, "'by' in the address is 'shoe'; expected 'user', 'account'"),
        ({"range": "WAIT_h:a:b"}, "no range='WAIT_h:a:b'; expected VARIABLE:LEAST:LARGEST"),
        ({"range": "uGPUcore:nan:1"}, "no range="),
        ({"range": ["WAIT_h:0:1"] * 13}, "13 ranges; expected at most 12"),
        ({"at": "2024-13"}, "no date: at='2024-13-01'"),
    ],
)
def test_a_wrong_question_is_refused_in_words(
    operator: TestClient, asked: dict[str, str | list[str]], words: str
) -> None:
    answer = operator.get(JOBS, params=asked)
    assert (answer.status_code, words in answer.json()["detail"]) == (422, True), answer.text


def test_the_name_of_the_viewer_leads_to_the_history_of_their_own_jobs(world: World) -> None:
    client = world.browser("ann")
    address = re.search(r'<span class="who"><a href="([^"]*)">ann</a>', client.get("/then").text)
    assert address is not None
    text = client.get(html.unescape(address[1])).text
    assert "pytorch used most: 100 % of 56 GPU-hours" in text


def test_without_a_history_the_page_says_how_to_make_one(tmp_path: Path) -> None:
    world = World(tmp_path / "state", history=tmp_path / "none")
    for path in ("/then", "/then/lines"):
        text = world.browser().get(path).text
        assert ("berth import" in text, "There is no history yet" in text) == (True, True)
    answer = world.program().get(JOBS)
    assert (answer.status_code, "berth import" in answer.json()["detail"]) == (404, True)


def test_what_is_imported_meanwhile_is_seen_at_once(tmp_path: Path) -> None:
    history = made(tmp_path)
    world = World(tmp_path / "state", history=tmp_path / "history")
    client = world.program("olga", Role.OPERATOR)
    before = client.get("/api/v1/history/groups").json()["whole"]["jobs"]
    write_records(records("new", "vasp", range(DAYS - 3, DAYS)), tmp_path / "more.parquet")
    import_records(history, tmp_path / "more.parquet", Options("made"))
    assert client.get("/api/v1/history/groups").json()["whole"]["jobs"] == before + 3


def test_nobody_is_known_by_name_in_a_history_of_pseudonyms(tmp_path: Path) -> None:
    made(tmp_path)
    path = tmp_path / "history" / "index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps({**index, "key_mark": 7}))
    world = World(tmp_path / "state", history=tmp_path / "history")
    assert rows(world.program("ann"), pick="ann")["attempts"][0]["name"] == ""  # type: ignore[index]
    assert "pseudonyms" in world.browser("ann").get("/then").text


def test_plotly_comes_packed_and_is_kept_for_a_day(world: World) -> None:
    client = world.stranger()
    answer = client.get("/plotly/plotly.min.js", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert "Plotly" in answer.text
    assert answer.headers["Cache-Control"] == "public, max-age=86400"
    again = client.get("/plotly/plotly.min.js", headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    raw = client.get("/plotly/plotly.min.js", headers={"Accept-Encoding": "identity"})
    assert raw.text == answer.text


def test_the_document_of_the_api_tells_types(world: World) -> None:
    told = world.program().get("/api/v1/openapi.json").json()
    answer = told["paths"]["/api/v1/history/jobs"]["get"]["responses"]["200"]["content"]
    assert answer["application/json"]["schema"]["$ref"].endswith("/Jobs")
    assert "gpu_hours" in told["components"]["schemas"]["Attempt"]["properties"]


@pytest.mark.parametrize("role", [Role.USER, Role.VIEWER])
def test_a_jobs_page_shows_of_others_no_more_than_the_lists_do(world: World, role: Role) -> None:
    job = world.program("ann", role).get("/api/v1/jobs/boblammps3").json()
    assert (job["own"], job["command"], job["name"], job["series"]) == (False, None, "", [])
    story = job["history"][0]
    assert (story["enough"], story["cost"]["gpu_hours"], story["cost"]["idle_gpu_hours"]) == ([], 2.0, None)
    attempt = story["attempts"][0]
    told = (
        "name",
        "command",
        "nodes",
        "exit_code",
        "gpu_use_mean",
        "gpu_use_peak",
        "gpu_mem_peak",
        "mem_use",
    )
    assert [attempt[name] for name in told] == ["", "", [], None, None, None, None, None]
    own = world.program("bob").get("/api/v1/jobs/boblammps3").json()
    assert (own["own"], own["command"]) == (True, SECRET)
    assert own["history"][0]["attempts"][0]["gpu_use_mean"] == 0.25
