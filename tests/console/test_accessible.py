"""Every page of the console in a real Chromium: axe finds nothing serious, and the keyboard alone will do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from berth.console.clock import now_ms
from berth.console.formats import hours_cell, span, spans
from berth.console.pages import Texts, composed_pairs, filled
from tests.console.browser import CHROMIUM, chromium, logged_in
from tests.console.histories import made
from tests.console.serving import served
from tests.console.values import ValuesSource, look_of
from tests.console.world import World

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium"),
    # Playwright's event loop and uvicorn's thread each keep a socket until the end of the session.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
PAGES = (
    "/then",
    "/then?measure=waits&by=application&pick=pytorch",
    "/then?measure=failures&by=server",
    "/then?measure=efficiency&at=2024-11-01",
    "/then/lines?range=WAIT_h:0:2",
    "/now",
    "/now?span=day",
    "/queue",
    "/job/1",
    "/what-if",
    "/none",
    "/login?token=x",
)
"""The addresses that are looked at; a new page is added here."""
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("accessible")
    made(folder)
    sources = [ValuesSource(look_of(gpus=8, at_ms=now_ms()))]
    return World(folder / "state", history=folder / "history", sources=sources, actions=True)


@pytest.fixture(scope="module")
def address(world: World) -> Iterator[str]:
    with served(world) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def opened(browser: Browser, world: World, address: str, path: str, **context: object) -> Page:
    page = logged_in(browser, world, address, **context).new_page()  # type: ignore[arg-type]
    page.goto(address + path, wait_until="networkidle")
    return page


@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing_serious(browser: Browser, world: World, address: str, path: str) -> None:
    page = opened(browser, world, address, path)
    told = []
    for look in ("light", "dark", "narrow"):
        page.emulate_media(color_scheme="dark" if look == "dark" else "light")
        page.set_viewport_size({"width": 420 if look == "narrow" else 1280, "height": 900})
        found = Axe().run(page).response["violations"]
        told += [
            (look, each["id"], [node["html"][:200] for node in each["nodes"]])
            for each in found
            if each["impact"] in SERIOUS
        ]
    wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    page.context.close()
    assert (told, wider) == ([], 0)


@pytest.mark.parametrize("path", [*PAGES[:-2], "/job/annpytorch28"])
def test_no_table_is_cut_on_a_phone(browser: Browser, world: World, address: str, path: str) -> None:
    page = opened(browser, world, address, path, viewport={"width": 390, "height": 800})
    if "pick=" in path or "at=" in path:
        page.wait_for_selector("#jobs-rows td[data-label]")
    for each in page.locator("details").all():
        each.evaluate("(place) => { place.open = true; }")
    cut = "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth).length"
    assert page.evaluate(cut) == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.context.close()


def test_a_phone_folds_what_stands_below_the_first_picture_and_draws_it_when_it_is_opened(
    browser: Browser, world: World, address: str
) -> None:
    page = opened(browser, world, address, "/then", viewport={"width": 390, "height": 800})
    page.wait_for_selector("#bars[data-drawn=yes]")
    assert page.locator("details.fold[open]").count() == 0
    assert page.get_attribute("#lines", "data-drawn") is None
    page.click("#lines-title")
    page.wait_for_selector("#lines[data-drawn=yes]")
    page.context.close()


def test_the_keyboard_leads_from_a_bar_to_its_jobs_and_back(
    browser: Browser, world: World, address: str
) -> None:
    page = opened(browser, world, address, "/then?from=2024-10-04&to=2024-11-13")
    page.wait_for_selector("#bars[data-drawn=yes]")
    page.focus("#bars")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.text_content("#bars-told") == "ann: 80; Enter shows its jobs"
    page.keyboard.press("Enter")
    page.wait_for_selector("#jobs-rows a")
    assert page.evaluate("document.activeElement.id") == "jobs-title"
    assert "pick=ann" in page.url
    assert page.text_content("#jobs-caption") == "40 attempts, page 1 of 2"
    page.focus("#jobs-next")
    page.keyboard.press("Enter")
    page.locator("#jobs-caption", has_text="page 2").wait_for()
    page.go_back()
    page.locator("#jobs-caption", has_text="page 1").wait_for()
    page.context.close()


def test_an_address_that_was_sent_shows_the_same(browser: Browser, world: World, address: str) -> None:
    page = opened(browser, world, address, "/then?by=user&pick=bob&at=2024-11-01")
    page.wait_for_selector("#jobs-rows a")
    assert page.text_content("#jobs-title") == "Jobs of bob, 2024-11-01"
    assert page.get_attribute("#jobs-rows a", "href") == "/job/bob28"
    page.context.close()


def test_a_click_on_a_point_lists_the_jobs_of_its_day(browser: Browser, world: World, address: str) -> None:
    page = opened(browser, world, address, "/then")
    page.wait_for_selector("#lines[data-drawn=yes]")
    page.locator("#lines").scroll_into_view_if_needed()
    # The marks of a line lie below the layer that hears of the pointer.
    mark = page.locator("#lines .scatterlayer .trace").first.locator(".point").nth(3).bounding_box()
    assert mark is not None
    page.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    page.locator("#lines .hoverlayer .hovertext").first.wait_for()
    page.mouse.click(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    page.wait_for_selector("#jobs-rows a")
    assert "at=2024-10-19" in page.url
    page.context.close()


def test_ranges_by_keyboard_pick_jobs_and_stand_in_the_address(
    browser: Browser, world: World, address: str
) -> None:
    page = opened(browser, world, address, "/then/lines?application=pytorch")
    page.wait_for_selector("#lines[data-drawn=yes]")
    page.select_option("#range-name", "RUN_h")
    page.fill("#range-low", "1")
    page.fill("#range-high", "3")
    page.keyboard.press("Enter")
    page.wait_for_selector("#jobs-rows a")
    assert "range=RUN_h%3A1%3A3" in page.url
    assert page.text_content("#jobs-caption") == "28 attempts, page 1 of 2"
    page.click("#range-none")
    page.wait_for_selector("#jobs", state="hidden")
    page.context.close()


def test_scripts_write_times_and_counts_as_the_server_does(
    browser: Browser, world: World, address: str
) -> None:
    page = opened(browser, world, address, "/queue")
    seconds = [0, 1, 59.4, 119, 120, 3600, 7199, 7200, 172_799, 172_800, 10_000_000]
    assert page.evaluate("(all) => all.map(berth.span)", seconds) == [
        span(each, Texts("en")) for each in seconds
    ]
    for column in ([3720, 12_600, None, 5, 0], [0, 59.4, 1.26, 0.04], [400_000, 86_400], [None]):
        assert page.evaluate("(all) => berth.spans(all)", column) == spans(column, Texts("en"))
    hours = [0, 1e-9, 0.0021, 1 / 60, 0.09, 0.44, 1.02, 1234]
    assert page.evaluate("(all) => all.map(berth.hours)", hours) == [
        hours_cell(each, Texts("en")) for each in hours
    ]
    text = "{n:# job waits|# jobs wait} of {all}"
    counts = [0, 1, 2, 1234, 1.5]
    assert page.evaluate(
        "([text, all]) => all.map((n) => berth.say(text, { n, all: 9 }))", [text, counts]
    ) == [filled(text, n=each, all=9) for each in counts]
    pairs = composed_pairs("ko")
    said = ["process 4711 (a.b)", "the node is DOWN*", "(x) $& {y}"]
    assert page.evaluate(
        "([pairs, said]) => said.map((each) => berth.sentence(each, pairs))", [pairs, said]
    ) == [Texts("ko").sentence(each) for each in said]
    page.context.close()


def test_a_hostile_name_is_drawn_and_not_run(browser: Browser, world: World, address: str) -> None:
    page = logged_in(browser, world, address).new_page()
    said: list[str] = []
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{address}/then?pick=%3Cimg+src%3Dx+onerror%3Dalert%281%29%3E", wait_until="networkidle")
    page.wait_for_selector("#jobs-rows a")
    assert (said, page.locator("img").count()) == ([], 0)
    assert "<img src=x" in (page.text_content("#jobs-rows") or "")
    page.context.close()


def test_a_tile_shows_promised_and_used_compute_and_memory_on_rails_of_one_length(
    browser: Browser, tmp_path: Path
) -> None:
    world = World(tmp_path, sources=[ValuesSource(look_of(gpus=2))])
    with served(world) as address:
        page = logged_in(browser, world, address).new_page()
        page.goto(f"{address}/now")
        page.wait_for_selector("#tiles button .meter")
        meters = page.locator("#tiles button").nth(1).locator(".meter").all_inner_texts()
        rails = page.evaluate(
            "[...document.querySelectorAll('#tiles li:nth-child(2) .rail')].map((each) => each.offsetWidth)"
        )
        page.context.close()
    told = [" ".join(each.split()) for each in meters]
    assert told == [
        *("compute 70 % promised", "memory 56 GiB promised", "compute 55 % used", "memory 28 GiB used")
    ]
    assert (len(rails), len(set(rails))) == (4, 1)
