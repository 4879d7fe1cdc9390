"""Jobs whose GPU memory grows on one machine: how long an answer takes, what is refused, and what kills leave behind.

    python bench/growth.py [--jobs 8 64] [--cycles 20]

A queue runs on a fake GPU of 80 GiB. Its jobs take memory in pieces of 256 MiB, the step in which a limit grows, so
that each call beyond what was promised asks. The uses of all jobs together are less than the card. Each is promised
half of what it uses. A cycle kills a job while it grows, every tenth the broker too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from berth.live.local.places import Places
from berth.live.local.protocol import Connection
from harness import count, save

ROOT = Path(__file__).parents[1]
GROW = ROOT / "build" / "native" / "grow"
CARD_MIB, PIECE_MIB = 80 << 10, 256
HOLD_MS = 2000


class Queue:
    """A queue of its own in a folder that goes away."""

    def __init__(self, folder: Path, grow: str) -> None:
        self.folder, self.grow = folder, grow
        self.environment = os.environ | {"BERTH_STATE": str(folder), "BERTH_ROOT": str(folder / "root")}
        self.berth("up", "--fake-gpus", "1xA100-80G", "--cpus", "256", "--grow", grow)

    def berth(self, *words: str) -> str:
        command = [str(Path(sys.executable).with_name("berth")), *words]
        return subprocess.run(
            command, env=self.environment, check=True, capture_output=True, text=True
        ).stdout

    def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        connection = Connection(Places(str(self.folder)).socket)
        try:
            return connection.ask({"do": what, **fields})
        finally:
            connection.close()

    def submit(self, number: int, pieces: int, hold_ms: int, promise_mib: int) -> list[str]:
        job = {
            "argv": [str(GROW), str(pieces), str(PIECE_MIB), str(hold_ms)],
            "flags": {"mem": f"{promise_mib}M", "core_pct": "1", "retries": "0"},
        }
        return list(self.ask("submit", cwd=str(self.folder), env={}, jobs=[job] * number)["ids"])

    def outputs(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        self.ask("wait", ids=list(ids), timeout=300)
        return [json.loads((self.folder / "output" / f"{job}.1.out").read_text()) for job in ids]

    def limits_mib(self) -> int:
        """What the limits of the jobs on the card add up to."""
        return sum(each["mem_mib"] for each in self.ask("status")["gpus"][0]["tenants"])


def quantile(values: Sequence[float], fraction: float) -> float:
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))]


def answered(queue: Queue) -> dict[str, float]:
    """One job alone: how long each call took that asked, ms."""
    pieces, promised = 300, 4
    (found,) = queue.outputs(queue.submit(1, pieces, 0, promised * PIECE_MIB))
    waits_ms = [ns / 1e6 for ns in found["ns"][promised:]]
    return {
        "wishes": len(waits_ms), "refused": found["refused"],
        "p50_ms": quantile(waits_ms, 0.5), "p99_ms": quantile(waits_ms, 0.99), "most_ms": max(waits_ms),
    }  # fmt: skip


def together(queue: Queue, jobs: int) -> dict[str, int]:
    """Run this many jobs at once; together they use less than the card."""
    pieces = CARD_MIB * 95 // 100 // jobs // PIECE_MIB
    ids = queue.submit(jobs, pieces, HOLD_MS, max(1, pieces // 2) * PIECE_MIB)
    refused = sum(each["refused"] for each in queue.outputs(ids))
    return {"jobs": jobs, "calls": jobs * pieces, "refused": refused}


def killed(queue: Queue, cycles: int) -> dict[str, int]:
    """Kill jobs while they grow, and the broker now and then; what is over the card or left at the end, MiB."""
    draw, over_mib = random.Random(1), 0
    for cycle in range(cycles):
        ids = queue.submit(4, 70, 60_000, PIECE_MIB)
        time.sleep(draw.random() * 0.3)
        over_mib = max(over_mib, queue.limits_mib() - CARD_MIB)
        if cycle % 10 == 9:
            os.kill(int(queue.ask("status")["pid"]), 9)
            queue.berth("up")
        queue.ask("cancel", ids=ids)
        queue.ask("wait", ids=ids, timeout=300)
        over_mib = max(over_mib, queue.limits_mib() - CARD_MIB)
    end_s = time.monotonic() + 10  # a status tells what the last look saw
    while (status := queue.ask("status")["gpus"][0])["used_mib"] and time.monotonic() < end_s:
        time.sleep(0.1)
    left = len(list((queue.folder / "root").glob("job-*")))
    return {
        "cycles": cycles,
        "over_mib": over_mib,
        "held_mib": status["used_mib"] or 0,
        "partitions_left": left,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=count, nargs="+", default=[8, 64])
    parser.add_argument("--cycles", type=count, default=20)
    words = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "tests"], check=True)
    results: dict[str, Any] = {}
    for grow in ("on", "off"):
        with tempfile.TemporaryDirectory(prefix="berth-bench-", dir="/dev/shm") as folder:
            queue = Queue(Path(folder), grow)
            try:
                if grow == "on":
                    results["answered"] = answered(queue)
                results[f"together, --grow {grow}"] = [together(queue, jobs) for jobs in words.jobs]
                if grow == "on":
                    results["killed"] = killed(queue, words.cycles)
            finally:
                queue.berth("down", "--cancel")
    for name, result in results.items():
        print(f"{name}: {result}")
    save("growth", results)


if __name__ == "__main__":
    main()
