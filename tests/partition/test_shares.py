"""A compute limit is kept in time, and launches stay smooth (bench/partition_shares.c).

Programs, library and fake driver see a clock that passes only while all of them sleep (native/tests/clock.c), so
that what is judged is what the driver's ledger says by that clock, however busy the machine is.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conftest import ROOT, Card

POINTS = 3.0
"""How far from its share a partition may be, in per cent of the GPU's time."""
STALL_MS = 20.0


@pytest.fixture(scope="module")
def program(native: Path) -> str:
    name = "partition_shares"
    link = [f"-L{native / 'fake'}", "-l:libcuda.so.1", "-ldl"]
    source = ROOT / "bench" / "partition_shares.c"
    subprocess.run(
        [shutil.which("cc") or "cc", "-O2", "-std=c11", source, "-o", native / name, *link], check=True
    )
    return name


@dataclass(frozen=True)
class Runner:
    """One process: what it launches, and the limits that are its own."""

    words: tuple[str, ...]
    limits: dict[str, str | None] = field(default_factory=dict)


def run(card: Card, program: str, *runners: Runner, **limits: str | None) -> list[tuple[float, float]]:
    """Per cent of the GPU's time that each used, all at once, and its longest launch in ms."""
    clock = {
        "LD_PRELOAD": f"{card.native / 'libclock.so'} {card.native / 'libberth.so'}",
        "BERTH_TEST_CLOCK": str(card.folder / "clock"),
        "BERTH_TEST_CLOCK_PARTIES": str(len(runners)),
        "BERTH_FAKE_WATCH": None,
    }
    running = [card.start(program, *runner.words, **(clock | limits | runner.limits)) for runner in runners]
    try:
        answers = [json.loads(process.communicate(timeout=300)[0]) for process in running]
    finally:
        for process in running:
            process.kill()
    return [(one["share_pct"], one["longest_launch_ms"]) for one in answers]


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("blocks", [1, 132, 2000, 20000])
@pytest.mark.parametrize("core_pct", [10, 20, 50, 80])
def test_a_share_is_kept_for_any_number_of_blocks(
    card: Card, program: str, core_pct: int, blocks: int, processes: int
) -> None:
    runners = [Runner(("wave_100", str(blocks), "12"))] * processes
    used = sum(share for share, _ in run(card, program, *runners, BERTH_GPU_CORE_PCT=str(core_pct)))
    assert used == pytest.approx(core_pct, abs=POINTS)


def test_without_a_share_the_same_program_uses_the_whole_gpu(card: Card, program: str) -> None:
    ((share, _),) = run(card, program, Runner(("wave_100", "132", "12")))
    assert share == pytest.approx(100, abs=1)


def test_a_program_that_waits_for_each_launch_is_limited_too(card: Card, program: str) -> None:
    ((share, _),) = run(card, program, Runner(("wave_1000", "132", "6", "sync")), BERTH_GPU_CORE_PCT="50")
    assert share == pytest.approx(50, abs=POINTS)


@pytest.mark.parametrize("kernel_us", [100, 1000, 2000, 5000, 8000, 9900])
def test_launches_of_short_kernels_do_not_stall(card: Card, program: str, kernel_us: int) -> None:
    ((share, longest_ms),) = run(
        card, program, Runner((f"spin_{kernel_us}", "1", "12")), BERTH_GPU_CORE_PCT="50"
    )
    assert longest_ms <= STALL_MS
    assert share == pytest.approx(50, abs=POINTS)


def test_two_partitions_of_a_gpu_get_what_each_was_promised(card: Card, program: str) -> None:
    small, large = (
        Runner(
            ("wave_1000", "132", "12"),
            {"BERTH_GPU_CORE_PCT": str(pct), "BERTH_REGION": str(card.folder / f"region-{pct}")},
        )
        for pct in (30, 70)
    )
    (first, _), (second, _) = run(card, program, small, large)
    assert (first, second) == (pytest.approx(30, abs=POINTS), pytest.approx(70, abs=POINTS))


def test_one_that_may_burst_uses_what_nobody_wants(card: Card, program: str) -> None:
    runner = Runner(("wave_1000", "132", "12"))
    ((share, _),) = run(card, program, runner, BERTH_GPU_CORE_PCT="30", BERTH_GPU_BURST="1")
    assert share >= 90


def test_one_that_may_burst_leaves_the_other_its_share(card: Card, program: str) -> None:
    burst, hard = (
        Runner(
            ("wave_1000", "132", "12"),
            {"BERTH_GPU_CORE_PCT": pct, "BERTH_GPU_BURST": also, "BERTH_REGION": str(card.folder / pct)},
        )
        for pct, also in (("30", "1"), ("60", "0"))
    )
    (first, _), (second, _) = run(card, program, burst, hard)
    assert second == pytest.approx(60, abs=POINTS)
    assert first >= 30 - POINTS


def test_a_hard_share_is_a_ceiling_on_an_idle_gpu(card: Card, program: str) -> None:
    ((share, _),) = run(card, program, Runner(("wave_1000", "132", "6")), BERTH_GPU_CORE_PCT="30")
    assert share <= 30 + POINTS


def test_a_graph_is_charged_as_it_runs(card: Card) -> None:
    assert card.run("check", "launch", BERTH_GPU_CORE_PCT="50") == (0, "")
