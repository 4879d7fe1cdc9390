"""When the second job of a new queue starts, without any history, as queue, `why`, `top` and the console tell it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.widgets import DataTable

from berth.console.sources.local import LocalSource
from berth.live.local.link import BRAIN
from berth.live.local.top import Top
from tests.console.world import World as Console
from tests.live.local.conftest import native as native
from tests.live.local.world import World, berth

UNKNOWN = "start unknown: a running job has no time limit, and no job like it has ended yet"


async def shown_by_top(job: str) -> str:
    """The last cell of a job's row."""
    async with Top().run_test() as pilot, asyncio.timeout(300):
        table = pilot.app.query_one(DataTable)
        while True:
            rows = [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]
            for row in rows:
                if row[0] == job:
                    return row[-1]
            await pilot.pause()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"time": "1h"}, "expected to start from "),
        ({"estimate": "1h"}, "expected to start from "),
        ({}, UNKNOWN),
    ],
    ids=["limit", "estimate", "neither"],
)
def test_the_second_job_of_a_new_queue_has_a_start_interval_or_why_it_has_none(
    flags: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = World(gpus="1xA100-80G", brain=BRAIN)
    monkeypatch.setenv("BERTH_STATE", str(queue.state))
    try:
        queue.up()
        first = queue.submit("sleep 600", gpus=1, **flags)
        queue.until(lambda: queue.state_of(first) == "running", "the first job runs")
        job = queue.submit("true", gpus=1, **flags)
        queue.until(lambda: said in berth(queue, "queue").stdout, "the queue tells when it starts")
        assert said in berth(queue, "why", job).stdout
        assert said in asyncio.run(shown_by_top(job))
        ann = Console(tmp_path, sources=[LocalSource(Path(queue.places.socket))]).program()
        told = ann.get(f"/api/v1/jobs/{job}").json()
        page = ann.get("/queue").text
    finally:
        queue.close()
    if said == UNKNOWN:
        assert told["starts_from_ms"] is None
        assert UNKNOWN in told["reason"]
        assert UNKNOWN in page
    else:
        begin_ms, end_ms = told["starts_from_ms"], told["starts_to_ms"]
        assert told["submit_ms"] <= begin_ms < end_ms
        assert f'<time data-ms="{begin_ms}">' in page
