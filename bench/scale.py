"""How long the largest questions take by command, and how much memory: a million jobs, and sizes for 100,000.

    python bench/scale.py [--jobs 1000000] [--sized 100000] [--parts million,sizes]

`million` writes the jobs as CSV and replays them on 1,024 GPUs with `berth simulate`. `sizes` lets `berth size` scan
three policies on two processes, for jobs that ask for 80 % of 320 GPUs. Writes bench/results/scale.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import berth
from berth.traces import write
from harness import save

BERTH = str(Path(sys.executable).with_name("berth"))
POLICIES = "easy+fifo+best-fit,easy+sjf-expected+best-fit,fifo+first-fit"


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


def million(folder: Path, count: int) -> dict[str, float]:
    """Jobs of one GPU that ask for about 98 % of the cluster."""
    draw = random.Random(1)
    now_ms = 0
    with (folder / "jobs.csv").open("w", encoding="utf-8") as file:
        file.write("id,submit_ms,work_ms,user\n")
        for number in range(count):
            now_ms += draw.randint(0, 8)
            file.write(f"j{number},{now_ms},{draw.randint(1, 8000)},u{number % 50}\n")
    wall_s, own_s, most_mib, _ = timed(
        BERTH, "simulate", str(folder / "jobs.csv"), "--cluster", "128x8", "--json"
    )
    print(
        f"{count:,} jobs by command: {wall_s:.1f} s (asked 10), {own_s:.1f} s of processor time,"
        f" {most_mib:.0f} MiB (asked 600)"
    )
    return {"jobs": count, "seconds": wall_s, "processor_seconds": own_s, "most_mib": most_mib}


def sizes(folder: Path, count: int) -> dict[str, float]:
    """Jobs of 1, 2, 4 and 8 GPUs."""
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
    command = (
        "size",
        str(folder / "sized.csv"),
        "--cluster",
        "40x8",
        "--policies",
        POLICIES,
        "-j",
        "2",
        "--json",
    )
    wall_s, _, most_mib, output = timed(BERTH, *command)
    points = len(json.loads(output)["points"])
    print(
        f"{count:,} jobs, 3 policies, {points} sizes, two processes: {wall_s:.1f} s (asked 60 for 60 sizes)"
    )
    return {"jobs": count, "points": points, "seconds": wall_s, "most_mib": most_mib}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1_000_000, help="for the replay")
    parser.add_argument("--sized", type=int, default=100_000, help="for the sizes")
    parser.add_argument("--parts", default="million,sizes")
    asked = parser.parse_args()
    parts = asked.parts.split(",")
    with TemporaryDirectory(prefix="berth-scale-") as name:
        folder = Path(name)
        found = {
            **({"million": million(folder, asked.jobs)} if "million" in parts else {}),
            **({"sizes": sizes(folder, asked.sized)} if "sizes" in parts else {}),
        }
    save("scale", found)


if __name__ == "__main__":
    main()
