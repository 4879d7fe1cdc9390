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
        self.suspended: dict[str, Any] = {}
        self.strangers: dict[int, tuple[int, int]] = {}
        self.said: list[dict[str, Any]] = []
        self.hear(begin["events"])

    def hear(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            what = event["event"]
            if what == "waits":
                job = event["job"]
                self.release(job["id"])
                self.waiting[job["id"]] = job
            elif what == "runs":
                job_id = event["job"]["id"]
                self.waiting.pop(job_id, None)
                self.suspended.pop(job_id, None)
                self.release(job_id)  # it may have grown
                if event["suspended_since_ms"] is not None:
                    self.suspended[job_id] = event
                else:
                    self.take(event["job"], list(event["slots"]), list(event["share"]))
            elif what == "withdrawn":
                self.waiting.pop(event["id"], None)
                self.release(event["id"])
            elif what in ("ended", "start-failed"):
                self.settle(event)
            elif what == "others":
                for at, milli, mib in event["slots"]:
                    self.strangers[at] = (milli, mib)

    def settle(self, event: dict[str, Any]) -> None:
        """What follows when an attempt is over; more of a rule than the real one's would be a rule of its own."""
        if (left := self.suspended.pop(event["id"], None)) is not None:
            self.running[event["id"]] = (left["job"] | {"cpu_milli": 0}, [], [0, 0])
        job = self.running[event["id"]][0] if event["id"] in self.running else self.waiting.get(event["id"])
        self.release(event["id"])
        if job is None:
            return
        again = {
            "say": "again", "job_id": job["id"], "why": event["why"], "attempt": job["attempt"] + 1,
            "memory": job["memory"], "start_failures": 0, "not_before_ms": 0, "keeps_place": True,
        }  # fmt: skip
        give_up = {"say": "give-up", "job_id": job["id"], "why": event["why"]}
        if event["event"] == "start-failed":
            failures = job["start_failures"] + bool(event["why"] and not event["no_room"])
            again |= {"attempt": job["attempt"], "start_failures": failures}
            self.said.append(again if failures < 5 else give_up)
            return
        how, (times, _) = event["how"], job["memory"]
        needs = event["needed_mib"] or event["peak_mib"] or 0
        if how == "out-of-memory":
            if times < job["retries"] and needs <= max((mib for _, mib in self.free), default=0):
                again["memory"] = (times + 1, needs + needs // 8)
                self.said.append(again)
            else:
                self.said.append(give_up)
        elif how == "preempted":
            self.said.append({**again, "keeps_place": False})
        elif how in ("exit-unknown", "node-fail"):
            self.said.append(again if job["rerun"] else give_up)

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
        said, self.said = self.said, []
        for job_id, left in list(self.suspended.items()):
            milli, mib = left["share"]
            if left["resumes"] and all(
                self.left(at)[0] >= milli and self.left(at)[1] >= mib for at in left["slots"]
            ):
                del self.suspended[job_id]
                self.take(left["job"], list(left["slots"]), list(left["share"]))
                said.append({"say": "resume", "id": job_id})
        for job in list(self.waiting.values()):
            milli, mib = job["share"]
            mib = max(mib, job["memory"][1]) if mib else mib
            wanted = job["only_gpus"] or range(len(self.free))
            slots = [at for at in wanted if self.left(at)[0] >= milli and self.left(at)[1] >= mib][
                : job["gpus"]
            ]
            if len(slots) < job["gpus"] or self.cpu < job["cpu_milli"]:
                continue
            if "hang" in job["application"]:
                time.sleep(60)
            if "crash" in job["application"]:
                time.sleep(0.3)  # it is seen to be there before it is gone
                os._exit(9)
            del self.waiting[job["id"]]
            self.take(job, slots, [milli, mib])
            said.append({
                "say": "start", "id": job["id"], "version": job["version"], "slots": slots, "share": [milli, mib],
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
                while message["policy"].endswith("-yet") and not os.path.exists("seen"):
                    time.sleep(0.01)
                said.append({"say": "error", "why": f"no policy '{message['policy']}'", "fatal": True})
            else:
                brain = PlainBrain(message)
                said.append({"say": "ready", "policy": message["policy"], "seconds": 0})
        elif message["do"] in ("why", "reasons"):
            said.append({"say": "why", "serial": message["serial"], "found": False})
        elif brain is not None:
            brain.hear(message["events"])
            said += brain.decide()
            said.append({"say": "decided", "serial": message["serial"], "seconds": 0.0, "wake_ms": None})
        sys.stdout.write("".join(json.dumps(each) + "\n" for each in said))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
