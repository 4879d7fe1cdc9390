"""Jobs whose GPU memory grows on one machine: how long an answer takes, what is refused, and what kills leave behind.

    python bench/growth.py [--parts jobs,kills] [--jobs 8 64] [--kills 50] [--seed 1] [--at-once 1]

A queue runs on a fake GPU of 80 GiB. Its jobs take memory in pieces of 256 MiB, the step in which a limit grows, so
that each call beyond what was promised asks. The uses of all jobs together are less than the card. Each is promised
half of what it uses.

Then tenants, the broker, and the processes that suspend and resume are killed at random moments, while jobs ask, grow,
idle, are suspended and come back (`tests.live.local.asking_storm`). Fifty kills share a queue, and --at-once queues run
side by side. What a run that was cut short has counted is in bench/results/growth.json; --kills less by that, and
--seed higher by the queues that ended, go on with it. 1,000 kills are asked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from berth.live.local.places import Places
from berth.live.local.protocol import Connection
from harness import count, save

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.live.local.asking_storm import storm  # noqa: E402

GROW = ROOT / "build" / "native" / "grow"
CARD_MIB, PIECE_MIB = 80 << 10, 256
HOLD_MS = 2000
PORTION = 50
"""Kills of one queue."""


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


def killed(kills: int, seed: int, at_once: int) -> Iterator[dict[str, Any]]:
    """Kill tenants, brokers and agents in portions, each with its own queue; what was counted so far, after each."""
    found: dict[str, Any] = {"queues": 0}
    portions = [min(PORTION, kills - begun) for begun in range(0, kills, PORTION)]
    with ThreadPoolExecutor(at_once) as pool:
        for one in pool.map(storm, portions, range(seed, seed + len(portions))):
            for name, value in {"queues": 1, **one.to_dict()}.items():
                before = found.get(name, type(value)())
                if isinstance(value, dict):
                    found[name] = {key: before.get(key, 0) + number for key, number in value.items()}
                else:
                    found[name] = max(before, value) if name == "over_mib" else before + value
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="jobs,kills")
    parser.add_argument("--jobs", type=count, nargs="+", default=[8, 64])
    parser.add_argument("--kills", type=count, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=count, default=1)
    words = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "tests"], check=True)
    results: dict[str, Any] = {}
    for grow in ("on", "off") if "jobs" in words.parts else ():
        with tempfile.TemporaryDirectory(prefix="berth-bench-", dir="/dev/shm") as folder:
            queue = Queue(Path(folder), grow)
            try:
                if grow == "on":
                    results["answered"] = answered(queue)
                results[f"together, --grow {grow}"] = [together(queue, jobs) for jobs in words.jobs]
            finally:
                queue.berth("down", "--cancel")
    for name, result in results.items():
        print(f"{name}: {result}")
    for results["killed"] in killed(words.kills, words.seed, words.at_once) if "kills" in words.parts else ():
        print(f"killed: {results['killed']}", flush=True)
        save("growth", results)
    save("growth", results)


if __name__ == "__main__":
    main()
