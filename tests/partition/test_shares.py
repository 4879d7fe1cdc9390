"""A compute limit is kept in time, and launches stay smooth (bench/partition_shares.c).

Programs, library and fake driver see a clock that passes only while all of them sleep (native/tests/clock.c), so
that what is judged is what the driver's ledger says by that clock, however busy the machine is.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.partition.conftest import ROOT, Card
from tests.partition.test_checkpoint import DONE, Suspended

from berth.partition.regions import read, regions_in

POINTS = 3.0
"""How far from its share a partition may be, in per cent of the GPU's time."""
STALL_MS = 20.0
PAID_UNTIL_AT = 192
"""Where `paid_until_ns` lies in a region's file (native/region.h)."""
LONGEST_AT = 288
"""Where `longest_ns`, the longest launch of late, lies there."""


@pytest.fixture(scope="module")
def program(native: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    built = tmp_path_factory.mktemp("shares") / "partition_shares"
    link = [f"-L{native / 'fake'}", "-l:libcuda.so.1", "-ldl"]
    source = ROOT / "bench" / "partition_shares.c"
    subprocess.run([shutil.which("cc") or "cc", "-O2", "-std=c11", source, "-o", built, *link], check=True)
    return str(built)


@dataclass(frozen=True)
class Runner:
    """One process: what it launches, and the limits that are its own."""

    words: tuple[str, ...]
    limits: dict[str, str | None] = field(default_factory=dict)


def run_all(card: Card, program: str, *runners: Runner, **limits: str | None) -> list[dict[str, float]]:
    """What each prints, all at once."""
    clock = {
        "LD_PRELOAD": f"{card.native / 'libclock.so'} {card.native / 'libberth.so'}",
        "BERTH_TEST_CLOCK": str(card.folder / "clock"),
        "BERTH_TEST_CLOCK_PARTIES": str(len(runners)),
        "BERTH_FAKE_WATCH": None,
    }
    running = [card.start(program, *runner.words, **(clock | limits | runner.limits)) for runner in runners]
    try:
        return [json.loads(process.communicate(timeout=300)[0]) for process in running]
    finally:
        for process in running:
            process.kill()


def run(card: Card, program: str, *runners: Runner, **limits: str | None) -> list[tuple[float, float]]:
    """Per cent of the GPU's time that each used, all at once, and its longest launch in ms."""
    answers = run_all(card, program, *runners, **limits)
    return [(one["share_pct"], one["longest_launch_ms"]) for one in answers]


@pytest.mark.slow
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


@pytest.mark.parametrize("shapes", ["grids depth_1000", "grids depth_1000 sync", "graphs depth_500"])
@pytest.mark.parametrize("kernel", ["spin_5000", "wave_100"])
def test_a_share_is_kept_by_launches_of_which_each_is_a_new_one(
    card: Card, program: str, kernel: str, shapes: str
) -> None:
    runner = Runner((kernel, "1", "12", *shapes.split()))
    ((share, _),) = run(card, program, runner, BERTH_GPU_CORE_PCT="30")
    assert share == pytest.approx(30, abs=POINTS)


def test_one_whose_shapes_change_leaves_its_neighbour_the_share(card: Card, program: str) -> None:
    changing, steady = (
        Runner(words, {"BERTH_GPU_CORE_PCT": "30", "BERTH_REGION": str(card.folder / words[3])})
        for words in (("spin_5000", "1", "12", "grids", "depth_1000"), ("spin_5000", "1", "12", "depth_20"))
    )
    (first, _), (second, _) = run(card, program, changing, steady)
    assert first <= 30 + POINTS
    assert second >= 20


@pytest.mark.parametrize(
    ("words", "least_ms"),
    [
        ("spin_500000 1 0 launches_1", 500),
        ("spin_50000 1 0 launches_8 grids", 400),
        ("spin_500000 1 0 launches_1 abandons", 49),
    ],
)
def test_a_process_that_ends_soon_has_paid_for_what_it_launched(
    card: Card, program: str, words: str, least_ms: int
) -> None:
    limits: dict[str, str | None] = {"BERTH_GPU_CORE_PCT": "30", "BERTH_FAKE_WATCH": None}
    assert card.run(program, *words.split(), **limits) == (0, "")
    (region,) = regions_in(card.folder / "region")
    assert read(card.folder / "region", region, "").gpu_ns / 1e6 >= least_ms * 0.99


def test_a_killed_process_has_paid_for_what_was_not_measured(card: Card, program: str) -> None:
    limits: dict[str, str | None] = {"BERTH_GPU_CORE_PCT": "30", "BERTH_FAKE_WATCH": None}
    assert card.run(program, "spin_500000", "1", "0", "launches_1", "dies", **limits) == (-9, "")
    (region,) = regions_in(card.folder / "region")
    assert read(card.folder / "region", region, "").gpu_ns / 1e6 >= 200 * 0.99
    # How long it ran is a guess, by which the next that is killed must not be charged twice as much.
    (use,) = (card.folder / "region").glob("*.use")
    assert int.from_bytes(use.read_bytes()[LONGEST_AT : LONGEST_AT + 8], "little") == 0


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


def test_one_that_may_burst_uses_what_no_other_wants(card: Card, program: str) -> None:
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


KINDS = ["", "host", "own", "hidden", "next", "old", "total", "missing", "lies"]
"""What NVML may be like (native/tests/fake.h)."""
TELLING = ["", "host", "own", "next", "hidden"]
"""Where it tells what each process computes, under whatever pid, or of all but this one."""
VARYING = ["vary_100_5000_4", "vary_100_9000_20", "even_1000", "spin_100,spin_50000"]
REAL = {"BERTH_FAKE_CONTEXT_MIB": "300", "BERTH_GPU_MEM_MIB": "4096"}


def beside(card: Card, kind: str, *words: tuple[str, dict[str, str | None]]) -> list[Runner]:
    """Processes, each in a partition of its own, each two seconds after the one before."""
    return [
        Runner(
            (*program.split(), *([] if at == 0 else [f"after_{at * 2}000"])),
            {"BERTH_REGION": str(card.folder / f"region-{at}"), "BERTH_FAKE_NVML": kind} | limits,
        )
        for at, (program, limits) in enumerate(words)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", VARYING)
@pytest.mark.parametrize("wait", ["", " sync"])
def test_a_share_is_kept_by_kernels_whose_launches_differ(
    card: Card, program: str, kernel: str, kind: str, wait: str
) -> None:
    runner = beside(card, kind, (f"{kernel} 132 20{wait}", {"BERTH_GPU_CORE_PCT": "30"}))
    ((share, _),) = run(card, program, *runner, **REAL)
    assert share == pytest.approx(30, abs=POINTS)


@pytest.mark.parametrize("kind", ["", "host", "own", "next", "total"])
def test_a_burst_uses_an_idle_gpu_by_whatever_pids(card: Card, program: str, kind: str) -> None:
    limits: dict[str, str | None] = {"BERTH_GPU_CORE_PCT": "30", "BERTH_GPU_BURST": "1"}
    ((share, _),) = run(card, program, *beside(card, kind, ("wave_1000 132 20", limits)), **REAL)
    assert share >= 90


@pytest.mark.parametrize("kind", ["missing", "old", "lies"])
def test_a_burst_keeps_to_its_share_where_nvml_does_not_tell_what_is_left(
    card: Card, program: str, kind: str
) -> None:
    burst, hard = beside(
        card,
        kind,
        ("wave_1000 132 20", {"BERTH_GPU_CORE_PCT": "30", "BERTH_GPU_BURST": "1"}),
        ("wave_1000 132 20", {"BERTH_GPU_CORE_PCT": "60"}),
    )
    (first, _), _ = run(card, program, burst, hard, **REAL)
    assert first <= 40 + POINTS  # of the 40 that the other leaves


@pytest.mark.slow
@pytest.mark.parametrize("kind", TELLING)
@pytest.mark.parametrize("kernel", ["vary_100_5000_4", "even_1000"])
def test_kernels_whose_launches_differ_keep_to_their_share_beside_others(
    card: Card, program: str, kernel: str, kind: str
) -> None:
    runners = beside(
        card,
        kind,
        (f"{kernel} 132 24", {"BERTH_GPU_CORE_PCT": "30"}),
        ("wave_1000 132 24", {"BERTH_GPU_CORE_PCT": "50"}),
    )
    (first, _), (second, _) = run(card, program, *runners, **REAL)
    assert (first, second) == (pytest.approx(30, abs=POINTS), pytest.approx(50, abs=POINTS))


@pytest.mark.parametrize("kind", ["slow", "host,slow", "own,slow"])
def test_shares_are_kept_though_samples_of_use_come_seldom(card: Card, program: str, kind: str) -> None:
    """A look that finds no newer sample does not tell which process computes."""
    runners = beside(
        card,
        kind,
        ("wave_1000 132 30", {"BERTH_GPU_CORE_PCT": "30"}),
        ("wave_1000 132 30", {"BERTH_GPU_CORE_PCT": "50"}),
    )
    (first, _), (second, _) = run(card, program, *runners, **REAL)
    assert (first, second) == (pytest.approx(30, abs=POINTS), pytest.approx(50, abs=POINTS))


@pytest.mark.parametrize("kind", ["old", "missing", "lies"])
@pytest.mark.parametrize("kernel", ["wave_1000", "vary_100_5000_4", "even_1000"])
def test_where_nvml_does_not_tell_what_computes_no_share_is_exceeded(
    card: Card, program: str, kernel: str, kind: str
) -> None:
    runners = beside(
        card,
        kind,
        (f"{kernel} 132 24", {"BERTH_GPU_CORE_PCT": "30"}),
        ("wave_1000 132 24", {"BERTH_GPU_CORE_PCT": "50"}),
    )
    (first, _), (second, _) = run(card, program, *runners, **REAL)
    assert first <= 30 + POINTS
    assert second <= 50 + POINTS


@pytest.mark.slow
@pytest.mark.parametrize("kind", TELLING)
@pytest.mark.parametrize("wait", ["", " sync"])
def test_short_kernels_beside_long_ones_get_their_share_in_every_second(
    card: Card, program: str, kind: str, wait: str
) -> None:
    """A second is 20 times the longest kernel."""
    short, long = beside(
        card,
        kind,
        (f"spin_100 132 40 window_1000{wait}", {"BERTH_GPU_CORE_PCT": "20"}),
        ("spin_50000 132 40", {"BERTH_GPU_CORE_PCT": "70"}),
    )
    answers = run_all(card, program, short, long, **REAL)
    assert answers[0]["least_pct"] >= 20 - POINTS
    assert answers[0]["most_pct"] <= 20 + POINTS
    assert answers[1]["share_pct"] == pytest.approx(70, abs=POINTS)


@pytest.mark.parametrize("kind", TELLING)
@pytest.mark.parametrize("wait", ["", " sync"])
@pytest.mark.parametrize("kernel", ["wave_1000", "even_1000"])
def test_two_that_may_burst_settle_at_their_shares(
    card: Card, program: str, kernel: str, kind: str, wait: str
) -> None:
    runners = beside(
        card,
        kind,
        *(
            (f"{kernel} 132 40{wait}", {"BERTH_GPU_CORE_PCT": pct, "BERTH_GPU_BURST": "1"})
            for pct in ("20", "80")
        ),
    )
    (first, _), (second, _) = run(card, program, *runners, **REAL)
    assert (first, second) == (pytest.approx(20, abs=5), pytest.approx(80, abs=5))


@pytest.mark.slow
def test_neighbours_keep_their_shares_while_a_partition_leaves_its_card_and_comes_back(
    card: Card, program: str, tmp_path: Path
) -> None:
    """In every two seconds of their clock; the partition moves by the machine's."""
    made, over = Suspended(card, tmp_path), threading.Event()
    shares_pct = (30, 20)
    words: list[tuple[str, dict[str, str | None]]] = [
        ("wave_1000 132 20 window_2000", {"BERTH_GPU_CORE_PCT": str(pct)}) for pct in shares_pct
    ]

    def neighbours() -> list[dict[str, float]]:
        found = run_all(card, program, *beside(card, "", *words))
        while not over.is_set():
            found += run_all(card, program, *beside(card, "", *words))
        return found

    try:
        member = made.member(80)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(neighbours)
            try:
                for _ in range(5):
                    assert (made.do("suspend"), made.do("resume")) == (DONE, DONE)
            finally:
                over.set()
        assert made.says(member, "held") == "80"
    finally:
        for each in made.members:
            each.kill()
            each.communicate()
    found = running.result()
    for at, each in enumerate(found):
        share_pct = shares_pct[at % 2]
        assert each["least_pct"] >= share_pct - POINTS
        assert each["most_pct"] <= share_pct + POINTS


@pytest.mark.parametrize("jump_ms", [-900_000, 3_600_000])
def test_a_clock_that_jumps_changes_no_share(card: Card, program: str, jump_ms: int) -> None:
    small, large = beside(
        card,
        "",
        ("wave_1000 132 12", {"BERTH_GPU_CORE_PCT": "30"}),
        ("vary_100_5000_4 132 12", {"BERTH_GPU_CORE_PCT": "50"}),
    )
    jump = {"BERTH_TEST_CLOCK_JUMP": f"5000:{jump_ms}"}
    (first, stall_ms), (second, _) = run(card, program, small, large, **REAL, **jump)
    assert (first, second) == (pytest.approx(30, abs=POINTS), pytest.approx(50, abs=POINTS))
    assert stall_ms < 1000


def test_a_region_from_before_a_restart_makes_no_launch_wait(card: Card, program: str) -> None:
    """Its instants are of a clock that had run for longer than this one has."""
    limits = {"BERTH_GPU_CORE_PCT": "30"} | REAL
    run(card, program, Runner(("wave_1000", "132", "2")), **limits, BERTH_TEST_CLOCK_JUMP="0:864000000")
    for name in ("clock", "card"):
        (card.folder / name).unlink()
    ((share, stall_ms),) = run(card, program, Runner(("wave_1000", "132", "6")), **limits)
    assert share == pytest.approx(30, abs=POINTS)
    assert stall_ms <= STALL_MS


def test_an_instant_of_another_clock_stops_no_launch(card: Card, program: str) -> None:
    limits: dict[str, str | None] = {"BERTH_GPU_CORE_PCT": "30"}
    run(card, program, Runner(("wave_1000", "132", "2")), **limits)
    (use,) = (card.folder / "region").glob("*.use")
    with use.open("r+b") as file:
        file.seek(PAID_UNTIL_AT)
        ahead = int.from_bytes(file.read(8), "little") + 1_000_000_000_000
        file.seek(PAID_UNTIL_AT)
        file.write(ahead.to_bytes(8, "little"))
    ((share, _),) = run(card, program, Runner(("wave_1000", "132", "60")), **limits)
    assert share == pytest.approx(30, abs=POINTS)
    assert "which no launch explains; set back to" in card.log


def test_a_member_in_another_time_namespace_stops_no_other(card: Card, program: str) -> None:
    """Its clock is an hour ahead of the others'."""
    command = ["unshare", "--time", "--monotonic", "3600", "--boottime", "3600"]
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not make time namespaces")
    limits: dict[str, str | None] = {"BERTH_GPU_CORE_PCT": "50", "BERTH_FAKE_WATCH": None}
    words = ["spin_1000", "1", "0", "launches_20"]
    there = [*command, program, *words]
    ours = card.environment(limits)
    for _ in range(2):
        assert subprocess.run(there, check=False, env=ours, timeout=300).returncode == 0
        assert subprocess.run(there[-5:], check=False, env=ours, timeout=300).returncode == 0
    assert "which no launch explains" not in card.log
    assert "the clock fell back" not in card.log


def test_high_priority_takes_the_gpu_and_low_is_not_starved(card: Card, program: str) -> None:
    low, high = beside(
        card,
        "host",
        ("wave_1000 132 24", {"BERTH_GPU_PRIORITY": "low"}),
        ("wave_1000 132 24", {"BERTH_GPU_PRIORITY": "high"}),
    )
    (left, _), (taken, _) = run(card, program, low, high, **REAL)
    assert taken >= 85
    assert left >= 4


def test_low_priority_has_what_no_other_uses(card: Card, program: str) -> None:
    low, other = beside(
        card,
        "host",
        ("wave_1000 132 24", {"BERTH_GPU_PRIORITY": "low"}),
        ("wave_1000 132 24", {"BERTH_GPU_CORE_PCT": "50"}),
    )
    (left, _), (taken, _) = run(card, program, low, other, **REAL)
    assert taken == pytest.approx(50, abs=POINTS)
    assert left >= 30
    ((alone, _),) = run(card, program, low, **REAL)
    assert alone >= 90


def test_a_priority_that_there_is_not_gives_no_gpu(card: Card) -> None:
    code, _ = card.run("taken", "context", BERTH_GPU_PRIORITY="urgent")
    assert code == 3
    assert "BERTH_GPU_PRIORITY='urgent' is not a priority; there are high, normal and low" in card.log
