"""What a page is filtered by: exact sums, dates as fine as there is room for, and a sample that is told."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.history.importing.sacct import import_text
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.report import filters
from berth.statistics.tables import Tables
from tests.history import exports

BEGIN = 1_767_225_600  # 2026-01-01, a Thursday
DAY = 86_400


def a_history(folder: Path) -> Path:
    lines = [
        exports.line(
            JobIDRaw=at, User=["12", "", "<b>", "ann"][at % 4],
            Submit=BEGIN + at * DAY // 2, Eligible=BEGIN + at * DAY // 2,
            Start=BEGIN + at * DAY // 2 + 10 * at, End=BEGIN + at * DAY // 2 + 3600 + 10 * at,
        )
        for at in range(1, 60)
    ]  # fmt: skip
    import_text(open_history(folder / "h"), exports.write(folder / "f", lines), Options("c"))
    return folder / "h"


def unpacked(found: filters.Filters) -> tuple[dict[str, Any], dict[str, Any]]:
    told = json.loads(found.json)
    data = gzip.decompress(base64.b64decode(told["data"]))
    columns = {
        name: np.frombuffer(data, f"<{kind}", length, at)
        for name, (kind, at, length) in told["columns"].items()
    }
    return told, columns


@pytest.mark.parametrize(("most", "unit"), [(1000, "day"), (40, "week"), (10, "month")])
def test_sums_are_exact_and_dates_as_fine_as_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, unit: str
) -> None:
    monkeypatch.setattr(filters, "MOST_CELLS", most)
    monkeypatch.setattr(filters, "SAMPLED", 50)
    with open_history(a_history(tmp_path)).database() as database:
        tables = Tables(database)
        found = filters.filters_of(tables)
        assert found is not None
        told, columns = unpacked(found)
        assert (found.unit, told["unit"], found.sampled) == (unit, unit, 50)
        by_user = {
            told["names"]["user"][user]: (
                columns["held"][columns["user"] == user].sum(),
                columns["tries"][columns["user"] == user].sum(),
            )
            for user in range(4)
        }
        assert by_user == {
            row.keys[0]: (pytest.approx(row.gpu_hours), row.jobs) for row in tables.usage(("user",))
        }
        assert set(columns["sample.day"]) <= set(columns["day"])
        assert sorted(columns["sample.wait_s"])[0] >= 10
    assert "<" not in found.json
    first = int(columns["day"].min())
    assert first == {"day": BEGIN // DAY, "week": BEGIN // DAY - 3, "month": BEGIN // DAY}[unit]


def test_a_page_without_room_for_filters_has_none_and_begins_with_five_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = a_history(tmp_path)
    words = ["report", str(tmp_path / "r.html"), "--history", str(history)]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    page = (tmp_path / "r.html").read_text()
    assert 'id="filter-data"' in page
    head = page[page.index('<table id="figures">') : page.index('<dl class="after">')]
    assert head.count('<th scope="row">') == 5
    assert "2026-01-03 to 2026-01-30, against the 28 days before" in head
    assert "<td>+" in head  # more jobs than before
    monkeypatch.setattr(filters, "MOST_CELLS", 3)
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert 'id="filter-data"' not in (tmp_path / "r.html").read_text()
