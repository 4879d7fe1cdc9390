"""What suspension saves and costs: GPU-hours lost to preemption, GPU-hours that idle jobs free, and many cycles.

    python bench/suspension.py [--parts lost,idle,cycles] [--seeds 3] [--jobs 1000] [--cycles 200] [--genai FOLDER]

Three mixes are simulated with one job in ten urgent, under `preempt+fifo+best-fit`: jobs that make room are killed;
or start again from a checkpoint that they write each half hour, which takes a minute; or are suspended to the memory of
their node, which is charged by what is copied. Lost are the GPU-hours held that went into no work that counts.

Then serving pods of a public trace, if it is there, idle as they did: a sample of no use every 57 s or more in a row is
a gap. One that is suspended frees its GPU until its gap ends, less the time that it moves. The next call waits for
two moves, one away and one back, since another has to leave first. Each rule decides on each gap by the gaps of the
same pod before. The best in hindsight knows how long each gap is; no rule can. Net are GPU-hours freed, less ten for
each hour waited.

Then the processes of a partition on a fake GPU are suspended and resumed in turn, beside three neighbours. Bytes lost
are those that the driver does not show any more. Two of the neighbours launch kernels without a pause, each limited to
a part of the GPU's time: what they used of it in each two seconds, before, during and after the cycles, by a clock that
passes only while both sleep (native/tests/clock.c). 10,000 cycles are asked, and no share off by more than 3 points.
Writes bench/results/suspension.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
import threading
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

import numpy as np

from berth.cluster import Cluster
from berth.cluster.outages import Recovery
from berth.engine import Suspension, simulate
from berth.live.driver.idling import MOST_GAPS, PATIENCE, cost_of, reclaim_s
from berth.live.driver.suspending import MIB_PER_S, START_S
from berth.model import GpuModel, Job, Node, Share, work_of
from berth.partition import Limit, create, find
from berth.partition.checkpoint import Calls, resume, suspend
from berth.partition.gpus import gpus
from berth.statistics import event_columns, gpu_hours
from berth.traces import read
from genai_series import read_genai
from harness import BENCH, count, data_folder, save
from partition_shares import build

NATIVE = BENCH.parent / "build" / "native"
MIXES = ("demo", "pai-like", "philly-like")
"""The generators of the mixes."""
LOAD = 2.0
"""GPU time that is asked for while jobs come, over what there is: nodes of 8 GPUs are counted by it."""
CARD = GpuModel("A100-80", mem_mib=81_920, pcie_mbps=32_000)
URGENT = 0.1
HELD_MIB = (2_000, 60_000)
"""Between which lies what a job holds of each of its GPUs, evenly."""
HOST_MIB = 1_000_000
MEMBER_MIB = 100
FIXED_S = (60, 300, 900, 3600)
"""After how long a job is suspended by the fixed rules."""
SHARES_PCT = (30, 20)
"""Of the GPU's time, for each neighbour that launches."""
RUN_S, WINDOW_MS = 60, 2000
"""How long neighbours run before the next ones start, and the time in which a share is looked at, by their clock."""


def mix(name: str, jobs: int, seed: int) -> list[Job]:
    """Jobs of a generator, one in ten urgent, each with GPU memory of its own."""
    draw = random.Random(seed)
    found = []
    for job in islice(read(f"synthetic:{name}?seed={seed}"), jobs):
        urgent = draw.random() < URGENT
        share = Share(job.share.milli, draw.randint(*HELD_MIB)) if job.gpus else job.share
        found.append(
            replace(
                job, priority=10 if urgent else 0, share=share, models=(), labels=(), cpu_milli=0, mem_mib=0
            )
        )
    return found


