from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.report import write
from tests.report.chromium import Chromium, find_chromium
from tests.report.reports import report

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium or Chrome on the PATH"),
]

PLACES = "[...document.querySelectorAll('[data-plot]')]"
DRAWN = f"{PLACES}.every((place) => place.querySelector('.main-svg'))"
PLOTS = 6 + 2 + 2 + 2


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write(report(trace="<script>window.broken = true</script>"), path)
    return path


@pytest.fixture(scope="module")
def browser(path: Path) -> Iterator[Chromium]:
    program = find_chromium()
    assert program is not None
    with Chromium(program) as opened:
        opened.open(path, DRAWN)
        yield opened


def test_every_plot_draws_from_disk_without_network_or_complaint(browser: Chromium, path: Path) -> None:
    drawn = browser.evaluate(f"{PLACES}.map((place) => Boolean(place.querySelector('.main-svg')))")
    assert drawn == [True] * PLOTS
    assert browser.errors == []
    others = [url for url in browser.requests if url != path.as_uri() and not url.startswith("data:")]
    assert others == []
    assert browser.evaluate("typeof window.broken") == "undefined"


def test_lines_dots_and_cells_are_on_the_page(browser: Chromium) -> None:
    count = "document.querySelectorAll('{}').length"
    for selector, at_least in (
        ("#allocation .scatterlayer path.js-line", 2),
        ("#waiting .scatterlayer path.js-line", 2),
        ("#load-allocation .scatterlayer path.js-line", 3),
        ("#headline-0 .scatterlayer path.point", 2),
    ):
        assert browser.evaluate(count.format(selector)) >= at_least, selector


def test_the_csv_of_lines_leaves_what_was_not_measured_empty(browser: Chromium) -> None:
    low = -0.08  # where `parallel_coordinates` draws what was not measured
    dimensions = f"[{{label: 'h', values: [0, 1, {low}]}}, {{label: 'used', values: [0, {low}, 0.5]}}]"
    lines = browser.evaluate(f"csvOf({{data: [{{meta: {{h: 2}}, dimensions: {dimensions}}}]}})").splitlines()
    assert lines == ["h,used", "0,0", "18,", ",0.5"]


@pytest.mark.parametrize(("width", "height"), [(390, 844), (768, 1024), (1920, 1080)])
def test_a_page_is_as_wide_as_its_screen(browser: Chromium, path: Path, width: int, height: int) -> None:
    browser.resize(width, height, mobile=width < 500)
    browser.open(path, DRAWN)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    overflowing = browser.evaluate(
        f"{PLACES}.filter((place) => place.querySelector('.main-svg').getBoundingClientRect().width >"
        " place.clientWidth + 1).map((place) => place.id)"
    )
    assert overflowing == []
    assert browser.errors == []


@pytest.mark.slow
def test_a_phone_shows_two_policies_of_the_table(browser: Chromium, path: Path) -> None:
    browser.resize(420, 844, mobile=True)
    browser.open(path, DRAWN)
    ends = browser.evaluate(
        "[...document.querySelector('.scroll').querySelectorAll('tbody tr:first-child > *')]"
        ".map((cell) => cell.getBoundingClientRect().right)"
    )
    assert len(ends) == 3
    assert ends[-1] <= 420


@pytest.mark.slow
def test_nothing_of_a_report_can_be_uploaded(browser: Chromium, path: Path) -> None:
    browser.resize(1400, 900)  # a narrow page has no buttons
    browser.open(path, DRAWN)
    titles = browser.evaluate(
        "[...document.querySelectorAll('.modebar-btn')].map((button) => button.dataset.title)"
    )
    assert "Reset axes" in titles
    assert not any("share" in title.lower() or "cloud" in title.lower() for title in titles)
    refused = browser.evaluate(
        "fetch('https://example.invalid/').then(() => 'connected', (error) => error.constructor.name)"
    )
    assert refused == "TypeError"


@pytest.mark.slow
def test_a_page_has_loaded_once_every_plot_is_drawn(browser: Chromium, path: Path) -> None:
    browser.open(path, "true")  # as a program that prints pages does, which waits for no more
    assert browser.evaluate(DRAWN)
