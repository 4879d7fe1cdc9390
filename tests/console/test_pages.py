"""What holds for all pages: no link leads where the viewer may not go, and HEAD is answered wherever GET is."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from berth.console.roles import Role
from tests.console.histories import made
from tests.console.values import ValuesSource, look_of
from tests.console.world import World

PAGES = ("/now", "/queue", "/then", "/then?measure=waits&by=application", "/what-if")
MOST_PAGES = 40


@pytest.fixture
def world(tmp_path: Path) -> World:
    made(tmp_path)
    world = World(
        tmp_path / "state",
        sources=[ValuesSource(look_of(gpus=4))],
        history=tmp_path / "history",
        actions=True,
    )
    world.app.state.too_many.wait_s = lambda *_: 0.0
    return world


@pytest.mark.slow
@pytest.mark.parametrize("role", Role)
def test_no_link_leads_where_its_reader_may_not_go(world: World, role: Role) -> None:
    client = world.browser("ann", role)
    refused: list[tuple[str, int]] = []
    seen: set[str] = set()
    left = list(PAGES)
    while left and len(seen) < MOST_PAGES:
        address = left.pop(0)
        if address in seen:
            continue
        seen.add(address)
        answer = client.get(address)
        if answer.status_code >= 400:
            refused.append((address, answer.status_code))
        if answer.headers.get("content-type", "").startswith("text/html"):
            left += [html.unescape(link) for link in re.findall(r'<a [^>]*href="(/[^"#]*)"', answer.text)]
    assert refused == []
    lines = {address.partition("?")[0] for address in seen} & {"/then/lines"}
    assert lines == (set() if role is Role.VIEWER else {"/then/lines"})


@pytest.mark.parametrize("path", ["/then", "/then/lines", "/now", "/queue", "/what-if"])
def test_a_page_refuses_a_parameter_that_it_does_not_have(world: World, path: str) -> None:
    client = world.browser("ann", Role.OPERATOR)
    answer = client.get(path, params={"usr": "ann"})
    assert answer.status_code == 422
    assert "is no parameter of this request" in html.unescape(answer.text)
    assert "&lt;b&gt;" in client.get(path, params={"<b>": "1"}).text


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/then", ("measure", "by", "from", "to", "user", "pick", "at", "range", "page", "groups")),
        ("/then/lines", ("application", "from", "to", "range", "page")),
        ("/now", ("model", "user", "partition")),
        ("/queue", ("source", "state", "user", "partition", "id", "page", "size")),
    ],
)
def test_a_page_takes_what_its_script_and_its_form_write(
    world: World, path: str, names: tuple[str, ...]
) -> None:
    told = {
        "measure": "use",
        "by": "user",
        "from": "2024-11-01",
        "to": "2024-11-03",
        "page": "1",
        "size": "10",
    }
    told |= {"range": "WAIT_h:0:2", "at": "2024-11-01", "groups": "all"}
    chosen = {name: told.get(name, "") for name in names}
    assert world.browser("ann", Role.OPERATOR).get(path, params=chosen).status_code == 200


def test_an_address_without_a_page_is_answered_by_a_page_that_names_those_there_are(world: World) -> None:
    answer = world.browser().get("/nowhere?x=1")
    assert answer.status_code == 404
    assert "there is nothing at /nowhere; what there is: /now, /queue, /then, /what-if" in answer.text
    assert '<nav aria-label="Pages">' in answer.text
    told = world.program().get("/api/v1/nothing")
    assert (told.status_code, told.json()) == (
        404,
        {"detail": "there is nothing at /api/v1/nothing; what there is: /api/v1/openapi.json"},
    )


def test_the_history_is_found_where_people_look_for_it(world: World) -> None:
    answer = world.browser().get("/history?by=application")
    assert (answer.status_code, answer.headers["location"]) == (303, "/then?by=application")
