"""How fast a node answers the kubelet: Allocate, PreStartContainer, claims prepared alone and by the hundred.

    python bench/kubernetes_node.py [--claims 500] [--pods 100]

The agent's two services run in a process of their own, over fake GPUs, with regions, CDI files and state on disk as in
use; this process is the kubelet (tests/live/kubernetes/kubelet.py). What the API server would answer is at hand there,
so that times are the node's own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from harness import save

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.live.kubernetes.kubelet import Kubelet  # noqa: E402
from tests.live.kubernetes.node.fake_api import FakeApi  # noqa: E402
from tests.live.kubernetes.node.node_world import NodeWorld  # noqa: E402

from berth.live.kubernetes.names import DRIVER, RESOURCE  # noqa: E402

GPUS = 8


def fill(api: FakeApi, claims: int, pods: int) -> tuple[list[Any], list[Any]]:
    """The claims and pods of both sides, of different shares; claims have the first four GPUs, pods the others."""
    half = GPUS // 2
    made = [api.add_claim(f"claim{n}", (n % half, 5, 100 + n % 37)) for n in range(claims)]
    return made, [api.add_pod(f"pod{n}", (half + n % half, 5, 100 + n)) for n in range(pods)]


async def serve(folder: Path, claims: int, pods: int) -> None:
    """Be the node's agent until standard input ends."""
    world = NodeWorld(folder, f"{GPUS}xA100-80G")
    fill(world.api, claims, pods)
    tasks = [asyncio.create_task(part.run()) for part in (world.plugin(), world.dra())]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def timed_ms(call: Awaitable[object]) -> float:
    """How long one call took."""
    began = time.perf_counter()
    await call
    return (time.perf_counter() - began) * 1000


def spent_ms(pid: int) -> float:
    """Processor time of a process: steadier than the clock on a machine that others use."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) * 1000 / os.sysconf("SC_CLK_TCK")


async def measure(folder: Path, claims: int, pods: int, agent: int) -> dict[str, float]:
    """All figures, in ms; `agent` is the pid of the other side."""
    kubelet = Kubelet(folder / "kubelet")
    asked, waiting = fill(FakeApi(), claims, pods)
    await kubelet.start()
    await kubelet.until_registered(RESOURCE)
    while DRIVER not in kubelet.drivers:
        await kubelet.find_drivers()
    found: dict[str, float] = {}
    times = [await timed_ms(kubelet.admit(pod, RESOURCE)) for pod in waiting]
    found["Allocate, one container, median"] = statistics.median(times)
    times = [await timed_ms(kubelet.pre_start(pod, "main", RESOURCE)) for pod in waiting]
    found["PreStartContainer, new limits, median"] = statistics.median(times)
    found[f"PreStartContainer, the slowest of {pods}"] = max(times)
    times = [await timed_ms(kubelet.pre_start(pod, "main", RESOURCE)) for pod in waiting]
    found["PreStartContainer, again, median"] = statistics.median(times)
    refs = [(claim.namespace, claim.name, claim.uid) for claim in asked]

    async def prepare(which: list[tuple[str, str, str]]) -> None:
        answers = await kubelet.prepare(DRIVER, which)
        assert all(not each.error for each in answers.values()), next(iter(answers.values())).error

    alone = [await timed_ms(prepare([ref])) for ref in refs[:100]]
    found["NodePrepareResources, one claim, median"] = statistics.median(alone)
    again = [await timed_ms(prepare([ref])) for ref in refs[:100]]
    found["NodePrepareResources, one claim again, median"] = statistics.median(again)
    await kubelet.unprepare(DRIVER, refs)
    rounds: dict[str, list[float]] = {"prepare": [], "spent": [], "again": [], "unprepare": []}
    for _ in range(5):
        before_ms = spent_ms(agent)
        rounds["prepare"].append(await timed_ms(prepare(refs)))
        rounds["spent"].append(spent_ms(agent) - before_ms)
        rounds["again"].append(await timed_ms(prepare(refs)))
        rounds["unprepare"].append(await timed_ms(kubelet.unprepare(DRIVER, refs)))
    found[f"NodePrepareResources, {claims} claims in one call, median of 5"] = statistics.median(
        rounds["prepare"]
    )
    found["  of which processor time of the agent"] = statistics.median(rounds["spent"])
    found[f"NodePrepareResources, {claims} claims again"] = statistics.median(rounds["again"])
    found[f"NodeUnprepareResources, {claims} claims in one call"] = statistics.median(rounds["unprepare"])
    await kubelet.stop()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--claims", type=int, default=500)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve, options.claims, options.pods))
        return
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "tests"], check=True)
    with tempfile.TemporaryDirectory(prefix="bk-", dir="/dev/shm") as folder:
        words = ["--serve", folder, "--claims", str(options.claims), "--pods", str(options.pods)]
        with subprocess.Popen(
            [sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as agent:
            assert agent.stdout is not None
            agent.stdout.readline()
            try:
                found = asyncio.run(measure(Path(folder), options.claims, options.pods, agent.pid))
            finally:
                agent.communicate("\n")
    for name, value in found.items():
        print(f"{name:70} {value:9.2f} ms")
    save("kubernetes_node", {name: round(value, 3) for name, value in found.items()})


if __name__ == "__main__":
    main()
