"""`berth top`, drawn without a terminal."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from textual.widgets import DataTable

from berth.live.local.listing import COLUMNS
from berth.live.local.snapshot import gpus_of
from berth.live.local.top import Tile, Top

NOW_MS = time.time_ns() // 1_000_000
COUNTS = {"waiting": 1, "held": 0, "starting": 0, "running": 2}
STATUS = {"policy": "fifo", "brain": "ready", "jobs": COUNTS, "trouble": []}


@pytest.mark.parametrize("width", [80, 140])
def test_no_line_of_a_tile_is_broken(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = {
        "id": "12",
        "user": "ann",
        "name": "train",
        "milli": 100,
        "state": "running",
        "since_ms": NOW_MS,
        "use_pct": None,
        "used_mib": None,
    }
    gpus = [
        {
            "index": at, "model": "A100-80G", "mem_mib": 81_920, "used_mib": 81_664, "use_pct": 100, "lost": False,
            "drained": False, "strangers": [{"pid": 7, "command": "python3", "mem_mib": 12_800}], "partitions": [],
            "tenants": [{**tenant, "mem_mib": 40_960}],
        }
        for at in range(2)
    ]  # fmt: skip
    status: dict[str, Any] = STATUS | {"gpus": gpus}

    async def run() -> list[list[str]]:
        monkeypatch.setattr(
            Top,
            "_ask",
            lambda self, do, **told: (
                status if do == "status" else {"columns": COLUMNS, "rows": [], "note": ""}
            ),
        )
        async with Top().run_test(size=(width, 40)) as pilot:
            async with asyncio.timeout(30):
                while not pilot.app.query(Tile):
                    await pilot.pause()
            await pilot.pause()
            top = pilot.app
            assert isinstance(top, Top)
            for tile, gpu in zip(top.query(Tile), gpus_of(gpus), strict=True):
                tile.show(gpu, NOW_MS)
            await pilot.pause()
            return [
                [tile.render_line(at).text.strip() for at in range(tile.size.height)]
                for tile in top.query(Tile)
            ]

    for lines in asyncio.run(run()):
        assert [line[:3] for line in lines] == ["GPU", "giv", "in ", "■ 1", "■ p"]
        assert lines[1].endswith(" 40G, 12.5G of no job")
        assert lines[2].endswith(" 79.8G, 100 %")


def test_top_shows_a_name_as_it_is_but_for_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "[/red]a\x1b\udce9"
    job = {
        "id": "1", "user": "ann", "name": name, "state": "waiting", "gpus": 1, "milli": 1000, "mem_mib": 0,
        "submit_ms": 1, "slots": [], "reason": f"it waits [for {name}]", "ready_ms": 1000,
    }  # fmt: skip
    row = [job.get(column) for column in COLUMNS]
    status = STATUS | {"gpus": []}

    async def run() -> list[str]:
        monkeypatch.setattr(
            Top,
            "_ask",
            lambda self, do, **told: (
                status if do == "status" else {"columns": COLUMNS, "rows": [row], "note": name}
            ),
        )
        async with Top().run_test() as pilot:
            table = pilot.app.query_one(DataTable)
            async with asyncio.timeout(30):
                while not table.row_count:
                    await pilot.pause()
            return [str(cell) for cell in table.get_row_at(0)]

    cells = asyncio.run(run())
    assert (cells[2], cells[7]) == ("[/red]a??", "it waits [for [/red]a??]")