def lost(name: str, jobs: int, seed: int) -> dict[str, dict[str, float]]:
    """GPU-hours held, lost, and finished jobs, by what becomes of those that make room."""
    workload = mix(name, jobs, seed)
    span_ms = max(1, workload[-1].submit_ms - workload[0].submit_ms)
    asked = sum(min(work_of(job), span_ms) * job.gpus * job.share.milli / 1000 for job in workload)
    number = max(1, round(asked / span_ms / LOAD / 8), *(-(-job.gpus // 8) for job in workload))
    nodes = [Node(f"n{at}", 8, CARD, None, HOST_MIB) for at in range(number)]
    kept = [replace(job, keeps_work=True) for job in workload]
    relaunch = Recovery(checkpoint_ms=1_800_000, restart_ms=60_000)
    ways: dict[str, tuple[list[Job], dict[str, Any]]] = {
        "kill": (workload, {}),
        "relaunch": (kept, {"recovery": relaunch}),
        "suspend": (workload, {"suspension": Suspension()}),
    }
    found = {}
    for way, (run, more) in ways.items():
        columns = event_columns(simulate(run, Cluster(nodes), "preempt+fifo+best-fit", seed=seed, **more))
        hours = gpu_hours(columns)
        found[way] = {"held": hours.held, "lost": hours.wasted}
    return found


def idle(folder: Path) -> list[dict[str, Any]]:
    """GPU-hours that each rule frees, and the waits that it costs."""
    card = GpuModel("", mem_mib=96 << 10)
    gaps: list[tuple[int, float, float]] = []  # pod, s, how long it moves, away and back
    for pod, profile in enumerate(read_genai(folder, card)):
        step_s, idles = profile.interval_ms / 1000, profile.usage[:, 0] == 0
        edges = np.flatnonzero(np.diff([0, *idles, 0]))
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            held_mib = float(profile.usage[begin, 1]) * card.mem_mib
            moves_s = sum(START_S + held_mib / mib_per_s for mib_per_s in MIB_PER_S.values())
            gaps.append((pod, float(end - begin) * step_s, moves_s))
    before: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=MOST_GAPS))
    times_s: dict[str, list[float]] = defaultdict(list)
    for pod, gap_s, moves_s in gaps:
        cost_s = cost_of(moves_s)
        times_s["learned"].append(reclaim_s(before[pod], cost_s))
        times_s["break-even"].append(cost_s)
        for fixed_s in FIXED_S:
            times_s[f"fixed {fixed_s} s"].append(fixed_s)
        times_s["oracle: best in hindsight"].append(0.0 if gap_s > cost_s else inf)
        before[pod].append(gap_s)
    idle_s = sum(gap_s for _, gap_s, _ in gaps)
    rows = []
    for rule, each_s in times_s.items():
        left = [(gap_s - time_s, moves_s) for (_, gap_s, moves_s), time_s in zip(gaps, each_s, strict=True)]
        freed_s = [max(0.0, away_s - moves_s) for away_s, moves_s in left if away_s > 0]
        waits_s = [moves_s for away_s, moves_s in left if away_s > 0]
        net_s = sum(away_s - (1 + PATIENCE) * moves_s for away_s, moves_s in left if away_s > 0)
        rows.append({
            "rule": rule, "gaps": len(gaps), "idle_gpu_h": idle_s / 3600, "freed_gpu_h": sum(freed_s) / 3600,
            "suspensions": len(waits_s), "p99_wait_s": float(np.percentile(waits_s, 99)) if waits_s else 0.0,
            "waited_h": sum(waits_s) / 3600, "net_gpu_h": net_s / 3600,
        })  # fmt: skip
    return rows


def cycles(number: int, members: int) -> dict[str, float]:
    """Suspend and resume a partition's processes many times; what was lost, how long a cycle took, and by how many
    points the share of a neighbour was off at most."""
    program = build()
    with tempfile.TemporaryDirectory(prefix="berth-bench-", dir="/dev/shm") as folder:
        os.environ |= {"BERTH_FAKE_CARD": f"{folder}/card", "BERTH_ROOT": f"{folder}/root"}
        fake = NATIVE / "fake"
        (card,) = gpus(fake)
        create("moved", card, Limit(members * MEMBER_MIB))
        create("beside", card, Limit(MEMBER_MIB))
        for share_pct in SHARES_PCT:
            create(f"share-{share_pct}", card, Limit(MEMBER_MIB, share_pct))
        off_before = points_off(program, folder)
        started: list[subprocess.Popen[str]] = []
        try:
            for partition in (*["moved"] * members, "beside"):
                started.append(member(folder, partition))
                ready(started[-1])
            calls = Calls(fake)
            took_ms, over = list[float](), threading.Event()
            with ThreadPoolExecutor(1) as pool:
                meanwhile = pool.submit(points_off_until, over, program, folder)
                try:
                    for _ in range(number):
                        began = perf_counter()
                        outcomes = suspend("moved", calls), resume("moved", calls, driver_folder=fake)
                        took_ms.append(1000 * (perf_counter() - began))
                        assert all(outcome.done for outcome in outcomes), outcomes
                finally:
                    over.set()
            off_during = meanwhile.result()
            held_mib = [int(says(process, "held")) for process in started]
            (moved,) = find("moved")
        finally:
            for process in started:
                process.kill()
                process.communicate()
        return {
            "cycles": number, "members": members, "median_ms": median(took_ms), "longest_ms": max(took_ms),
            "bytes_lost": ((members + 1) * MEMBER_MIB - sum(held_mib)) << 20,
            "limit_off_bytes": moved.limit_bytes - (members * MEMBER_MIB << 20),
            "neighbours_s": len(off_during) * RUN_S, "points_off_before": off_before,
            "points_off_during": max(off_during), "points_off_after": points_off(program, folder),
        }  # fmt: skip


def points_off_until(over: threading.Event, program: Path, folder: str) -> list[float]:
    """What `points_off` says, again and again."""
    found = [points_off(program, folder)]
    while not over.is_set():
        found.append(points_off(program, folder))
    return found


def points_off(program: Path, folder: str) -> float:
    """How far the share of a neighbour was from its limit at most, in one of the times in which it is looked at."""
    clock = Path(folder) / "clock"  # goes on from run to run, as the card's does
    running = []
    for share_pct in SHARES_PCT:
        environment = {
            **os.environ, "LD_LIBRARY_PATH": str(NATIVE / "fake"), "BERTH_REGION": f"{folder}/root/share-{share_pct}",
            "LD_PRELOAD": f"{NATIVE / 'libclock.so'} {NATIVE / 'libberth.so'}", "BERTH_TEST_CLOCK": str(clock),
            "BERTH_TEST_CLOCK_PARTIES": str(len(SHARES_PCT)),
        }  # fmt: skip
        words = [str(program), "wave_1000", "132", str(RUN_S), f"window_{WINDOW_MS}"]
        running.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
    told = [json.loads(process.communicate()[0]) for process in running]
    return max(
        abs(each[which] - share_pct)
        for each, share_pct in zip(told, SHARES_PCT, strict=True)
        for which in ("least_pct", "most_pct")
    )


def member(folder: str, partition: str) -> subprocess.Popen[str]:
    """A process of a partition."""
    environment = {
        **os.environ, "LD_LIBRARY_PATH": str(NATIVE / "fake"), "LD_PRELOAD": str(NATIVE / "libberth.so"),
        "BERTH_REGION": f"{folder}/root/{partition}",
    }  # fmt: skip
    pipe = subprocess.PIPE
    return subprocess.Popen([NATIVE / "member"], env=environment, text=True, stdin=pipe, stdout=pipe)


def ready(process: subprocess.Popen[str]) -> None:
    """Wait until a process has started, and let it take as much as a member holds."""
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    assert says(process, f"take {MEMBER_MIB}") == "yes"


def says(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def main() -> None:
    """Print a row a mix and way, one a rule of idle reclaim, and one for the cycles."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--parts", default="lost,idle,cycles")
    arguments.add_argument("--seeds", type=count, default=3)
    arguments.add_argument("--jobs", type=count, default=1000)
    arguments.add_argument("--genai", help="folder of the trace's two archives")
    arguments.add_argument("--cycles", type=count, default=200)
    arguments.add_argument("--members", type=count, default=3)
    words = arguments.parse_args()
    results: dict[str, Any] = {}
    for part in words.parts.split(","):
        if part == "lost":
            results[part] = print_lost(words.jobs, words.seeds)
        elif part == "idle":
            results[part] = print_idle(words.genai)
        else:
            results[part] = print_cycles(words.cycles, words.members)
    save("suspension", results)


def print_lost(jobs: int, seeds: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    print(f"{'mix':<14}{'way':<10}{'held, GPU-h':>14}{'lost, GPU-h':>14}{'suspension loses less by':>26}")
    for name in MIXES:
        runs = [lost(name, jobs, seed) for seed in range(seeds)]
        suspended = mean(run["suspend"]["lost"] for run in runs)
        for way in runs[0]:
            held, wasted = (mean(run[way][what] for run in runs) for what in ("held", "lost"))
            less = f"{100 * (1 - suspended / wasted):.1f} %" if wasted and way != "suspend" else "–"
            print(f"{name:<14}{way:<10}{held:>14,.1f}{wasted:>14,.2f}{less:>26}")
            rows.append({"mix": name, "way": way, "held_gpu_h": held, "lost_gpu_h": wasted})
    return rows


def print_idle(genai: str | None) -> list[dict[str, Any]]:
    try:
        rows = idle(Path(genai or data_folder() / "genai_v2026"))
    except (SystemExit, FileNotFoundError) as error:
        print(f"\nwhat idle jobs free is not shown: {error}")
        return []
    print(f"\n{rows[0]['gaps']:,} gaps of serving pods, {rows[0]['idle_gpu_h']:,.0f} GPU-hours idle")
    print(
        f"{'rule':<28}{'freed, GPU-h':>14}{'suspensions':>13}{'p99 wait, s':>13}{'waited, h':>11}{'net, GPU-h':>12}"
    )
    for row in rows:
        print(
            f"{row['rule']:<28}{row['freed_gpu_h']:>14,.0f}{row['suspensions']:>13,}{row['p99_wait_s']:>13.1f}"
            f"{row['waited_h']:>11.1f}{row['net_gpu_h']:>12,.0f}"
        )
    return rows


def print_cycles(number: int, members: int) -> dict[str, float]:
    cycle = cycles(number, members)
    print(
        f"\n{cycle['cycles']:,} cycles of {cycle['members']} processes: {cycle['bytes_lost']} bytes lost, limit off by"
        f" {cycle['limit_off_bytes']} bytes, {cycle['median_ms']:.1f} ms a cycle (median),"
        f" {cycle['longest_ms']:.1f} ms the longest\nneighbours of {' and '.join(map(str, SHARES_PCT))} %: in"
        f" {cycle['neighbours_s']} s no share was off by more than {cycle['points_off_during']:.2f} points during the"
        f" cycles ({cycle['points_off_before']:.2f} before, {cycle['points_off_after']:.2f} after)"
    )
    return cycle


if __name__ == "__main__":
    main()
