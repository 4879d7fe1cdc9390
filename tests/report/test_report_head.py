"""The head of a report: what was found, and the five figures that matter."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from berth.cli.app import app
from berth.history.importing.sacct import import_text
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from tests.history import exports

BEGIN = 1_767_225_600  # 2026-01-01, a Thursday
DAY = 86_400


def a_history(folder: Path, every_s: int = DAY // 2, jobs: int = 59) -> Path:
    lines = [
        exports.line(
            JobIDRaw=at, User=["12", "", "<b>", "ann"][at % 4], State=["COMPLETED", "FAILED"][at % 3 == 0],
            Submit=BEGIN + at * every_s, Eligible=BEGIN + at * every_s,
            Start=BEGIN + at * every_s + at, End=BEGIN + at * every_s + 3600 + at,
        )
        + ("|" if at % 5 == 0 else f"|0.{at % 60 + 1}")
        for at in range(1, jobs + 1)
    ]  # fmt: skip
    file = exports.write(folder / "f", lines, f"{exports.HEADER}|uGPUcore")
    import_text(open_history(folder / "h"), file, Options("c"))
    return folder / "h"


def test_a_page_begins_with_what_was_found_and_five_figures(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    words = ["report", str(tmp_path / "r.html"), "--history", str(history)]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    page = (tmp_path / "r.html").read_text()
    head = page[page.index("<h1>") : page.index('<dl class="after">')]
    said = re.findall(r'<p class="answer">(.*?)</p>', head)
    assert [sentence.split()[:2] for sentence in said] == [["59", "jobs"], ["32", "%"], ["Half", "of"]]
    assert head.index("answer") < head.index('<table id="figures">')
    assert head.count('<th scope="row">') == 5
    assert ">the last 28 days<" in head
    assert ">the 28 days before<" in head
    assert page.count("2026-01-01 to 2026-01-30") == 1  # the page's own period
    assert "<td>+" in head  # more jobs than before
