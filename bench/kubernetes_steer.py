"""Pods bound a second by a real kube-scheduler, alone and steered by berth, in one run on one machine.

    python bench/kubernetes_steer.py [--nodes 1000] [--pods 1000] [--rounds 3]

API server, etcd, kube-scheduler, steerer and the client that creates the pods share this machine's cores. Rounds take
turns, alone and steered, on one server with the same nodes. Both sides get the same pods by the same client at its full
speed; those of the steered side carry berth's gate. A round lasts from the first pod's creation until a watch has seen
the last one bound. `idle`: one pod after the other, from its creation until the watch sees it bound. kube-scheduler may
send 1,000 requests a second: by default it sends 50, which both sides would wait for (`--qps 50`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from harness import save

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from tests.live.kubernetes.server import Assets, Server, find_assets, processor_s  # noqa: E402
from tests.live.kubernetes.world import NAMESPACE, World  # noqa: E402

from berth.live.kubernetes import names  # noqa: E402
from berth.live.kubernetes.access import from_kubeconfig  # noqa: E402
from berth.live.kubernetes.client import Api, Informer  # noqa: E402
from berth.live.kubernetes.objects import Pod  # noqa: E402

AT_ONCE = 32
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SIDES = ("alone", "steered")
PATIENCE_S = 60


class Watch:
    """When each pod was seen bound, by name, seconds of the monotonic clock."""

    def __init__(self, api: Api) -> None:
        self.bound_s: dict[str, float] = {}
        self._news = asyncio.Event()
        self._pods = Informer(api, PODS, Pod, changed=self._changed, gone=lambda pod: None)

    @contextlib.asynccontextmanager
    async def follow(self) -> AsyncIterator[Watch]:
        """Watch from now on."""
        task = asyncio.create_task(self._pods.run())
        await self._pods.synced.wait()
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _changed(self, pod: Pod) -> None:
        if pod.spec.node_name and pod.metadata.name not in self.bound_s:
            self.bound_s[pod.metadata.name] = time.monotonic()
            self._news.set()

    async def until_bound(self, count: int) -> None:
        """Wait until this many pods were seen bound."""
        end_s = time.monotonic() + PATIENCE_S
        while len(self.bound_s) < count:
            if time.monotonic() > end_s:
                raise SystemExit(f"{len(self.bound_s)} of {count} pods are bound after {PATIENCE_S} s")
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), 1)


async def gathered(jobs: list[Any]) -> None:
    """Await them, at most this many at once."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(job: Any) -> None:
        async with gate:
            await job

    await asyncio.gather(*(one(job) for job in jobs))


