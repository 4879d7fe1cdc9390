"""Pods placed and bound a second on a real API server, and how long a pod waits on an idle cluster.

    python bench/kubernetes_binds.py [--nodes 500] [--pods 5000] [--policies fifo+best-fit,learned]
        [--only many,idle,one]

The full size is `--nodes 5000 --pods 50000`. API server, etcd and scheduler share this machine's cores. `many`: all
pods wait when the scheduler starts. `idle`: 100 empty nodes, one pod after the other, created to bound. `one`: 40 pods
that all go to one node, created at once, until the last is bound. Processor time is given too, because the rates are
those of a machine that is shared: of the scheduler until its last bind, and of the API server and etcd meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
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

from berth.interference import make_speeds  # noqa: E402
from berth.live.kubernetes import names, objects  # noqa: E402
from berth.live.kubernetes.access import from_kubeconfig  # noqa: E402
from berth.live.kubernetes.client import Api  # noqa: E402
from berth.live.kubernetes.entries import Settings  # noqa: E402
from berth.live.kubernetes.informer import Informer  # noqa: E402
from berth.live.kubernetes.scheduling import Options, Scheduling  # noqa: E402
from berth.profiles import thesis_profiles  # noqa: E402

SHARES = ((250, 16_000), (500, 30_000), (250, 20_000), (100, 8_000), (1000, 0))
AT_ONCE = 32


async def schedule(kubeconfig: Path, policy: str, knowledge: str) -> None:
    """Place all that waits, in a process of its own; prints what it took as JSON."""
    began = time.perf_counter()
    async with Api(from_kubeconfig(kubeconfig)) as api:
        settings = Settings(policy=policy, knowledge=knowledge)
        scheduling = Scheduling(api, Options(settings, once=True, elect=False, own_process=True))
        task = asyncio.create_task(scheduling.run())
        seen: list[tuple[float, int, float]] = []
        while not task.done():
            await asyncio.wait([task], timeout=0.1)
            seen.append((time.perf_counter() - began, scheduling.counts.bound, time.process_time()))
        task.result()
    counts = scheduling.counts
    first = next((s for s, bound, _ in seen if bound), seen[-1][0])
    last, last_cpu = next((s, cpu) for s, bound, cpu in seen if bound == counts.bound)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({
        "slowest_10_s_per_s": slowest([(s, bound) for s, bound, _ in seen if first <= s <= last]),
        "cpu_until_last_s": round(last_cpu, 1),
        "bound": counts.bound, "failed": counts.failed, "first_bind_s": round(first, 2),
        "all_bound_s": round(last, 2),
        "bound_per_s": round(counts.bound / max(0.1, last - first), 1),
        "peak_mib": used.ru_maxrss // 1024, "cpu_s": round(used.ru_utime + used.ru_stime, 1),
    }))  # fmt: skip


def slowest(seen: list[tuple[float, int]], window_s: float = 10.0) -> float | None:
    """The lowest rate of binds, 1/s, in any ten seconds between the first bind and the last; None if it took less."""
    rates = []
    at = 0
    for end_s, bound in seen:
        while seen[at][0] < end_s - window_s:
            at += 1
        if at:
            rates.append((bound - seen[at - 1][1]) / (end_s - seen[at - 1][0]))
    return round(min(rates), 1) if rates else None


async def gathered(jobs: list[Any]) -> None:
    """Await them, at most this many at once."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(job: Any) -> None:
        async with gate:
            await job

    await asyncio.gather(*(one(job) for job in jobs))


async def fill(world: World, nodes: int, pods: int, applications: list[str], model: str) -> None:
    """Post nodes of eight GPUs, and pods of mixed shares."""
    await gathered(
        [world.node(f"n{at:04}", 8, model=model, pods="256", cpu="128", memory="1Ti") for at in range(nodes)]
    )
    posted = []
    for at in range(pods):
        milli, mem = SHARES[at % len(SHARES)]
        said = {names.APPLICATION: applications[at % len(applications)]} if applications else {}
        posted.append(world.pod(f"p{at:05}", milli=milli, mem=mem or None, annotations=said))
    await gathered(posted)


