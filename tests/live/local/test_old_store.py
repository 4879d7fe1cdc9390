"""A queue of 0.2 is opened by this version, with all that it was about to do (`make_store_0_2.py` made its store)."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from berth.errors import StoreError
from berth.live.local.places import FAKE_CARD
from berth.live.local.request import Tasks
from berth.live.local.store import Reader
from tests.live.local.fake_world import FakeWorld

STORE = Path(__file__).with_name("stores") / "queue_0.2.db"


@pytest.fixture
def world(tmp_path: Path) -> FakeWorld:
    """A broker of today on the store, on the machine on which the jobs run."""
    path = tmp_path / "queue.db"
    shutil.copy(STORE, path)
    processes = {("4", 1): None}
    return FakeWorld(
        path,
        cards=4,
        now_ms=3_000,
        processes=processes,
        submitted=set("345679") | {"8_1", "8_2", "8_3", "10"},
    )


def test_waiting_held_running_and_ended_jobs_of_an_old_queue_are_there(world: FakeWorld) -> None:
    jobs = world.book.jobs
    assert {job_id: job.state for job_id, job in jobs.items()} == {
        "3": "waiting", "4": "running", "5": "waiting", "6": "held", "7": "waiting", "8_1": "waiting",
        "8_2": "waiting", "8_3": "waiting", "9": "starting", "10": "waiting",
    }  # fmt: skip
    assert world.store.ended_states("1") | world.store.ended_states("2") == {"1": "completed", "2": "failed"}
    assert (jobs["3"].attempt, jobs["3"].out_of_memory, jobs["3"].needs_mib) == (2, 1, 675)
    assert world.offers["3"].share.mem_mib == 675
    reasons = {job_id: reason.text for job_id, reason in world.brain.driver.reasons().items()}
    assert reasons["10"] == "it could not be started: no room for a process"
    assert [attempt["state"] for attempt in world.store.attempts("3")] == ["out-of-memory"]
    assert world.store.meta("drained") == [3]
    assert {(job.gang, job.gang_ended) for job in jobs.values()} == {("", 0)}


def test_an_old_queue_goes_on_to_its_end(world: FakeWorld) -> None:
    world.finish()
    states = {
        job_id: state for job_id in world.submitted for state in world.store.ended_states(job_id).values()
    }
    assert states == dict.fromkeys(world.submitted, "completed")
    again = world.submit(world.store.request(3), Tasks(None, ((),)))[0]
    assert again.id == "11"


def test_a_queue_that_a_newer_berth_wrote_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    shutil.copy(STORE, path)
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("UPDATE jobs SET body = json_set(body, '$.of_tomorrow', 1) WHERE id = '4'")
    refused = pytest.raises(StoreError, match=r"a newer berth .*'of_tomorrow'.* put back the copy")
    with closing(Reader(str(path))) as today, refused:
        today.live()


def test_the_file_of_the_fake_gpus_is_named_by_its_layout() -> None:
    """An upgraded queue must not map a file of another layout."""
    header = Path(__file__).parents[3] / "native" / "tests" / "fake.h"
    layouts = re.findall(r"FAKE_LAYOUT = (\d+)", header.read_text())
    assert [f"fake-card-{layout}" for layout in layouts] == [FAKE_CARD]


def test_a_damaged_row_is_not_taken_for_a_newer_berths(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    shutil.copy(STORE, path)
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("UPDATE jobs SET body = json_set(body, '$.slots', 7) WHERE id = '4'")
    refused = pytest.raises(
        StoreError, match=r"a job that cannot be read .*\"id\":\"4\".* put back .*queue\.db\.copy"
    )
    with closing(Reader(str(path))) as today, refused:
        today.live()
