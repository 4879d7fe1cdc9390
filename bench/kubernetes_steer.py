"""Pods bound a second by a real kube-scheduler, alone and steered by berth, in one run on one machine.

    python bench/kubernetes_steer.py [--nodes 1000] [--pods 2000]

API server, etcd, kube-scheduler and steerer share this machine's cores. All pods ask for half a GPU and wait before
anybody looks at them: those that kube-scheduler has alone carry no gate, and ask for their units alone. `idle`: one pod
after the other on the same nodes, created to bound, as a watch of the pod sees it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import save

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from tests.live.kubernetes.server import Assets, Server, find_assets  # noqa: E402
from tests.live.kubernetes.world import World  # noqa: E402

from berth.live.kubernetes import names  # noqa: E402
from berth.live.kubernetes.access import from_kubeconfig  # noqa: E402
from berth.live.kubernetes.client import Api  # noqa: E402

AT_ONCE = 32
BERTH = Path(sys.executable).with_name("berth")
IDLE = 100
"""Pods that are created one after the other."""


async def gathered(jobs: list[Any]) -> None:
    """Await them, at most this many at once."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(job: Any) -> None:
        async with gate:
            await job

    await asyncio.gather(*(one(job) for job in jobs))


@contextlib.contextmanager
def a_server(assets: Assets) -> Iterator[Server]:
    """An empty cluster with its kube-scheduler."""
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        server = Server(assets, Path(folder))
        try:
            server.start()
            if why := server.start_scheduler():
                raise SystemExit(why)
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def steerer(kubeconfig: Path, log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A steerer in a process of its own."""
    with log.open("w") as said:
        command = [str(BERTH), "k8s", "steerer", "--no-elect", "--kubeconfig", str(kubeconfig), *words]
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


async def measured(server: Server, nodes: int, pods: int, *, steered: bool) -> dict[str, float]:
    """Bound a second, and the times of single pods, ms."""
    kubeconfig = server.kubeconfig()
    async with Api(from_kubeconfig(kubeconfig)) as api:
        world = World(api, kubeconfig)
        await world.clean()
        await gathered([world.node(f"n{at:04}", 8, cpu="128", memory="1Ti") for at in range(nodes)])
        gates = (names.GATE,) if steered else ("berth.dev/wait",)
        await gathered([world.pod(f"p{at:05}", milli=500, mem=20_000, gates=gates) for at in range(pods)])
        began_s = time.monotonic()
        with contextlib.ExitStack() as stack:
            if steered:
                stack.enter_context(steerer(kubeconfig, server.folder / "steerer.log", "--knowledge", "user"))
            else:
                lifted = {"spec": {"schedulingGates": None}}
                path = "/api/v1/namespaces/default/pods"
                await gathered([world.patch(f"{path}/p{at:05}", lifted) for at in range(pods)])
            first_s = 0.0
            while (bound := len(await world.places())) < pods:
                first_s = first_s or (time.monotonic() if bound else 0.0)
                await asyncio.sleep(0.5)
            rate = pods / (time.monotonic() - (first_s or began_s))
            times_ms = []
            for at in range(IDLE):
                posted_s = time.monotonic()
                await world.pod(f"idle-{at:03}", milli=500, mem=20_000, gates=gates[:steered])
                await world.until_bound(f"idle-{at:03}")
                times_ms.append(1000 * (time.monotonic() - posted_s))
                await world.delete(f"idle-{at:03}")
        await world.check()
    times_ms.sort()
    return {
        "bound_a_second": rate,
        "median_ms": statistics.median(times_ms),
        "p99_ms": times_ms[int(0.99 * len(times_ms))],
    }


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2000)
    chosen = parser.parse_args()
    assets = find_assets()
    if isinstance(assets, str):
        raise SystemExit(assets)
    found = {}
    for steered in (False, True):
        with a_server(assets) as server:
            found["steered" if steered else "alone"] = asyncio.run(
                measured(server, chosen.nodes, chosen.pods, steered=steered)
            )
    for name, row in found.items():
        print(name, {key: round(value, 1) for key, value in row.items()})
    save("kubernetes_steer", {"nodes": chosen.nodes, "pods": chosen.pods, **found})


if __name__ == "__main__":
    main()
