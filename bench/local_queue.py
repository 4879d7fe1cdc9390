"""The local queue: submissions, clients, listings, starts, memory, decisions, and a storm of kills.

    python bench/local_queue.py [--jobs 10000] [--kills 1000] [--storm-jobs 2000] [--only submit,decisions,…]

Everything is real: broker, brain, shims and jobs are processes, on fake GPUs. In the storm the brain is a small one of
the standard library (tests/live/local/plain_brain.py), so that a restart costs a tenth of a second; the jobs
themselves write down that they began and ended.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import save

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.live.local.world import BERTH, World, storm  # noqa: E402

from berth.history.store.folder import open_history  # noqa: E402
from berth.live.local.brain import Brain  # noqa: E402
from berth.live.local.link import BRAIN  # noqa: E402

GATE = "while [ ! -e go ]; do sleep 0.05; done"


def lines(count: int) -> str:
    """Jobs that differ in size, length and application, one a line."""
    return "\n".join(
        f"--gpus 0.{1 + i % 9} --mem {1 + i % 40}G --name app{i % 50} --time {1 + i % 600} true"
        for i in range(count)
    )


def client(world: World, *words: str, stdin: str = "") -> tuple[float, float, str]:
    """Wall and processor time of one client process, s, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(
        [BERTH, *words],
        env=world.environment,
        cwd=world.folder,
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
    )
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    words = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    return round(int(words[0]) / 1024, 1)


def submissions(jobs: int) -> dict[str, Any]:
    """A queue that is filled and listed, and what it costs in memory."""
    world = World(gpus="8xA100-80G", brain=BRAIN, options=["--policy", "fifo+best-fit"])
    try:
        world.up()
        status = world.status()
        assert status is not None
        empty = rss_mib(status["pid"]), rss_mib(status["brain_pid"])
        world.submit_many([(GATE, {})] * 8)
        world.until(lambda: (world.status() or {})["jobs"]["running"] == 8, "the GPUs are taken")
        wall_s, _, _ = client(world, "submit", "-", stdin=lines(jobs))
        listed = [client(world, "queue")[0] for _ in range(7)]
        status = world.status()
        assert status is not None
        assert status["jobs"]["waiting"] == jobs
        one = [client(world, "status") for _ in range(15)]
        plain = []
        for _ in range(15):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            plain.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return {
            "submit_s": round(wall_s, 2), "list_s": round(statistics.median(listed), 3),
            "client_wall_ms": round(1000 * statistics.median(each[0] for each in one), 1),
            "client_cpu_ms": round(1000 * statistics.median(each[1] for each in one), 1),
            "python_alone_cpu_ms": round(1000 * statistics.median(plain), 1),
            "empty_mib": {"broker": empty[0], "brain": empty[1]},
            "full_mib": {"broker": rss_mib(status["pid"]), "brain": rss_mib(status["brain_pid"])},
        }  # fmt: skip
    finally:
        world.close()


def starts(count: int) -> dict[str, Any]:
    """From a submission to the beginning of the job, with a GPU free."""
    world = World(gpus="8xA100-80G", brain=BRAIN)
    try:
        world.up()
        took = []
        for _ in range(count):
            job = world.submit("true", mem="1G")
            world.wait(job)
            told = world.job(job)
            took.append(told["attempts"][0]["start_ms"] - told["submit_ms"])
        took.sort()
        return {"median_ms": statistics.median(took), "p99_ms": took[int(0.99 * len(took))], "starts": count}
    finally:
        world.close()


