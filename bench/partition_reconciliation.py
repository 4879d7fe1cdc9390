"""How soon the queue finds a process that holds GPU memory which no partition counted.

    python bench/partition_reconciliation.py [--runs 20] [--json FILE]

A job unloads libberth and takes 4,000 MiB under a limit of 1 GiB on a fake GPU; the time runs from its word that it
holds them to the queue's report.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.live.local.world import ROOT, World

GPU_JOB = ROOT / "tests" / "live" / "local" / "gpu_job.py"


def delay_s(world: World, run: int) -> float:
    """Of one job."""
    gone = world.folder / f"gone-{run}"
    job = world.submit(f"env -u LD_PRELOAD {sys.executable} -u {GPU_JOB} 4000 {gone}", mem="1G", gpus="0.5")
    world.until(lambda: world.state_of(job) == "running" and "holds" in world.output(job), "it holds them")
    began_s = time.monotonic()
    world.until(lambda: bool((world.status() or {}).get("trouble")), "it is reported")
    took_s = time.monotonic() - began_s
    gone.touch()
    world.wait(job)
    world.until(lambda: not (world.status() or {}).get("trouble"), "it is gone")
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    world, draw = World(), random.Random(1)
    try:
        world.up()
        found = []
        for run in range(words.runs):
            time.sleep(draw.random())  # anywhere between two looks
            found.append(delay_s(world, run))
    finally:
        world.close()
    print(f"{words.runs} runs: median {statistics.median(found):.2f} s, at most {max(found):.2f} s")
    if words.json:
        words.json.write_text(json.dumps({"delays_s": found}))


if __name__ == "__main__":
    main()