async def many(server: Server, policy: str, nodes: int, pods: int) -> dict[str, Any]:
    """All wait, then the scheduler starts."""
    kubeconfig = server.kubeconfig()
    # What shares by profiles is told applications, and profiles from a history.
    learned = "learned" in policy
    knowledge = "bench.kubernetes_binds:with_profiles" if learned else "user"
    applications = sorted(thesis_profiles()) if learned else []
    async with Api(from_kubeconfig(kubeconfig)) as api:
        world = World(api, kubeconfig)
        await world.clean()
        await fill(world, nodes, pods, applications, "A100-80")
        before = server.processor_s()
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, __file__, "--child", str(kubeconfig), policy, knowledge],
            capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"the scheduler ended with status {done.returncode}:\n{done.stderr[-3000:]}")
        used = {f"{name}_cpu_s": round(now - before[name], 1) for name, now in server.processor_s().items()}
        await world.check()
    return json.loads(done.stdout) | used


async def waits(server: Server, nodes: int, pods: int, *, at_once: bool) -> dict[str, Any]:
    """How long pods wait from their creation to their bind, as a watch of another client sees it, ms."""
    kubeconfig = server.kubeconfig()
    created: dict[str, float] = {}
    bound: dict[str, float] = {}

    def changed(pod: objects.Pod) -> None:
        if pod.spec.node_name:
            bound.setdefault(pod.metadata.name, time.perf_counter())

    async with Api(from_kubeconfig(kubeconfig)) as api:
        world = World(api, kubeconfig)
        await world.clean()
        await gathered([world.node(f"n{at:04}", 8) for at in range(nodes)])
        informer = Informer(api, "/api/v1/pods", objects.Pod, changed=changed, gone=lambda pod: None)
        watch = asyncio.create_task(informer.run())
        await informer.synced.wait()
        async with world.scheduler():
            await world.pod("first", milli=100, mem=1_000)
            await world.until_bound("first")  # the scheduler is warm, and has listed all
            bound.clear()

            async def make(name: str) -> None:
                created[name] = time.perf_counter()
                await world.pod(name, milli=100, mem=1_000)

            if at_once:
                await asyncio.gather(*(make(f"w{at:04}") for at in range(pods)))
            for at in range(0 if at_once else pods):
                await make(f"w{at:04}")
                await asyncio.sleep(0.02)
            while not created.keys() <= bound.keys():
                await asyncio.sleep(0.01)
        watch.cancel()
    taken = sorted(1000 * (bound[name] - created[name]) for name in created)
    last = 1000 * (max(bound[name] for name in created) - min(created.values()))
    return {
        "pods": pods, "median_ms": round(statistics.median(taken), 1),
        "p99_ms": round(taken[max(0, round(0.99 * len(taken)) - 1)], 1), "all_ms": round(last, 1),
    }  # fmt: skip


@contextlib.contextmanager
def a_server(assets: Assets) -> Iterator[Server]:
    """An empty cluster: to delete 50,000 pods takes longer than to start another server."""
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        server = Server(assets, Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()


def with_profiles(workload: Any, interference: Any) -> Any:
    """A knowledge that has the thesis's profiles, as a history has that recorded them."""
    from berth.knowledge import History

    return History(profiles=thesis_profiles(), speeds=make_speeds("time-sliced"))


def main() -> None:
    """Measure, print, save."""
    if sys.argv[1:2] == ["--child"]:
        asyncio.run(schedule(Path(sys.argv[2]), *sys.argv[3:5]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--policies", default="fifo+best-fit,learned")
    parser.add_argument("--only", default="many,idle,one")
    asked = parser.parse_args()
    assets = find_assets()
    if isinstance(assets, str):
        raise SystemExit(assets)
    results: dict[str, Any] = {"kubernetes": assets.version, "nodes": asked.nodes, "pods": asked.pods}
    for policy in asked.policies.split(",") if "many" in asked.only else ():
        with a_server(assets) as server:
            results[policy] = asyncio.run(many(server, policy, asked.nodes, asked.pods))
        print(policy, results[policy], flush=True)
    for name, nodes, pods in (("idle", 100, 200), ("one", 1, 40)):
        if name in asked.only:
            with a_server(assets) as server:
                results[name] = asyncio.run(waits(server, nodes, pods, at_once=name == "one"))
            print(name, results[name], flush=True)
    save("kubernetes_binds", results)


if __name__ == "__main__":
    main()
