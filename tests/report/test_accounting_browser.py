"""The page of a history in a real browser, with ten jobs and with a million."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from tests.report.chromium import Chromium, find_chromium

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from accounting_import import write_jobs

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium or Chrome on the PATH"),
]

PLACES = "[...document.querySelectorAll('[data-plot]')]"
DRAWN = f"{PLACES}.every((place) => place.querySelector('.main-svg'))"
EVIL = "<script>window.broken = true</script><img src=x onerror='window.broken = true'>"


def run(*words: object) -> None:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module", params=[10, 1_000_000], ids=["ten", "million"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    folder = tmp_path_factory.mktemp("accounting")
    write_jobs(folder / "jobs.psv", request.param, measured=True)
    text = (
        (folder / "jobs.psv").read_text().replace("user1|", f"{EVIL}|", 1).replace("|vasp|", f"|{EVIL}|", 1)
    )
    (folder / "jobs.psv").write_text(text)
    history = folder / "history"
    run("import", "sacct", folder / "jobs.psv", "--history", history)
    run("report", folder / "report.html", "--history", history, "--by", "user")
    return request.param, folder / "report.html"


@pytest.fixture(scope="module")
def browser(page: tuple[int, Path]) -> Iterator[Chromium]:
    program = find_chromium()
    assert program is not None
    with Chromium(program) as opened:
        opened.open(page[1], DRAWN, timeout_s=300)
        yield opened


def test_every_picture_is_drawn_from_disk_without_network_or_complaint(
    browser: Chromium, page: tuple[int, Path]
) -> None:
    assert browser.evaluate(f"{PLACES}.length") >= 10
    assert browser.evaluate(DRAWN)
    # Without a graphics card the browser draws the lines in software, and says so.
    assert [each for each in browser.errors if '"source": "rendering"' not in each] == []
    assert [url for url in browser.requests if url != page[1].as_uri() and not url.startswith("data:")] == []
    assert browser.evaluate("typeof window.broken") == "undefined"


def test_the_lines_are_few_and_stand_for_all(browser: Chromium, page: tuple[int, Path]) -> None:
    drawn = browser.evaluate(
        "document.querySelector('#pcc-0')._fullData[0].dimensions.map((d) => d.values.length)"
    )
    assert len(drawn) == 6
    assert len(set(drawn)) == 1
    assert 0 < drawn[0] <= 1500
    assert browser.evaluate("document.body.innerText.includes('lines stand for them')") == (page[0] > 10)
    assert page[1].stat().st_size < 8_000_000


def test_brushing_an_axis_picks_lines(browser: Chromium, page: tuple[int, Path]) -> None:
    browser.evaluate("Plotly.restyle('pcc-0', {'dimensions[3].constraintrange': [[0, 1]]}).then(() => true)")
    ranges = browser.evaluate("document.querySelector('#pcc-0')._fullData[0].dimensions[3].constraintrange")
    assert ranges is not None


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (420, 800)])
def test_a_page_is_as_wide_as_its_screen(browser: Chromium, width: int, height: int) -> None:
    browser.resize(width, height)
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")
