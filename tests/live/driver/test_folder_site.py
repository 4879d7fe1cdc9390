"""The site of the docs: jobs as files in a folder, under the same driver as all others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from berth.live.driver.driver import Driver, Settings
from berth.model import GpuModel, Node

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    yield tmp_path
    sys.modules.pop("folder_site", None)


def driver_of(folder: Path) -> Driver:
    from folder_site import FolderSite

    node = Node("n1", 1, GpuModel("A100-40", mem_mib=40_000))
    return Driver(FolderSite(folder, [node]), Settings(policy="fifo+best-fit", knowledge="user"))


def names(folder: Path, where: str) -> list[str]:
    return sorted(path.name for path in (folder / where).iterdir())


def test_a_folder_of_files_is_a_site(folder: Path) -> None:
    driver = driver_of(folder)
    for job_id in ("1-a", "2-b"):
        (folder / "waiting" / job_id).write_text("{}")
    driver.step(1000)
    assert (names(folder, "running"), names(folder, "waiting")) == (["1-a"], ["2-b"])
    assert json.loads((folder / "waiting" / "2-b").read_text())["why"] == "waits for room"
    (folder / "running" / "1-a.end").write_text(
        json.dumps({"state": "failed", "end_ms": 1500, "exit_code": 3})
    )
    (record,) = driver_of(folder).step(2000).records
    assert (record.job_id, record.state, record.exit_code, record.gpu_slots) == (
        "1-a",
        "failed",
        3,
        ("n1:0",),
    )
    assert (names(folder, "running"), names(folder, "ended")) == (["2-b"], ["1-a"])


def test_what_a_file_says_others_hold_is_not_given_away(folder: Path) -> None:
    driver = driver_of(folder)
    (folder / "others").write_text("n1 0 500 30000\n")
    (folder / "waiting" / "1-a").write_text("{}")
    driver.step(1000)
    assert names(folder, "running") == []
    (folder / "others").unlink()
    driver.step(2000)
    assert names(folder, "running") == ["1-a"]


@pytest.mark.parametrize("state", ["out-of-memory", "preempted"])
def test_an_end_stays_until_it_is_settled(folder: Path, state: str) -> None:
    driver = driver_of(folder)
    (folder / "waiting" / "1-a").write_text(json.dumps({"milli": 500, "mem_mib": 8000}))
    driver.step(1000)
    (folder / "running" / "1-a.end").write_text(json.dumps({"state": state, "end_ms": 1500}))
    driver.site.ended()  # and the driver dies before it has settled that
    assert names(folder, "running") == ["1-a", "1-a.end"]
    (record,) = driver_of(folder).step(2000).records
    assert (record.state, names(folder, "ended")) == (state, [])
    assert names(folder, "running") + names(folder, "waiting") == ["1-a"]


def test_the_example_stays_short() -> None:
    assert len((ROOT / "examples" / "folder_site.py").read_text().splitlines()) < 150
