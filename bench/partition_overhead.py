"""What libberth.so adds to a driver call, beside the bare fake driver in the same run.

    python bench/partition_overhead.py [--json FILE]

With "may grow" the first figure is of a partition whose limit may not, and the second of one with a granter: what a
call costs that fits, and so need not ask.

Bare and limited runs alternate. Each run's figure is a median; of several runs the least counts, since others of a
shared machine only ever add. What is told in ns is processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import closing, nullcontext
from pathlib import Path

from berth.partition import Granter, Limit, create
from berth.partition.gpus import Gpu

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "build" / "native"

FAKE = Gpu(0, "GPU-b0b7bec5-ccd3-dae1-e8ef-f6fd040b1219", 16384)
"""The first fake GPU."""
GROWS = ", may grow"
AND_RESTS = ", bare with the rests that a share makes"
ROWS = [
    # operation, words, unit, compute limit, added at most
    ("alloc + free, one process", "alloc", "ns", None, 110.0),
    ("alloc + free, 20,000 live", "live", "ns", None, 110.0),
    ("alloc + free, may grow", "alloc" + GROWS, "ns", None, 1.0),
    ("alloc + free async", "async", "ns", None, None),
    ("alloc + free, 8 processes", "eight", "ns", None, 140.0),
    ("launch", "launch", "ns", None, 5.0),
    ("launch, compute limit", "launch", "ns", "50", 5.0),
    ("the same, bare rests as often", "launch" + AND_RESTS, "ns", "50", 5.0),
    ("MemGetInfo", "info", "ns", None, 20.0),
    ("MemGetInfo, 20,000 live", "info_live", "ns", None, 60.0),
    ("dlsym of any symbol", "dlsym", "ns", None, 5.0),
    ("start to first allocation", "start1", "ms", None, 0.6),
    ("the slowest of 64 starting together", "start64", "ms", None, 10.0),
]


def may_grow(program: Path, word: str, grows: bool) -> float:
    """What a call costs in a partition, with or without a granter that lets its limit grow."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="berth-bench-", dir=parent) as folder:
        region = create("made", FAKE, Limit(8192), root=Path(folder)).folder
        uuid = FAKE.uuid.removeprefix("GPU-")
        with closing(Granter(region, uuid)) if grows else nullcontext() as granter:
            if granter is not None:
                granter.allow(promise_mib=8192, max_mib=16384, ask_ms=5000)
            return float(measure(program, [word], None, limited=True, region=region)[0])


def measure(
    program: Path, words: list[str], core_pct: str | None, limited: bool, region: Path | None = None
) -> list[str]:
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="berth-bench-", dir=parent) as folder:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "LD_"))
        }
        environment |= {"BERTH_FAKE_CARD": f"{folder}/card", "LD_LIBRARY_PATH": str(NATIVE / "fake")}
        if limited:
            environment |= {"BERTH_REGION": str(region or f"{folder}/region")}
            environment |= {} if region else {"BERTH_GPU_MEM_MIB": "8192"}
            environment |= {"LD_PRELOAD": str(NATIVE / "libberth.so")}
            environment |= {"BERTH_GPU_CORE_PCT": core_pct} if core_pct else {}
        answer = subprocess.run(
            [program, *words], env=environment, capture_output=True, text=True, check=True
        )
    return answer.stdout.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--rounds", type=int, default=5)
    words = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "all"], check=True)
    program = NATIVE / "partition_overhead"
    source = ROOT / "bench" / "partition_overhead.c"
    link = [f"-L{NATIVE / 'fake'}", "-l:libcuda.so.1", "-ldl"]
    subprocess.run([shutil.which("cc") or "cc", "-O2", "-std=c11", source, "-o", program, *link], check=True)
    figures = []
    print(f"{'operation':<38}{'bare':>10}{'berth':>10}{'added':>10}{'asked':>10}")
    for name, word, unit, core_pct, asked in ROWS:
        bare, berth = list[float](), list[float]()
        for _ in range(words.rounds):
            if word.endswith(GROWS):
                for of, grows in ((bare, False), (berth, True)):
                    of.append(may_grow(program, word.removesuffix(GROWS), grows))
                continue
            took, *rests = measure(program, [word.removesuffix(AND_RESTS)], core_pct, limited=True)
            berth.append(float(took))
            bare_words = ["launch", *rests] if word.endswith(AND_RESTS) else [word]
            bare.append(float(measure(program, bare_words, core_pct, limited=False)[0]))
        low, high = min(bare), min(berth)
        limit = "" if asked is None else f"<{asked:g}"
        print(f"{name:<38}{low:>10.2f}{high:>10.2f}{high - low:>10.2f}{limit:>10} {unit}")
        figures.append(
            {
                "operation": name,
                "unit": unit,
                "bare": low,
                "berth": high,
                "added": high - low,
                "asked_below": asked,
            }
        )
    if words.json:
        words.json.parent.mkdir(parents=True, exist_ok=True)
        words.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
