"""How long the largest questions take by command, and how much memory: a million jobs, and sizes for 100,000.

    python bench/scale.py [--jobs 1000000] [--sized 100000] [--parts million,sizes,runs,shares]

`million` writes the jobs as CSV and replays them on 1,024 GPUs with `berth simulate`. `sizes` lets `berth size` scan
three policies on two processes, for jobs that ask for 80 % of 320 GPUs. `runs` scans them in this process, one policy
after the other: which simulations, and their processor time. `shares` samples both commands in this process every 5 ms
of processor time, and says whose code was running: that of the simulation (engine, scheduler, policy, cluster,
knowledge), of traces, of statistics, or any other. Writes bench/results/scale.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import numpy as np

import berth
from berth.cli import main as berth_command
from berth.experiments.size import keep_of, smallest_sizes
from berth.traces import read_nodes, read_trace, write
from harness import save

BERTH = str(Path(sys.executable).with_name("berth"))
POLICIES = "easy+fifo+best-fit,easy+sjf-expected+best-fit,fifo+first-fit"
SUBJECTS = {
    **dict.fromkeys(("engine", "scheduler", "policies", "cluster", "knowledge", "model.py"), "simulation"),
    "traces": "traces",
    "statistics": "statistics",
}
"""Whose code it is, by the folder of berth's."""


def timed(*command: str) -> tuple[float, float, float, str]:
    """Wall and processor seconds, the largest resident MiB of the command itself, and its output."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, output


def shares(command: tuple[str, ...]) -> dict[str, float]:
    """Per cent of the processor time of a command, run here once its functions are compiled, by SUBJECTS."""
    found: Counter[str] = Counter()

    def note(_signal: int, frame: FrameType | None) -> None:
        for each, _line in traceback.walk_stack(frame):
            _, berth_file, part = each.f_code.co_filename.rpartition("/berth/")
            if berth_file:
                found[SUBJECTS.get(part.split("/")[0], "other")] += 1
                return
        found["other"] += 1

    before = sys.argv
    sys.argv = ["berth", *command]
    signal.signal(signal.SIGPROF, note)
    signal.setitimer(signal.ITIMER_PROF, 0.005, 0.005)
    try:
        with suppress(SystemExit), redirect_stdout(StringIO()):
            berth_command()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.argv = before
    return {name: round(100 * number / found.total(), 1) for name, number in found.most_common()}


def million_command(folder: Path, count: int) -> tuple[str, ...]:
    """Replay jobs of one GPU that ask for about 98 % of the cluster."""
    draw = random.Random(1)
    now_ms = 0
    with (folder / "jobs.csv").open("w", encoding="utf-8") as file:
        file.write("id,submit_ms,work_ms,user\n")
        for number in range(count):
            now_ms += draw.randint(0, 8)
            file.write(f"j{number},{now_ms},{draw.randint(1, 8000)},u{number % 50}\n")
    return "simulate", str(folder / "jobs.csv"), "--cluster", "128x8", "--json"


def million(folder: Path, count: int) -> dict[str, float]:
    wall_s, own_s, most_mib, _ = timed(BERTH, *million_command(folder, count))
    print(
        f"{count:,} jobs by command: {wall_s:.1f} s (asked 10), {own_s:.1f} s of processor time,"
        f" {most_mib:.0f} MiB (asked 600)"
    )
    return {"jobs": count, "seconds": wall_s, "processor_seconds": own_s, "most_mib": most_mib}


def sizes_command(folder: Path, count: int, processes: int) -> tuple[str, ...]:
    """Size a cluster for jobs of 1, 2, 4 and 8 GPUs."""
    draw = random.Random(2)
    wide = [draw.choice((1, 1, 1, 2, 4, 8)) for _ in range(count)]
    work_ms = [round(draw.lognormvariate(0, 1) * 3_600_000) for _ in range(count)]
    span_ms = sum(gpus * each for gpus, each in zip(wide, work_ms, strict=True)) / (0.8 * 320)
    submits_ms = sorted(int(draw.random() * span_ms) for _ in range(count))
    jobs = [
        berth.Job(str(at), submits_ms[at], work_ms[at], user=f"u{at % 50}", gpus=wide[at])
        for at in range(count)
    ]
    write(jobs, folder / "sized.csv")
    file = str(folder / "sized.csv")
    return "size", file, "--cluster", "40x8", "--policies", POLICIES, "-j", str(processes), "--json"


def sizes(folder: Path, count: int) -> dict[str, float]:
    wall_s, own_s, most_mib, output = timed(BERTH, *sizes_command(folder, count, 2))
    points = len(json.loads(output)["points"])
    print(
        f"{count:,} jobs, 3 policies, {points} sizes, two processes: {wall_s:.1f} s (asked 60 for 60 sizes),"
        f" {own_s:.1f} s of processor time"
    )
    return {
        "jobs": count, "points": points, "seconds": wall_s, "processor_seconds": own_s, "most_mib": most_mib,
    }  # fmt: skip


def runs(folder: Path, count: int) -> dict[str, dict[str, object]]:
    """For each policy: the sizes simulated, their processor seconds, and after what part of the jobs a size that fails
    is sure to fail (a tenth of all has waited longer than the target)."""
    file, nodes = sizes_command(folder, count, 1)[1], read_nodes("40x8")
    jobs = tuple(read_trace(file).jobs(nodes=nodes))
    keep, found = keep_of("p90-wait"), {}
    for policy in POLICIES.split(","):
        begin_s = time.process_time()
        sizes = smallest_sizes(jobs, nodes, [policy], keep)
        own_s, points = time.process_time() - begin_s, sizes.curves[0].points
        keep = replace(keep, target=sizes.target)
        fails_after = {
            point.cluster.count: round(
                float(np.searchsorted(np.cumsum(point.run.wait_s > sizes.target), count / 10)) / count, 2
            )
            for point in points
            if not point.keeps
        }
        found[policy] = {
            "nodes": [point.cluster.count for point in points],
            "processor_seconds": own_s,
            "fails_after": fails_after,
        }
        print(policy, found[policy])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1_000_000, help="for the replay")
    parser.add_argument("--sized", type=int, default=100_000, help="for the sizes")
    parser.add_argument("--parts", default="million,sizes")
    asked = parser.parse_args()
    parts = asked.parts.split(",")
    with TemporaryDirectory(prefix="berth-scale-") as name:
        folder = Path(name)
        found: dict[str, object] = {
            **({"million": million(folder, asked.jobs)} if "million" in parts else {}),
            **({"sizes": sizes(folder, asked.sized)} if "sizes" in parts else {}),
            **({"runs": runs(folder, asked.sized)} if "runs" in parts else {}),
        }
        if "shares" in parts:
            commands = {
                "million": million_command(folder, asked.jobs),
                "sizes": sizes_command(folder, asked.sized, 1),
            }
            found["shares"] = {name: shares(command) for name, command in commands.items()}
            print(found["shares"])
    save("scale", found)


if __name__ == "__main__":
    main()
