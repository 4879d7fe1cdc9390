"""64 processes allocate and free at random for a minute while one is killed every 50 ms; the fake driver judges.

    python bench/partition_storm.py [--processes 64] [--seconds 60] [--kill-ms 50] [--mem-mib 1024] [--json FILE]

The driver keeps the truth on a ledger of its own, under one lock, and adds up what the living hold at every
allocation. A wait is the time that a call took, less that in line for a CPU and that at the judge's own lock.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from berth.partition.regions import read, regions_in

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "build" / "native"
LONGEST_WAIT_MS = 100.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--kill-ms", type=int, default=50)
    parser.add_argument("--mem-mib", type=int, default=1024)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    words = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "tests"], check=True)
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="berth-bench-", dir=parent) as folder:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "LD_"))
        }
        environment |= {
            "LD_LIBRARY_PATH": str(NATIVE / "fake"),
            "LD_PRELOAD": str(NATIVE / "libberth.so"),
            "BERTH_FAKE_CARD": f"{folder}/card",
            "BERTH_FAKE_WATCH": f"1:{words.mem_mib << 20}",
            "BERTH_REGION": f"{folder}/region",
            "BERTH_GPU_MEM_MIB": str(words.mem_mib),
        }
        asked = [str(words.processes), str(words.seconds), str(words.kill_ms)]
        answer = subprocess.run(
            [NATIVE / "storm", *asked], env=environment, capture_output=True, text=True, check=False
        )
        seen = dict(json.loads(answer.stdout))
        region = Path(folder) / "region"
        (now,) = (read(region, uuid, "") for uuid in regions_in(region))
        seen |= {"slots_leaked": len(now.processes), "accounted_bytes": now.used_bytes}
    rows = [
        ("operations", seen["operations"], None),
        ("refused", seen["refused"], None),
        ("killed", seen["killed"], None),
        ("instants above the limit", seen["violations"], 0),
        ("bytes accounted afterwards", seen["accounted_bytes"] + seen["left_bytes"], 0),
        ("bytes that the driver still holds", seen["driver_bytes"], 0),
        ("slots leaked", seen["slots_leaked"], 0),
        ("processes that ended by themselves", seen["failed"], 0),
        ("longest wait, ms", seen["longest_wait_ms"], LONGEST_WAIT_MS),
    ]
    for name, value, asked_most in rows:
        asked_text = "" if asked_most is None else f"asked: at most {asked_most:g}"
        print(f"{name:<38}{value:>14,}   {asked_text}")
    if words.json:
        words.json.parent.mkdir(parents=True, exist_ok=True)
        words.json.write_text(json.dumps(seen, indent=2) + "\n")
    if any(most is not None and value > most for _, value, most in rows):
        sys.exit("missed")


if __name__ == "__main__":
    main()
