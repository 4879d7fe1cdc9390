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
    # Where lines are thinned, a seventh axis says how many attempts lie in each.
    assert len(drawn) == (6 if page[0] == 10 else 7)
    assert len(set(drawn)) == 1
    assert 0 < drawn[0] <= 500
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


def test_the_csv_of_bars_names_them_and_does_not_number_them(
    browser: Chromium, page: tuple[int, Path]
) -> None:
    figure = "JSON.parse(document.getElementById('by-application-data').textContent)"
    lines = browser.evaluate(f"csvOf({figure})").splitlines()
    assert lines[0] == "series,GPU-hours,name"
    named = [line.rpartition(",")[2] for line in lines[1:]]
    assert named == browser.evaluate(f"{figure}.layout.yaxis.ticktext")
    assert "tensorflow" in named


def test_the_csv_of_the_calendar_has_a_line_for_each_day(browser: Chromium, page: tuple[int, Path]) -> None:
    if page[0] == 10:  # of less than four weeks: a calendar would be an empty year
        assert browser.evaluate("document.getElementById('calendar-data') === null")
        return
    figure = "JSON.parse(document.getElementById('calendar-data').textContent)"
    lines = browser.evaluate(f"csvOf({figure})").splitlines()
    assert lines[0] == "day,value"
    days = [line.split(",") for line in lines[1:]]
    assert [len(day) for day, _ in days] == [10] * len(days)
    held = sum(float(value) for _, value in days if value)
    bars = browser.evaluate(
        "csvOf(JSON.parse(document.getElementById('by-application-data').textContent))"
    ).splitlines()[1:]
    assert held == pytest.approx(sum(float(line.split(",")[1]) for line in bars), rel=1e-6)


def test_rows_after_the_first_twenty_are_shown_when_asked_for(
    browser: Chromium, page: tuple[int, Path]
) -> None:
    rows = "[...document.querySelectorAll('#usage tbody tr')].filter((row) => row.offsetHeight > 0).length"
    if page[0] == 10:
        assert browser.evaluate("document.querySelector('#all-usage')") is None
        return
    assert browser.evaluate(rows) == 20
    browser.evaluate("document.querySelector('#all-usage').click()")
    assert browser.evaluate(rows) == 200


@pytest.mark.parametrize("page", [10], ids=["ten"], indirect=True)
def test_a_browser_that_cannot_unpack_is_told_and_the_tables_are_there(page: tuple[int, Path]) -> None:
    program = find_chromium()
    assert program is not None
    with Chromium(program, 420, 800) as old:
        old.call("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
        old.open(page[1], "document.querySelector('#problem')")
        assert old.evaluate("document.querySelector('#problem').textContent") == (
            "Pictures are missing: this browser cannot unpack them: it has no DecompressionStream, which is in "
            "Chrome and Edge since 80, Firefox since 113 and Safari since 16.4. The tables are complete."
        )
        shown = "[...document.querySelectorAll('figure')].filter((each) => each.offsetHeight > 0)"
        assert old.evaluate(f"{shown}.length") == 0
        assert old.evaluate("document.querySelectorAll('#usage tr').length") > 1
        assert old.errors == []
