"""A history that grows is taken up, a broken one changes nothing, and of two nodes' profiles the better counts."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from berth.history.store.record_files import write_records
from berth.knowledge import History, make_knowledge
from berth.live.driver.renewing import Renewal
from berth.live.kubernetes.collecting import Collector
from berth.model import Job
from berth.profiles import BEGUN, IN_HISTORY, RUNNING, SHARED, keep_profile, read_profile, thesis_profiles

NAME, OTHER = sorted(thesis_profiles())[:2]
PROFILE = thesis_profiles()[NAME]


def test_what_a_folder_gains_is_read_once_and_what_was_known_stays(tmp_path: Path) -> None:
    name = f"history?begin={tmp_path}"
    renewal, known = Renewal(name), make_knowledge(name, grows=True)
    assert isinstance(known, History)
    assert (renewal.look(), dict(known.profiles)) == (None, {})
    known.ran_out_of_memory(Job("a", 0, None, application=NAME), 20_000)
    keep_profile(PROFILE, tmp_path / IN_HISTORY)
    found = renewal.look()
    assert found is not None
    known.renew(found)
    assert renewal.look() is None
    assert list(known.profiles) == [NAME]
    needs = known.peak_mem_mib(Job("b", 0, None, application=NAME))
    assert needs is not None
    assert needs.expected == 22_500  # it ran out with 20,000: that is not forgotten
    believed = known.profiles[NAME]
    keep_profile(thesis_profiles()[OTHER], tmp_path / IN_HISTORY)
    found = renewal.look()
    assert found is not None
    known.renew(found)
    assert known.profiles[NAME] is believed  # policies plan anew by another object
    assert sorted(known.profiles) == [NAME, OTHER]


def test_a_broken_profile_is_told_of_once_and_taken_up_when_it_is_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    renewal = Renewal(f"history?begin={tmp_path}")
    path = keep_profile(PROFILE, tmp_path / IN_HISTORY)
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert (renewal.look(), renewal.look()) == (None, None)
    (said,) = caplog.messages
    assert said.startswith("what is known of jobs stays as it is: ")
    assert path.name in said
    path.write_text(whole)
    found = renewal.look()
    assert found is not None
    assert list(found.profiles) == [NAME]


class Agents:
    """An API server whose agents answer with these archives, by node."""

    def __init__(self, archives: dict[str, bytes]) -> None:
        self.archives = archives
        self.asked: list[tuple[str, dict[str, str]]] = []

    async def request(self, method: str, path: str, *, params: Any = None, patience_s: float = 0.0) -> bytes:
        """The list of pods, or an agent's history; nothing for who knows it already."""
        if path.endswith("/pods"):
            pods = [
                {"metadata": {"name": node}, "spec": {"nodeName": node, "containers": [{"name": "node"}]}}
                for node in self.archives
            ]
            return json.dumps({"items": pods}).encode()
        node = path.split("/pods/")[1].partition(":")[0]
        self.asked.append((node, dict(params or {})))
        return b"" if params else self.archives[node]


def archive(folder: Path, kind: str, interval_ms: int, written_s: int) -> bytes:
    """What an agent serves: no record, and one profile that was written at this time."""
    folder.mkdir()
    write_records([], folder / "records.parquet")
    path = keep_profile(replace(PROFILE, kind=kind, interval_ms=interval_ms), folder)
    os.utime(path, (written_s, written_s))
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        tar.add(folder / "records.parquet", "records.parquet")
        tar.add(path, f"profiles/{path.name}")
    return made.getvalue()


def test_the_beginning_of_a_run_alone_counts_for_more_than_a_shared_run_and_less_than_a_window(
    tmp_path: Path,
) -> None:
    kinds = [SHARED, BEGUN, SHARED, RUNNING, BEGUN]
    nodes = {str(at): archive(tmp_path / str(at), kind, 1000, at) for at, kind in enumerate(kinds)}
    into, found = tmp_path / "history", []
    for node, made in nodes.items():
        asyncio.run(Collector(Agents({node: made}), into).collect())  # type: ignore[arg-type]
        found.append(read_profile(next((into / IN_HISTORY).iterdir())).kind)
    assert found == [SHARED, BEGUN, BEGUN, RUNNING, RUNNING]


@pytest.mark.slow
def test_the_newest_profile_of_a_run_alone_counts_and_a_damaged_archive_harms_no_other(
    tmp_path: Path,
) -> None:
    agents = Agents({
        "old": archive(tmp_path / "1", "live", 1000, 1_000), "new": archive(tmp_path / "2", "live", 2000, 2_000),
        "shared": archive(tmp_path / "3", SHARED, 3000, 3_000), "torn": b"no archive",
    })  # fmt: skip
    into = tmp_path / "history"
    into.mkdir()
    collector = Collector(agents, into)  # type: ignore[arg-type]
    said = asyncio.run(collector.collect())
    assert said["torn"].startswith("left out: what it answered cannot be taken over")
    (path,) = (into / IN_HISTORY).iterdir()
    assert read_profile(path).interval_ms == 2000
    agents.asked.clear()
    said = asyncio.run(collector.collect())
    assert {node for node, params in agents.asked if params} == {"old", "new", "shared"}
    assert {said[node] for node in ("old", "new", "shared")} == {"nothing new"}
