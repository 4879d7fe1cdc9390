"""The last hour and the last day: what samples say, where none were taken, and how long they are kept."""

from __future__ import annotations

import math
import sqlite3
import time
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from berth.console.clock import now_ms
from berth.console.now import MOST_PICTURES, MOST_USERS, area, gaps, line, pictures_of
from berth.console.pages import Texts
from berth.console.recent import DAY, HOUR, Recent
from berth.live.driver.snapshot import Snapshot
from tests.console.values import ValuesSource, look_of
from tests.console.world import World

NOW_MS = 1_800_000_000_000


def working(use_pct: float) -> Snapshot:
    """Four GPUs, each in this use, and one job that waits."""
    look = look_of(gpus=4, waiting=1, at_ms=NOW_MS)
    return replace(look, gpus=tuple(replace(gpu, use_pct=use_pct) for gpu in look.gpus))


def sampled(folder: Path, steps: list[int], span_ms: int = HOUR.step_ms) -> Recent:
    """A sample at each of these steps before now, of a use of 40 per cent."""
    recent = Recent(folder / "recent.sqlite3")
    for step in sorted(steps, reverse=True):
        recent.add({"local": working(40)}, NOW_MS - step * span_ms)
    return recent


def test_use_memory_and_waits_are_kept_for_each_gpu_and_user(tmp_path: Path) -> None:
    window = sampled(tmp_path, [0]).window(HOUR, NOW_MS)
    look = working(40)
    first = window.gpus["local", "node0000", 0][:, -1]
    assert first.tolist() == [40.0, look.gpus[0].used_mib, sum(each.milli for each in look.gpus[0].tenants)]
    assert window.working[-1] == pytest.approx(1.6)
    assert (window.cards[-1], window.held[-1], window.waiting[-1]) == (4, 3, 1)
    waits = next(job for job in look.jobs if job.state == "waiting")
    assert waits.ready_ms is not None
    assert window.users[waits.user][1:, -1].tolist() == [1, (NOW_MS - waits.ready_ms) / 1000]


def test_a_step_without_a_sample_is_a_gap_and_not_a_zero(tmp_path: Path) -> None:
    window = sampled(tmp_path, [0, 1, 5]).window(HOUR, NOW_MS)
    assert [step for step in range(HOUR.points) if window.sampled[-1 - step]] == [0, 1, 5]
    assert math.isnan(window.held[-3])
    assert np.isnan(window.gpus["local", "node0000", 0][:, -3]).all()
    assert all(math.isnan(told[0, -3]) for told in window.users.values())


def test_a_user_who_has_left_holds_nothing_and_is_no_gap(tmp_path: Path) -> None:
    recent = sampled(tmp_path, [1])
    recent.add({"local": Snapshot(NOW_MS)}, NOW_MS)
    told = recent.window(HOUR, NOW_MS).users["ann"]
    assert told[0, -2] > 0
    assert told[:, -1].tolist() == [0, 0, 0]


def test_samples_outlive_the_console(tmp_path: Path) -> None:
    sampled(tmp_path, [0, 3])
    window = Recent(tmp_path / "recent.sqlite3").window(HOUR, NOW_MS)
    assert window.sampled.sum() == 2


def test_a_day_is_means_of_ten_minutes(tmp_path: Path) -> None:
    recent = Recent(tmp_path / "recent.sqlite3")
    begin_ms = NOW_MS // DAY.step_ms * DAY.step_ms
    for at, use_pct in enumerate((10.0, 20.0, 60.0)):
        recent.add({"local": working(use_pct)}, begin_ms + at * HOUR.step_ms)
    window = recent.window(DAY, begin_ms + 2 * HOUR.step_ms)
    assert window.gpus["local", "node0000", 0][0, -1] == 30.0
    assert window.sampled.sum() == 1