def decisions(policy: str, jobs: int, ends: int = 200) -> dict[str, Any]:
    """How long the brain takes to decide with `waiting` jobs queued, each time that one of the running jobs has ended.

    In this process: wall times of a shared machine have whole time slices of others in them, processor times do not.
    """
    node = {
        "name": "here",
        "gpus": 8,
        "model": "A100-80G",
        "card_mib": 81_920,
        "cpu_milli": 640_000,
        "mem_mib": 0,
    }
    said: list[dict[str, Any]] = []
    brain = Brain(
        {"nodes": [{**node, "mem_mib": None}], "policy": policy, "knowledge": "history", "decide_s": 60.0},
        said.append,
    )
    brain.warm_up()
    rng, now_ms = random.Random(1), 1
    waiting = {
        str(i): {
            "id": str(i), "submit_ms": 0, "queued_ms": 0, "user": f"user{i % 5}", "application": f"app{i % 50}",
            "gpus": 1, "share": (100 * (1 + i % 9), 1024 * (1 + i % 40)), "cpu_milli": 1000, "mem_mib": 0,
            "priority": 0, "time_limit_ms": 60_000 * (1 + i % 600), "estimate_ms": None, "retries": 3,
            "rerun": False, "attempt": 1, "only_gpus": (), "version": 1, "order": (0, i), "memory": (0, 0),
            "start_failures": 0, "not_before_ms": 0, "why": "", "alike": [i % 50],
        }
        for i in range(jobs)
    }  # fmt: skip
    events: list[dict[str, Any]] = [{"event": "waits", "job": job} for job in waiting.values()]
    running: dict[str, dict[str, Any]] = {}
    wall, processor = [], []
    for turn in range(ends + 1):
        now_ms += 1000
        said.clear()
        wall_s, processor_s = time.perf_counter(), time.process_time()
        brain.answer({"do": "decide", "now_ms": now_ms, "serial": turn, "events": events})
        if turn:
            wall.append(1000 * (time.perf_counter() - wall_s))
            processor.append(1000 * (time.process_time() - processor_s))
        running |= {each["id"]: each for each in said if each["say"] == "start"}
        start = running.pop(rng.choice(list(running)))
        events = [
            {
                "event": "runs", "job": waiting[start["id"]], "slots": start["slots"], "share": start["share"],
                "best_effort": start["best_effort"], "start_ms": now_ms, "started": True,
            },
            {
                "event": "ended", "id": start["id"], "attempt": 1, "how": "completed", "end_ms": now_ms, "why": "",
                "needed_mib": 0, "peak_mib": 500, "cpu_ms": None, "mem_peak_mib": None, "exit_code": 0,
            },
        ]  # fmt: skip
    return {
        name: [round(statistics.median(took), 2), round(statistics.quantiles(took, n=20)[18], 2)]
        for name, took in (("wall_p50_p95_ms", wall), ("processor_p50_p95_ms", processor))
    }


def replay(policy: str, jobs: int) -> dict[str, Any]:
    """How far the replay of a policy that ran is from what it did, with jobs of 10 s and more."""
    options = ["--policy", policy, "--knowledge", "user", "--record-s", "1"]
    world = World(gpus="4xA100-80G", brain=BRAIN, options=options)
    rng = random.Random(3)
    try:
        world.up()
        told = []
        for _ in range(jobs):
            seconds = rng.randint(100, 150) / 10
            gpus = rng.choice((0.25, 0.5, 0.5, 1))
            told.append(
                (f"sleep {seconds}", {"gpus": gpus, "time": f"{2 * seconds}s", "name": f"for-{seconds}"})
            )
        ids = world.submit_many(told)
        world.wait(*ids, timeout=900)
        history = Path(world.places.history)
        world.until(
            lambda: len(open_history(history)) >= jobs if history.exists() else False, "it is recorded", 120
        )
        words = [
            "compare",
            "--from-history",
            "--history",
            str(history),
            "--policies",
            policy,
            "--knowledge",
            "user",
        ]
        others = "fifo,fgd,sjf-expected,easy+priority+best-fit"
        own = json.loads(client(world, *words, "--json")[2])["real"]
        every = json.loads(client(world, *words[:-3], others, "--knowledge", "user", "--json")[2])["real"][
            "apart"
        ]
        return {
            "makespan_s": own["makespan_s"], "wait_mean_s": round(own["wait_mean_s"], 2),
            "own": {key: round(own["apart"][0][key], 2) for key in ("makespan_pct", "wait_pct")},
            "others": {each["policy"]: [round(each[key], 1) for key in ("makespan_pct", "wait_pct")] for each in every},
        }  # fmt: skip
    finally:
        world.close()


def kills(jobs: int, count: int) -> dict[str, Any]:
    """kill -9 of broker, brain and shims at random moments."""
    world = World()
    try:
        world.up()
        began = time.perf_counter()
        told = storm(world, jobs, count, seed=7)
        return {**told, "seconds": round(time.perf_counter() - began), "jobs": jobs}
    finally:
        world.close()


def main() -> None:
    """Run what is asked for, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--storm-jobs", type=int, default=2000)
    parser.add_argument("--only", default="submit,starts,decisions,replay,storm")
    words = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "all"], check=True)
    parts: dict[str, Callable[[], Any]] = {
        "submit": lambda: submissions(words.jobs),
        "starts": lambda: starts(300),
        "decisions": lambda: {
            policy: decisions(policy, words.jobs)
            for policy in ("fifo+best-fit", "fgd", "easy+priority+best-fit", "learned")
        },
        "replay": lambda: {policy: replay(policy, 48) for policy in ("fifo", "fgd", "sjf-expected")},
        "storm": lambda: kills(words.storm_jobs, words.kills),
    }
    results = {}
    for name in words.only.split(","):
        results[name] = parts[name]()
        print(name, results[name], flush=True)
    save("local_queue", results)


if __name__ == "__main__":
    main()
