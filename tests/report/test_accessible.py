"""Pages of reports are accessible, in light and dark themes, on a phone and on a desktop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.report import write
from tests.report.reports import report

pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")
from axe_playwright_python.sync_playwright import Axe

from tests.console.browser import CHROMIUM, PATIENCE_MS, chromium

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from accounting_import import write_jobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium"),
    # Playwright's event loop keeps a socket until the end of the session.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def of_policies(folder: Path) -> Path:
    write(report(), folder / "policies.html")
    return folder / "policies.html"


def of_a_history(folder: Path) -> Path:
    write_jobs(folder / "jobs.psv", 200, measured=True)
    history = ("--history", str(folder / "history"))
    page = folder / "usage.html"
    for words in (("import", "sacct", str(folder / "jobs.psv")), ("report", str(page), "--by", "user")):
        done = CliRunner().invoke(app, [*words, *history], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    return page


@pytest.mark.parametrize("made", [of_policies, of_a_history], ids=["policies", "history"])
def test_axe_finds_nothing_serious_in_a_report(made: Callable[[Path], Path], tmp_path: Path) -> None:
    address = made(tmp_path).as_uri()
    told = []
    with chromium() as browser:
        for theme in ("light", "dark"):
            for width in (390, 1280):
                page = browser.new_page(color_scheme=theme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
                page.set_default_timeout(PATIENCE_MS)
                page.goto(address)
                page.locator(".main-svg").first.wait_for(state="attached")
                page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
                found = Axe().run(page).response["violations"]
                told += [
                    (theme, width, each["id"], [node["html"][:200] for node in each["nodes"]])
                    for each in found
                    if each["impact"] in ("serious", "critical")
                ]
                page.close()
    assert told == []
