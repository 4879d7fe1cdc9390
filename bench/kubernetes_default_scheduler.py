"""openb under Kubernetes' default scheduler, alone and with berth's extender: what each allocates at saturation.

    python bench/kubernetes_default_scheduler.py [--part 24] [--data DIR]

The nodes and pods of `kubernetes_openb.py`, on a real API server, placed by the real kube-scheduler
(`tests/live/kubernetes/build_server.sh kube-scheduler`). `whole`: a pod gets whole GPUs, which is all that the default
scheduler knows. `units`: parts are counted as an extended resource of their node, and not by GPU; a pod that was bound
and whose part fits on no GPU of its node, in the order of the binds, is not counted as allocated. `extender`: berth's
extender filters, prefers and binds, by `--policy`. Ends when nothing was bound for `--quiet-s`. Writes
bench/results/kubernetes_default_scheduler.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from berth.live.kubernetes import names
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.entries import Settings
from berth.live.kubernetes.extender import Extender, tls_of
from berth.model import Job, Node
from harness import data_folder, save
from kubernetes_binds import World, a_server, find_assets, from_kubeconfig, gathered
from kubernetes_openb import drawn

PARTS = "bench.example/gpu-milli"
"""GPU compute of a node in milli, as an extended resource."""
NAME = "default-scheduler"


def pods_of(world: World, jobs: list[Job], way: str) -> list[Any]:
    """The pods as each way has them asked for."""
    posted = []
    for job in jobs:
        takes: dict[str, str] = {}
        spec: dict[str, Any] = {}
        if job.gpus and way == "units":
            takes = {PARTS: str(job.gpus * job.share.milli)}
        if job.models and way != "extender":
            wanted = {"key": names.LABEL_GPU_MODEL, "operator": "In", "values": list(job.models)}
            terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
            spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        said = {names.MODELS: ",".join(job.models)} if job.models else {}
        posted.append(
            world.pod(
                job.id, 0 if way == "units" else job.gpus, milli=job.share.milli if job.gpus else None,
                annotations=said, cpu=f"{job.cpu_milli}m", memory=f"{job.mem_mib}Mi", scheduler=NAME,
                resources=takes, **spec,
            )
        )  # fmt: skip
    return posted


def fitting(bound: list[tuple[str, str]], nodes: list[Node], jobs: dict[str, Job]) -> list[str]:
    """Those of the bound pods (pod, node), in their order, whose parts fit on GPUs of their node, each on the fullest
    that has room."""
    free = {node.name: [1000] * node.gpus for node in nodes}
    found = []
    for name, on in bound:
        job = jobs[name]
        room = sorted(
            (at for at, milli in enumerate(free[on]) if milli >= job.share.milli), key=lambda at: free[on][at]
        )
        if len(room) >= job.gpus:
            found.append(name)
            for at in room[: job.gpus]:
                free[on][at] -= job.share.milli
    return found


@contextlib.asynccontextmanager
async def extender(api: Api, policy: str, folder: Path) -> AsyncIterator[dict[str, Any]]:
    """berth's extender; yields how a scheduler's configuration names it."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=berth -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", *words.split(), "-out", certificate, "-keyout", key]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    serving = Extender(api, Settings(policy=policy, scheduler_name=""))
    listening = asyncio.create_task(serving.listen())
    runner = web.AppRunner(serving.application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls_of(certificate, key, certificate))
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    try:
        yield {
            "urlPrefix": f"https://127.0.0.1:{port}", "filterVerb": "filter", "prioritizeVerb": "prioritize",
            "bindVerb": "bind", "enableHTTPS": True, "nodeCacheCapable": True, "weight": 10, "httpTimeout": "30s",
            "tlsConfig": {"certFile": str(certificate), "keyFile": str(key), "caFile": str(certificate)},
            "managedResources": [{"name": names.RESOURCE, "ignoredByScheduler": True}],
        }  # fmt: skip
    finally:
        await runner.cleanup()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def measured(
    kubeconfig: Path, program: Path, nodes: list[Node], jobs: list[Job], way: str, asked: argparse.Namespace
) -> dict[str, Any]:
    """What is bound when nothing more is."""
    by_name = {job.id: job for job in jobs}
    gpus = sum(node.gpus for node in nodes)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        async with Api(from_kubeconfig(kubeconfig)) as api, contextlib.AsyncExitStack() as stack:
            world = World(api, kubeconfig)
            await world.clean()
            await gathered(
                [
                    world.node(
                        node.name, node.gpus, model=node.gpu_model.name if node.gpu_model else "none", mem_mib=0,
                        cpu=f"{node.cpu_milli}m", memory=f"{node.mem_mib}Mi", pods="1000",
                        # whole GPUs: a unit is one; the extender counts by itself
                        resources={PARTS: str(1000 * node.gpus)}
                        | ({names.RESOURCE: str(node.gpus)} if way == "whole" else {}),
                    )
                    for node in nodes
                ]
            )  # fmt: skip
            await gathered(pods_of(world, jobs, way))
            config: dict[str, Any] = {
                "apiVersion": "kubescheduler.config.k8s.io/v1beta1", "kind": "KubeSchedulerConfiguration",
                "leaderElection": {"leaderElect": False}, "clientConnection": {"kubeconfig": str(kubeconfig)},
                "podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 2,
            }  # fmt: skip
            if way == "extender":
                config["extenders"] = [await stack.enter_async_context(extender(api, asked.policy, folder))]
            (folder / "config.yaml").write_text(json.dumps(config))
            with (folder / "log").open("wb") as log:
                words = [program, f"--config={folder / 'config.yaml'}", "--port=0", "--secure-port=0"]
                process = subprocess.Popen(words, stdout=log, stderr=log)
                try:
                    places, since = await world.places(), time.monotonic()
                    while time.monotonic() - since < (asked.quiet_s if places else 6 * asked.quiet_s):
                        await asyncio.sleep(1)
                        if process.poll() is not None:
                            raise SystemExit(f"it ended:\n{(folder / 'log').read_text()[-3000:]}")
                        now = await world.places()
                        if len(now) != len(places):
                            places, since = now, time.monotonic()
                finally:
                    process.kill()
                    process.wait()
            if way == "extender":
                await world.check()
            pods = await world.pods()

    def version(name: str) -> int:
        return int(pods[name]["metadata"]["resourceVersion"])

    bound = [(name, pods[name]["spec"]["nodeName"]) for name in sorted(places, key=version)]
    counted = fitting(bound, nodes, by_name)
    held = sum(by_name[name].gpus for name, _ in bound)
    milli = sum(by_name[name].gpus * by_name[name].share.milli for name in counted)
    return {
        "way": way, "policy": asked.policy if way == "extender" else "default", "nodes": len(nodes), "gpus": gpus,
        "pods": len(jobs), "bound": len(bound), "fit_on_no_gpu": len(bound) - len(counted),
        "allocated_pct": round(milli / (10 * gpus), 3),
        **({"gpus_held_pct": round(100 * held / gpus, 3)} if way == "whole" else {}),
    }  # fmt: skip


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", type=int, default=24)
    parser.add_argument("--ways", default="whole,units,extender")
    parser.add_argument("--policy", default="fifo+best-fit", help="of the extender")
    parser.add_argument("--quiet-s", type=float, default=30.0)
    parser.add_argument("--data", type=Path, default=data_folder())
    asked = parser.parse_args()
    assets = find_assets()
    if isinstance(assets, str):
        raise SystemExit(assets)
    program = assets.apiserver.with_name("kube-scheduler")
    if not program.exists():
        raise SystemExit(f"no {program}; make it with tests/live/kubernetes/build_server.sh kube-scheduler")
    nodes, jobs = drawn(asked.data, asked.part)
    results = []
    for way in asked.ways.split(","):
        with a_server(assets) as server:
            results.append(asyncio.run(measured(server.kubeconfig(), program, nodes, jobs, way, asked)))
        print(results[-1], flush=True)
    save("kubernetes_default_scheduler", results)


if __name__ == "__main__":
    main()