def test_what_no_picture_shows_is_forgotten(tmp_path: Path) -> None:
    recent = sampled(tmp_path, [0, 119, 120, 500])
    recent.add({"local": working(1)}, NOW_MS + 10 * HOUR.step_ms)
    recent.add({"local": working(1)}, NOW_MS)  # the clock was set back
    with closing(sqlite3.connect(recent.path)) as store:
        begins = store.execute("SELECT begin_ms FROM sample WHERE span = 'hour'").fetchall()
    assert min(begins)[0] >= NOW_MS - HOUR.points * HOUR.step_ms
    assert max(begins)[0] <= NOW_MS


def test_a_large_cluster_keeps_its_day_in_a_small_file(tmp_path: Path) -> None:
    recent = Recent(tmp_path / "recent.sqlite3")
    recent.add({"local": look_of(gpus=2000, waiting=2000, at_ms=NOW_MS)}, NOW_MS)
    both = recent.path.stat().st_size  # one sample of the hour and one of the day
    assert both * (HOUR.points + DAY.points) / 2 < 16 << 20


def test_a_file_that_is_none_of_samples_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "recent.sqlite3"
    path.write_bytes(b"no database" * 1000)
    recent = Recent(path)
    assert not recent.window(HOUR, NOW_MS).sampled.any()
    recent.add({"local": working(40)}, NOW_MS)
    recent.add({"local": working(40)}, NOW_MS)
    assert recent.window(HOUR, NOW_MS + HOUR.step_ms).sampled.sum() == 1


@pytest.mark.parametrize("body", [b"no sample", zlib.compress(b"{}"), zlib.compress(b"no JSON"), None])
def test_a_damaged_sample_is_a_gap(tmp_path: Path, body: bytes | None) -> None:
    recent = sampled(tmp_path, [0, 1, 2])
    with closing(sqlite3.connect(recent.path)) as store, store:
        store.execute("UPDATE sample SET body = ? WHERE begin_ms = ?", (body, NOW_MS - HOUR.step_ms))
    window = recent.window(HOUR, NOW_MS)
    assert window.sampled[-3:].tolist() == [True, False, True]


def test_without_its_folder_a_sample_is_lost_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    recent = Recent(tmp_path / "state" / "recent.sqlite3")
    recent.add({"local": working(40)}, NOW_MS)
    assert not recent.window(HOUR, NOW_MS).sampled.any()


def test_a_path_has_steps_where_numbers_are_and_nothing_where_none_is() -> None:
    values = np.array([1.0, 1.0, np.nan, 2.0])
    assert area(values, 2) == "M0 100V50H2V100ZM3 100V0H4V100Z"
    assert line(values, 2) == "M0 50V50H2M3 0V0H4"
    assert gaps(values) == "M2 100V0H3V100Z"
    assert area(np.array([5.0]), 2) == "M0 100V0H1V100Z"


@pytest.mark.parametrize(("gpus", "title", "pictures"), [(8, "By GPU", 8), (1000, "By node", MOST_PICTURES)])
def test_many_gpus_are_drawn_by_node(tmp_path: Path, gpus: int, title: str, pictures: int) -> None:
    recent = Recent(tmp_path / "recent.sqlite3")
    recent.add({"local": look_of(gpus=gpus, at_ms=NOW_MS)}, NOW_MS)
    found = pictures_of(recent.window(HOUR, NOW_MS), Texts("en"))
    assert found.gpus_title == f"{title} over time"
    assert len(found.gpus) == pictures
    assert len(found.users) <= MOST_USERS


def test_now_says_that_nothing_was_sampled_yet_and_then_shows_it(tmp_path: Path) -> None:
    world = World(tmp_path, sources=[ValuesSource(look_of(gpus=4))])
    client = world.browser("ann")
    assert "Nothing has been sampled yet" in client.get("/now").text
    with client:  # serving begins: the first sample is taken at once
        limit_s = time.monotonic() + 300
        while not world.app.state.recent.window(HOUR, now_ms()).sampled.any() and time.monotonic() < limit_s:
            time.sleep(0.02)
        page = client.get("/now/recent").text
    assert "held on average" in page
    assert "GPUs that ann held" in page
    assert "The last day" in client.get("/now?span=day").text
    assert client.get("/now?span=week").status_code == 422
