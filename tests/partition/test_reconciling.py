"""The driver's word on a partition's memory is held against what libberth counted."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.partition.conftest import ROOT, Card

from berth.partition import find
from berth.partition.reconciling import ALLOWED_MIB, Counted, Difference, Reconciler

Apart = Callable[..., tuple[int, str]]
GPU_JOB = ROOT / "tests" / "live" / "local" / "gpu_job.py"


def one(*, limit: int = 1000, peak: int = 0, seen: int, processes: int = 1, name: str = "job-1") -> Counted:
    return Counted(name, 0, limit, peak, processes, seen)


def lasting(*looks: Counted) -> list[list[Difference]]:
    reconciler = Reconciler()
    return [reconciler.look([look]) for look in looks]


def test_memory_that_was_never_counted_is_found_by_the_second_look() -> None:
    found = Difference("job-1", 0, 900, 100)
    assert lasting(one(peak=100, seen=900), one(peak=100, seen=900)) == [[], [found]]
    assert found.uncounted_mib == 800


def test_a_difference_that_one_look_shows_alone_is_none() -> None:
    assert lasting(one(peak=100, seen=900), one(peak=900, seen=900), one(peak=100, seen=900)) == [[], [], []]


def test_a_job_that_gave_back_while_both_were_read_is_no_difference() -> None:
    assert lasting(*[one(peak=900, seen=seen) for seen in (900, 0, 900, 500)]) == [[]] * 4


def test_estimates_of_contexts_may_be_off_by_as_much_as_is_allowed() -> None:
    allowed = 2 * ALLOWED_MIB + 50
    just = [one(peak=100, seen=100 + allowed, processes=2)] * 2
    over = [one(peak=100, seen=101 + allowed, processes=2)] * 2
    assert lasting(*just)[1] == []
    assert [each.seen_mib for each in lasting(*over)[1]] == [101 + allowed]


def test_counters_that_claim_more_than_the_limit_hide_nothing() -> None:
    forged = [one(limit=1000, peak=1 << 30, seen=4000)] * 2
    assert [(each.counted_mib, each.seen_mib) for each in lasting(*forged)[1]] == [(1000, 4000)]


def test_what_was_taken_before_a_limit_shrank_is_counted() -> None:
    before, after = one(limit=1000, peak=1000, seen=1000), one(limit=200, peak=1000, seen=1000)
    assert lasting(before, after, after, after) == [[]] * 4


def forge(use: Path, held_bytes: int) -> list[int]:
    """Write 0 wherever the counters say what is held: the sum, the slot and the peaks; where that is."""
    data = use.read_bytes()
    places = [at for at in range(0, len(data) - 7, 8) if struct.unpack_from("<Q", data, at) == (held_bytes,)]
    write(use, places, 0)
    return places


def write(use: Path, places: list[int], value: int) -> None:
    with use.open("r+b") as file:
        for at in places:
            file.seek(at)
            file.write(struct.pack("<Q", value))


def test_watch_says_what_a_partition_did_not_count(card: Card, berth_apart: Apart) -> None:
    assert berth_apart("partition", "create", "blue", "--mem", "1G", "--fake-gpu")[0] == 0
    folder = card.folder / "root" / "blue"
    environment = card.environment({"BERTH_REGION": str(folder), "BERTH_GPU_MEM_MIB": None})
    environment.pop("BERTH_FAKE_WATCH")
    gone = card.folder / "gone"
    command = [sys.executable, str(GPU_JOB), "900", str(gone)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holds 900\n"
            watch = ("partition", "watch", "--every", "0.1", "--times", "3", "--fake-gpu")
            quiet = berth_apart(*watch)
            assert (quiet[0], "counted" in quiet[1]) == (0, False)
            (use,) = folder.glob("*.use")
            (one,) = find("blue", card.folder / "root")
            forge(use, one.used_bytes)
            said = berth_apart(*watch)[1]
            assert said.count("blue holds ") == 1  # by the second look, and once
            assert "of GPU 0, and its partition counted 0 B: a process of it has unloaded libberth" in said
        finally:
            gone.touch()
