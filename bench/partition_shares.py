"""Whether a compute limit is kept: GPU time used where some share was set, by the fake driver's own clock.

    python bench/partition_shares.py [--seconds 6] [--json FILE]

Kernels of 1, 132, 2,000 and 20,000 blocks take 0.1 ms for every 132 blocks; shares are of one
process and of three that share a partition.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "build" / "native"
POINTS = 3.0
"""How far from the share that was set, in per cent of the GPU's time."""


def build() -> Path:
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "all"], check=True)
    program = NATIVE / "partition_shares"
    link = [f"-L{NATIVE / 'fake'}", "-l:libcuda.so.1", "-ldl"]
    subprocess.run(
        [
            shutil.which("cc") or "cc",
            "-O2",
            "-std=c11",
            ROOT / "bench" / "partition_shares.c",
            "-o",
            program,
            *link,
        ],
        check=True,
    )
    return program


def shares(program: Path, core_pct: int, processes: Sequence[Sequence[str]]) -> list[dict[str, float]]:
    """What each of these processes of one partition used, all running at once."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="berth-bench-", dir=parent) as folder:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "LD_"))
        }
        environment |= {"BERTH_FAKE_CARD": f"{folder}/card", "LD_LIBRARY_PATH": str(NATIVE / "fake")}
        environment |= {
            "BERTH_REGION": f"{folder}/region",
            "BERTH_GPU_MEM_MIB": "8192",
            "BERTH_GPU_CORE_PCT": str(core_pct),
        }
        environment |= {"LD_PRELOAD": str(NATIVE / "libberth.so")}
        running = [
            subprocess.Popen([program, *words], env=environment, stdout=subprocess.PIPE, text=True)
            for words in processes
        ]
        return [dict(json.loads(process.communicate()[0])) for process in running]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    program = build()
    figures = []
    print(f"{'share set':>10}{'blocks':>8}{'processes':>11}{'used':>9}{'apart':>8}{'longest launch':>16}")
    for core_pct in (10, 20, 50, 80):
        for blocks in (1, 132, 2000, 20000):
            for count in (1, 3):
                seen = shares(program, core_pct, [("wave_100", str(blocks), str(words.seconds))] * count)
                used = sum(one["share_pct"] for one in seen)
                longest = max(one["longest_launch_ms"] for one in seen)
                kept = "" if abs(used - core_pct) <= POINTS else "  <-- not kept"
                row = f"{core_pct:>8} %{blocks:>8}{count:>11}{used:>7.1f} %{used - core_pct:>8.1f}"
                print(f"{row}{longest:>13.1f} ms{kept}", flush=True)
                figures.append(
                    {
                        "core_pct": core_pct,
                        "blocks": blocks,
                        "processes": count,
                        "used_pct": used,
                        "longest_launch_ms": longest,
                    }
                )
    if words.json:
        words.json.parent.mkdir(parents=True, exist_ok=True)
        words.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