@contextlib.contextmanager
def a_server(assets: Assets, qps: int = 1000) -> Iterator[Server]:
    """An empty cluster with its kube-scheduler."""
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        server = Server(assets, Path(folder))
        try:
            server.start()
            if why := server.start_scheduler(qps=qps):
                raise SystemExit(why)
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def steerer(kubeconfig: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A steerer in a process of its own."""
    berth = Path(sys.executable).with_name("berth")
    with log.open("w") as said:
        command = [str(berth), "k8s", "steerer", "--no-elect", "--kubeconfig", str(kubeconfig)]
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


async def a_round(
    world: World, side: str, pods: int, idle: int, used_s: Callable[[], dict[str, float]]
) -> dict[str, Any]:
    """One round of a side: pods bound a second, processor time of a pod, and the times of single pods, ms. Leaves the
    nodes as they were."""
    gates = (names.GATE,) if side == "steered" else ()
    async with Watch(world.api).follow() as watch:
        await world.pod("first", milli=500, mem=20_000, gates=gates)
        await watch.until_bound(1)  # all is listed and warm
        await asyncio.sleep(1)
        before_s, began_s = used_s(), time.monotonic()
        await gathered([world.pod(f"p{at:05}", milli=500, mem=20_000, gates=gates) for at in range(pods)])
        created_s = time.monotonic() - began_s
        await watch.until_bound(1 + pods)
        took_s = max(watch.bound_s.values()) - began_s
        processor_ms = {name: 1000 * (now_s - before_s[name]) / pods for name, now_s in used_s().items()}
        await world.check()
        await asyncio.sleep(2)  # events of the burst are written
        times_ms = []
        for at in range(idle):
            await asyncio.sleep(0.05)
            posted_s = time.monotonic()
            await world.pod(f"idle-{at:03}", milli=500, mem=20_000, gates=gates)
            await watch.until_bound(2 + pods + at)
            times_ms.append(1000 * (watch.bound_s[f"idle-{at:03}"] - posted_s))
    await gathered([world.delete(name) for name in await world.pods()])
    return {
        "bound_a_second": pods / took_s,
        "created_a_second": pods / created_s,
        "processor_ms": processor_ms,
        "idle_ms": times_ms,
    }


def with_steerer(server: Server, own: subprocess.Popen[bytes]) -> dict[str, float]:
    """Processor time of each program so far, seconds."""
    return {**server.processor_s(), "steerer": processor_s(own)}


async def measured(server: Server, chosen: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """The rounds of both sides."""
    kubeconfig = server.kubeconfig()
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    async with Api(from_kubeconfig(kubeconfig)) as api:
        world = World(api, kubeconfig)
        await world.clean()
        await gathered([world.node(f"n{at:04}", 8, cpu="128", memory="1Ti") for at in range(chosen.nodes)])
        for number in range(chosen.rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                with contextlib.ExitStack() as stack:
                    used_s = server.processor_s
                    if side == "steered":
                        own = stack.enter_context(steerer(kubeconfig, server.folder / "steerer.log"))
                        used_s = partial(with_steerer, server, own)
                    row = await a_round(world, side, chosen.pods, chosen.idle, used_s)
                row["load"] = os.getloadavg()[0]
                found[side].append(row)
                used = ", ".join(f"{name} {used_ms:.1f}" for name, used_ms in row["processor_ms"].items())
                print(
                    f"{side:8} bound {row['bound_a_second']:6.1f}/s, created {row['created_a_second']:6.1f}/s,"
                    f" idle median {statistics.median(row['idle_ms']):.1f} ms, load {row['load']:.1f};"
                    f" processor ms a pod: {used}",
                    flush=True,
                )
    return found


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--idle", type=int, default=50, help="pods a round that are created one after the other"
    )
    parser.add_argument("--qps", type=int, default=1000, help="requests a second of kube-scheduler")
    chosen = parser.parse_args()
    assets = find_assets()
    if isinstance(assets, str):
        raise SystemExit(assets)
    with a_server(assets, chosen.qps) as server:
        rounds = asyncio.run(measured(server, chosen))
    summary = {}
    for side, rows in rounds.items():
        times_ms = sorted(time_ms for row in rows for time_ms in row["idle_ms"])
        summary[side] = {
            "bound_a_second": statistics.median(row["bound_a_second"] for row in rows),
            "processor_ms_a_pod": statistics.median(sum(row["processor_ms"].values()) for row in rows),
            "idle_median_ms": statistics.median(times_ms),
            "idle_p99_ms": times_ms[int(0.99 * len(times_ms))],
        }
        print(side, {key: round(value, 1) for key, value in summary[side].items()})
    alone, steered = summary["alone"], summary["steered"]
    ratio = steered["bound_a_second"] / alone["bound_a_second"]
    limit_ms = 1.2 * alone["idle_p99_ms"] + 50
    print(f"bound a second: {ratio:.2f} times alone (asked: 1.0)")
    print(f"p99 on an idle cluster: {steered['idle_p99_ms']:.0f} ms (asked: at most {limit_ms:.0f})")
    save("kubernetes_steer", {**vars(chosen), "ratio": ratio, "sides": summary, "rounds": rounds})


if __name__ == "__main__":
    main()
