"""`berth top`, drawn without a terminal."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

import pytest
from textual.widgets import DataTable

from berth.live.driver.snapshot import Gpu, LiveJob, Stranger, Tenant, job_row
from berth.live.local.top import Tile, Top

NOW_MS = time.time_ns() // 1_000_000
COUNTS = {"waiting": 1, "held": 0, "starting": 0, "running": 2}
STATUS = {"policy": "fifo", "brain": "ready", "jobs": COUNTS, "trouble": []}


@pytest.mark.parametrize("width", [80, 140])
def test_no_line_of_a_tile_is_broken(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = Tenant("12", "ann", "train", 100, 40_960, since_ms=NOW_MS)
    stranger = Stranger("process 7", 12_800, "python3", pid=7)
    gpus = [
        Gpu("", at, "A100-80G", 81_920, (tenant,), (stranger,), used_mib=81_664, use_pct=100)
        for at in range(2)
    ]
    status: dict[str, Any] = STATUS | {"gpus": [asdict(gpu) for gpu in gpus]}

    async def run() -> list[list[str]]:
        monkeypatch.setattr(
            Top,
            "_ask",
            lambda self, do, **told: status if do == "status" else {"rows": [], "note": ""},
        )
        async with Top().run_test(size=(width, 40)) as pilot:
            async with asyncio.timeout(300):
                while not pilot.app.query(Tile):
                    await pilot.pause()
            await pilot.pause()
            top = pilot.app
            assert isinstance(top, Top)
            for tile, gpu in zip(top.query(Tile), gpus, strict=True):
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
    job = LiveJob("1", "ann", name, "waiting", 1, 1000, 0, 1, 1000, why=f"it waits [for {name}]")
    row = job_row(job)
    status = STATUS | {"gpus": []}

    async def run() -> list[str]:
        monkeypatch.setattr(
            Top,
            "_ask",
            lambda self, do, **told: status if do == "status" else {"rows": [row], "note": name},
        )
        async with Top().run_test() as pilot:
            table = pilot.app.query_one(DataTable)
            async with asyncio.timeout(300):
                while not table.row_count:
                    await pilot.pause()
            return [str(cell) for cell in table.get_row_at(0)]

    cells = asyncio.run(run())
    assert (cells[2], cells[7]) == ("[/red]a??", "it waits [for [/red]a??]")
