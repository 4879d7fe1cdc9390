"""The pages of the live cluster: what they say first, filters, and names that would be markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from berth.console.roles import Role
from tests.console.values import HOSTILE, ValuesSource, look_of
from tests.console.world import World


@pytest.fixture
def source() -> ValuesSource:
    return ValuesSource(look_of(gpus=8, waiting=120))


@pytest.fixture
def world(tmp_path: Path, source: ValuesSource) -> World:
    return World(tmp_path, sources=[source])


def test_now_says_first_what_is_held_and_who_waits(world: World) -> None:
    page = world.browser("ann").get("/now").text
    assert "Jobs hold 6 of 8 GPUs and leave 1 of these idle. Jobs waiting: 120." in page
    assert "<option selected>bob</option>" in world.browser("ann").get("/now?user=bob").text


def test_a_queue_that_is_not_there_is_named_with_the_reason(world: World, source: ValuesSource) -> None:
    source.gone = "no queue is up at <here>"
    page = world.browser("ann").get("/now").text
    assert "no queue is up at &lt;here&gt;" in page
    assert "0 of 0 GPUs held" in page


def test_the_queue_is_filtered_and_paged_here(world: World) -> None:
    client = world.browser("ann")
    page = client.get("/queue", params={"state": "waiting", "size": 10, "page": 3}).text
    assert page.count('<tr><th scope="row">') == 10
    assert "Page 3 of 11" in page
    assert "Jobs 21 to 30 of 108" in page
    assert client.get("/queue", params={"state": "dead"}).status_code == 422
    assert "Page 13 of 13" in client.get("/queue", params={"size": 10, "page": 99}).text


def test_names_of_others_are_not_shown(world: World) -> None:
    mine = world.program("ann").get("/api/v1/queue", params={"size": 1000}).json()["jobs"]
    assert {job["user"] for job in mine if job["name"]} == {"ann"}
    viewer = world.program("ann", Role.VIEWER).get("/api/v1/queue", params={"size": 1000}).json()["jobs"]
    assert not any(job["name"] for job in viewer)
    operator = world.program("olga", Role.OPERATOR).get("/api/v1/queue", params={"size": 1000}).json()["jobs"]
    assert all(job["name"] for job in operator)


@pytest.mark.parametrize("address", ["/now", "/queue", "/job/1"])
def test_hostile_names_are_text(tmp_path: Path, address: str) -> None:
    world = World(tmp_path, sources=[ValuesSource(look_of(gpus=8, hostile=True))], actions=True)
    answer = world.browser("olga", Role.OPERATOR).get(address)
    assert answer.status_code == 200
    assert "<img" not in answer.text
    assert HOSTILE.split()[0].replace("<", "&lt;") in answer.text


@pytest.mark.parametrize("at_ms", [0, -(10**15), 10**18])
def test_a_clock_that_jumps_breaks_no_page(tmp_path: Path, at_ms: int) -> None:
    client = World(tmp_path, sources=[ValuesSource(look_of(gpus=4, waiting=3, at_ms=at_ms))]).browser("ann")
    assert [client.get(path).status_code for path in ("/now", "/queue", "/job/1", "/job/100000")] == [200] * 4


def test_one_of_a_kind_is_singular(tmp_path: Path) -> None:
    look = look_of(gpus=1, waiting=1)
    client = World(tmp_path, sources=[ValuesSource(look)]).browser("ann")
    assert "1 of 1 GPU held" in client.get("/now").text
    assert "1 job waits, 1 runs" in client.get("/queue").text
    assert "1 of them matches the filters." in client.get("/queue?state=waiting").text


def test_reasons_and_times_are_korean_on_korean_pages(world: World) -> None:
    client = world.browser("ann")
    client.headers["Accept-Language"] = "ko"
    page = client.get("/queue?state=waiting").text
    assert "자리가 나기를 기다립니다" in page
    assert "waits for room" not in page
    assert re.search(r"\d(?:초|분|시간|일)</td>", page)


def test_pages_are_korean_where_the_browser_asks_for_it(world: World) -> None:
    page = world.browser("ann").get("/now", headers={"Accept-Language": "ko-KR"}).text
    assert "GPU 8개 중 6개가 점유되어 있고" in page
