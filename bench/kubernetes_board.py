"""What the Kubernetes scheduler's decisions cost without an API server: pods placed a second, and where the time goes.

    python bench/kubernetes_board.py [--nodes 5000] [--pods 50000] [--policy learned] [--limit-s 120] [--profile]

The board is told nodes of eight GPUs and pods of mixed shares, decides until nothing more can start, and each bind is
said to have succeeded at once. Then it looks again, at the times at which it asks to be woken, until it asks for none
within a second: what those looks cost that place nothing. `--profile` prints where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from harness import save

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from berth.live.kubernetes import names  # noqa: E402
from berth.live.kubernetes import objects as api  # noqa: E402
from berth.live.kubernetes.board import Board  # noqa: E402
from berth.live.kubernetes.entries import Settings  # noqa: E402
from berth.live.kubernetes.steps import Bind  # noqa: E402
from berth.live.kubernetes.warming import warm_up  # noqa: E402
from berth.profiles import thesis_profiles  # noqa: E402
from kubernetes_binds import SHARES  # noqa: E402


def node(at: int) -> api.Node:
    """A node of eight GPUs."""
    labels = {
        names.LABEL_GPU_COUNT: "8",
        names.LABEL_GPU_MODEL: "A100-80",
        names.LABEL_GPU_MEMORY_MIB: "81920",
    }
    there = {"cpu": "128", "memory": "1Ti", "pods": "256", names.RESOURCE: str(16 * 8)}
    body = {"metadata": {"name": f"n{at:04}", "labels": labels}, "status": {"allocatable": there}}
    return msgspec.json.decode(msgspec.json.encode(body), type=api.Node)


def pod(at: int, applications: list[str]) -> api.Pod:
    """A pod of a share of one GPU."""
    milli, mem = SHARES[at % len(SHARES)]
    said = {names.ASKED_MILLI: str(milli)} | ({names.ASKED_MEM_MIB: str(mem)} if mem else {})
    if applications:
        said[names.APPLICATION] = applications[at % len(applications)]
    meta = {"name": f"p{at:05}", "namespace": "default", "uid": f"u{at:05}", "annotations": said,
            "resourceVersion": str(at), "creationTimestamp": "2026-11-22T12:00:00Z"}  # fmt: skip
    takes = {"cpu": "1", "memory": "1Gi", names.RESOURCE: "1"}
    spec = {"schedulerName": "berth", "containers": [{"resources": {"requests": takes}}]}
    body = {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}
    return msgspec.json.decode(msgspec.json.encode(body), type=api.Pod)


def decide_all(board: Board, limit_s: float) -> dict[str, Any]:
    """Decide until nothing more starts and nothing is to be looked at again soon, or the time is over."""
    began, began_cpu = time.perf_counter(), time.process_time()
    bound, first_s, last_s, last_cpu_s, now_ms = 0, 0.0, 0.0, 0.0, 1
    looks: list[tuple[float, float]] = []  # time and processor time of those that place nothing
    over = False
    while not over:
        before, look_s, look_cpu_s = bound, time.perf_counter(), time.process_time()
        for step in board.decide(now_ms):
            if isinstance(step, Bind):
                bound += 1
                last_s, last_cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
                first_s = first_s or last_s
            if over := time.perf_counter() - began > limit_s:
                break
        for uid in [uid for uid, entry in board.entries.items() if entry.state == "placed"]:
            board.bound(uid, now_ms)
        next_ms = now_ms + 1
        if bound == before:
            looks.append((time.perf_counter() - look_s, time.process_time() - look_cpu_s))
            wake_ms = board.next_wake_ms(now_ms)
            if wake_ms is None or wake_ms > now_ms + 1000:
                break
            next_ms = max(next_ms, wake_ms)
        over = over or time.perf_counter() - began > limit_s
        now_ms = next_ms
    return {
        "placed": bound, "first_s": round(first_s, 2), "last_s": round(last_s, 2), "last_cpu_s": round(last_cpu_s, 2),
        "placed_per_s": round(bound / max(last_s - first_s, 1e-3), 1), "empty_looks": len(looks),
        "longest_empty_look_s": round(max((s for s, _ in looks), default=0.0), 2),
        "longest_empty_look_cpu_s": round(max((cpu for _, cpu in looks), default=0.0), 2),
        "empty_looks_cpu_s": round(sum(cpu for _, cpu in looks), 2), "over": over,
    }  # fmt: skip


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--policy", default="learned")
    parser.add_argument("--limit-s", type=float, default=120.0)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    learned = "learned" in asked.policy
    settings = Settings(
        policy=asked.policy, knowledge="kubernetes_binds:with_profiles" if learned else "user"
    )
    began = time.perf_counter()
    warm_up(settings)
    warm_s = time.perf_counter() - began
    applications = sorted(thesis_profiles()) if learned else []
    board = Board(settings)
    for at in range(asked.nodes):
        board.nodes.changed(node(at))
    board.sync_nodes(0)
    for at in range(asked.pods):
        board.pod_changed(pod(at, applications), 0)
    board.begin(0)
    told_s = time.perf_counter() - began - warm_s
    profile = cProfile.Profile()
    if asked.profile:
        profile.enable()
    found = decide_all(board, asked.limit_s)
    if asked.profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    found |= {"warm_s": round(warm_s, 2), "told_s": round(told_s, 2), "peak_mib": peak_mib}
    print(asked.policy, found, flush=True)
    save("kubernetes_board", {"nodes": asked.nodes, "pods": asked.pods, asked.policy: found})


if __name__ == "__main__":
    main()
