"""A brain of the standard library alone: first fit in the order of submission, in the words of the real one.

It starts in a tenth of a second, so that tests may kill it often. It lies, hangs and dies where a job's name says so.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


class PlainBrain:
    """What is free of each GPU, and what waits."""

    def __init__(self, begin: dict[str, Any]) -> None:
        cards = [node["card_mib"] for node in begin["nodes"] for _ in range(node["gpus"])]
        self.free = [[1000, mib] for mib in cards]
        self.cpu = sum(node["cpu_milli"] or 0 for node in begin["nodes"])
        self.waiting: dict[str, Any] = {}
        self.running: dict[str, tuple[Any, list[int], list[int]]] = {}
        self.strangers: dict[int, tuple[int, int]] = {}
        self.tell(begin["notes"])

    def tell(self, notes: list[dict[str, Any]]) -> None:
        for note in notes:
            what = note["note"]
            if what in ("submit", "replace"):
                job = note["job"]
                self.release(job["id"]) if what == "submit" else None
                if job["id"] not in self.running:
                    self.waiting[job["id"]] = job
            elif what == "running":
                self.take(note["job"], list(note["slots"]), list(note["share"]))
            elif what in ("withdraw", "failed", "ended"):
                self.waiting.pop(note["id"], None)
                self.release(note["id"])
            elif what == "strangers":
                for at, milli, mib in note["slots"]:
                    self.strangers[at] = (milli, mib)

    def take(self, job: Any, slots: list[int], share: list[int]) -> None:
        self.running[job["id"]] = (job, slots, share)
        self.cpu -= job["cpu_milli"]
        for at in slots:
            self.free[at][0] -= share[0]
            self.free[at][1] -= share[1]

    def release(self, job_id: str) -> None:
        if (run := self.running.pop(job_id, None)) is not None:
            job, slots, share = run
            self.cpu += job["cpu_milli"]
            for at in slots:
                self.free[at][0] += share[0]
                self.free[at][1] += share[1]

    def left(self, at: int) -> tuple[int, int]:
        milli, mib = self.strangers.get(at, (0, 0))
        return self.free[at][0] - milli, self.free[at][1] - mib

    def decide(self) -> list[dict[str, Any]]:
        said = []
        for job in list(self.waiting.values()):
            milli, mib = job["share"]
            wanted = job["pins"] or range(len(self.free))
            slots = [at for at in wanted if self.left(at)[0] >= milli and self.left(at)[1] >= mib][
                : job["gpus"]
            ]
            if len(slots) < job["gpus"] or self.cpu < job["cpu_milli"]:
                continue
            if "hang" in job["application"]:
                time.sleep(60)
            if "crash" in job["application"]:
                os._exit(9)
            del self.waiting[job["id"]]
            self.take(job, slots, [milli, mib])
            said.append({
                "say": "placed", "id": job["id"], "version": job["version"], "slots": slots, "share": [milli, mib],
                "best_effort": False,
            })  # fmt: skip
        return said


def main() -> None:
    """Serve one broker."""
    brain: PlainBrain | None = None
    for line in sys.stdin:
        message = json.loads(line)
        said: list[dict[str, Any]] = []
        if message["do"] == "begin":
            if message["policy"].startswith("no-such"):
                said.append({"say": "error", "why": f"no policy '{message['policy']}'", "fatal": True})
            else:
                brain = PlainBrain(message)
                said.append({"say": "ready", "policy": message["policy"], "seconds": 0})
        elif message["do"] in ("why", "reasons"):
            said.append({"say": "why", "serial": message["serial"], "found": False})
        elif brain is not None:
            brain.tell(message["notes"])
            said += brain.decide()
            said.append({"say": "decided", "serial": message["serial"], "seconds": 0.0, "wake_ms": None})
        sys.stdout.write("".join(json.dumps(each) + "\n" for each in said))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
