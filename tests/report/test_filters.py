"""What a page is filtered by: exact sums, dates as fine as there is room for, and a sample that is told."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import SettingError
from berth.history.importing.sacct import import_text
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.report import filters
from berth.statistics.tables import Tables
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


def unpacked(found: filters.Filters) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page's script makes of it: sums in hours, a row a cell."""
    told = json.loads(found.json)
    data = np.frombuffer(gzip.decompress(base64.b64decode(told["data"])), np.uint8)
    packed = {
        name: sum(data[at + byte * length :][:length].astype(np.int64) << 8 * byte for byte in range(width))
        for name, (width, at, length) in told["columns"].items()
    }
    cells = packed["cells"]
    columns = {name: np.repeat(packed[name], cells) for name in told["names"]}
    steps = np.split(packed["day"], np.cumsum(cells)[:-1])
    columns["day"] = np.array(told["days"])[np.concatenate([each.cumsum() for each in steps])]
    columns["tries"], held = packed["tries"], packed["held"]
    for name in ("wasted", "measured"):
        packed[name] = np.where(packed[name] == 1, held, np.maximum(packed[name] - 1, 0))
    for name in ("held", "wasted", "measured", "idle"):
        columns[name] = packed[name] / told["hour"]
    columns["sample.wait_s"] = packed["sample.wait_s"]
    return told, columns


@pytest.mark.parametrize("unit", ["day", "week", "month", "year"])
def test_sums_are_exact_and_dates_as_fine_as_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    monkeypatch.setattr(filters, "SAMPLED", 50)
    units = ("day", "week", "month", "year")
    text_of = filters._text
    monkeypatch.setattr(
        filters,
        "_text",
        lambda cells: text_of(cells) if units.index(cells.unit) >= units.index(unit) else None,
    )
    with open_history(a_history(tmp_path, DAY, 399)).database() as database:
        tables = Tables(database)
        found = filters.filters_of(tables)
        assert found is not None
        told, columns = unpacked(found)
        assert (found.unit, told["unit"], found.sampled) == (unit, unit, 50)
        sums = ("held", "wasted", "measured", "idle", "tries")
        by_user = {
            name: tuple(columns[each][columns["user"] == at].sum() for each in sums)
            for at, name in enumerate(told["names"]["user"])
        }
        assert by_user == {
            row.keys[0]: pytest.approx(
                (row.gpu_hours, row.wasted_gpu_hours, row.measured_gpu_hours, row.idle_gpu_hours, row.jobs),
                abs=0.01,
            )
            for row in tables.usage(("user",))
        }
        assert columns["sample.wait_s"].min() >= 1
    assert "<" not in found.json
    first = {"day": BEGIN // DAY + 1, "week": BEGIN // DAY - 3, "month": BEGIN // DAY, "year": BEGIN // DAY}
    assert int(columns["day"].min()) == first[unit]


def test_a_page_without_room_for_filters_has_none_and_begins_with_five_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = a_history(tmp_path)
    words = ["report", str(tmp_path / "r.html"), "--history", str(history)]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    page = (tmp_path / "r.html").read_text()
    assert 'id="filter-data"' in page
    head = page[page.index("<h1>") : page.index('<dl class="after">')]
    said = re.findall(r'<p class="answer">(.*?)</p>', head)
    assert [sentence.split()[:2] for sentence in said] == [["56", "jobs"], ["32", "%"], ["Half", "of"]]
    assert head.index("answer") < head.index('<table id="figures">')
    assert head.count('<th scope="row">') == 5
    assert "2026-01-03 to 2026-01-30, against the 28 days before" in head
    assert "<td>+" in head  # more jobs than before
    monkeypatch.setattr(filters, "MOST_BYTES", 3)
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert 'id="filter-data"' not in (tmp_path / "r.html").read_text()


def test_a_server_type_without_gpus_is_refused_and_not_divided_by(tmp_path: Path) -> None:
    words = ["report", str(tmp_path / "r.html"), "--history", str(a_history(tmp_path)), "--gpus", "a100=0"]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, SettingError)
    assert (
        str(done.exception) == "--gpus a100=0: expected SERVER=N with at least 1 GPU, such as amd_a100nv_8=8"
    )
