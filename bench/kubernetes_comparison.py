"""`learned` against whole GPUs and best-fit sharing: pods of the thesis's applications on a node's fake GPUs.

    python bench/kubernetes_comparison.py [--seeds 10] [--first-seed 0] [--pods 500] [--gpus 20] [--kubelet real|ours]
        [--ways exclusive,best-fit,learned] [--scale 20] [--again]

A real API server, `berth k8s steerer` and `berth k8s node` as processes. `--kubelet real` is Kubernetes' own
with containerd and runc, and needs root and no other kubelet on the machine; `ours` is the tests' own, whose containers
are processes in mount namespaces.

The pods are drawn evenly from the thesis's eleven applications (`workload_jobs("random", N, seed)`), and last for
their seconds divided by `--scale`. Each takes the most memory of its profile, half of it after a third of its steps,
and its mean of GPU time in steps of 40 ms, in which it takes turns with others on its card of 12 GB, the thesis's.
Taking turns costs the fake driver nothing, and `learned` is told so: `time-sliced` without that cost.

    exclusive  each pod asks for a whole GPU; fifo+best-fit
    best-fit   each asks for 1 to 1.5 times its memory (by application), and for its mean of the GPU; easy+fifo+best-fit
    learned    the same pods; learned, which has the thesis's profiles

The node is cordoned until all pods wait and the steerer has read them; the total time is from then to the last end.
Each run is kept in bench/results/kubernetes_comparison.json when it ends, and is not made again unless `--again`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from berth.interference.speeds import GPU
from berth.interference.time_sliced import time_sliced
from berth.live.kubernetes import names
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.node.api_server import ApiServer
from berth.profiles import Profiles, thesis_profiles, workload_jobs
from harness import BENCH, save
from kubernetes_steer import ROOT, World, a_server, find_assets, from_kubeconfig
from local_queue_peers import NATIVE, interval

sys.path.insert(0, str(ROOT))
from tests.live.kubernetes.kubelet import AdmissionError, Kubelet
from tests.live.kubernetes.node.containers import of_device_plugin, start
from tests.live.kubernetes.node.real_node import KUBELET_FOLDER, RealNode, programs

BERTH = Path(sys.executable).with_name("berth")
WAYS = {"exclusive": "fifo+best-fit", "best-fit": "easy+fifo+best-fit", "learned": "learned"}
NODE = "here"
STEP_MS = 40
GIVE_UP_S = 1800.0
SCALE = "BERTH_BENCH_SCALE"


class FreeTurns:
    """Speeds of kernels that take turns where switching costs nothing."""

    mode = "time-sliced"

    def __call__(self, usage: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np) -> Any:
        """As `time_sliced`."""
        return time_sliced(usage, present, capacity_mem_mib, xp=xp, switch_milli=0)

    def effective_milli(self, usage: Any) -> Any:
        """Its part of the time."""
        return usage[..., GPU]


def knowledge(workload: Any, interference: Any) -> Any:
    """The thesis's profiles, as short as the pods; for the steerer's `--knowledge`."""
    from berth.knowledge import History

    scale = int(os.environ[SCALE])
    short = [replace(each, interval_ms=each.interval_ms // scale) for each in thesis_profiles().values()]
    return History(profiles=Profiles(short), speeds=FreeTurns())


@dataclass(frozen=True)
class Work:
    """What one pod does, and what it asks for."""

    application: str
    mem_mib: int
    kernel_ms: int
    steps: int
    declared_mib: int


def works(pods: int, seed: int, scale: int) -> list[Work]:
    """Pods in the order of their creation."""
    profiles, kinds, made = thesis_profiles(), random.Random(1), {}
    for name in sorted(profiles):
        usage, card = profiles[name].usage, profiles[name].hardware
        mem_mib = round(float(usage[:, 1].max()) * card.mem_mib)
        declared = min(card.mem_mib, round(mem_mib * kinds.choice((1.0, 1.1, 1.25, 1.5))))
        seconds = len(usage) * profiles[name].interval_ms / 1000 / scale
        kernel_ms = min(STEP_MS - 1, max(2, round(STEP_MS * float(usage[:, 0].mean()))))
        made[name] = Work(name, mem_mib, kernel_ms, round(seconds * 1000 / STEP_MS), declared)
    return [made[str(job.application)] for job in workload_jobs("random", pods, seed)]


@dataclass(frozen=True)
class Plan:
    """What a run is made of."""

    way: str
    works: list[Work]
    gpus: int
    kubelet: str
    scale: int


def command(plan: Plan, at: int, ends: str, program: str) -> str:
    """What a pod's container does: it writes down how it ended."""
    work = plan.works[at]
    words = f"{program} {work.mem_mib} {work.kernel_ms} {STEP_MS - work.kernel_ms} {work.steps}"
    return f"{words}; code=$?; echo $code >{ends}/p{at:04}; exit $code"


def pod(plan: Plan, at: int, folder: Path) -> dict[str, Any]:
    """The pod, as a user would write it."""
    work = plan.works[at]
    said = {names.KIND: work.application}  # profiles of the thesis, one for all namespaces
    if plan.way != "exclusive":
        said[names.ASKED_MEM_MIB] = str(work.declared_mib)
        said[names.ASKED_MILLI] = str(round(1000 * work.kernel_ms / STEP_MS))
    takes = {"cpu": "1m", "memory": "8Mi", names.RESOURCE: "1"}
    container = {
        "name": "main", "image": "localhost/berth-test:1", "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command(plan, at, "/bench/ends", "/bench/job")],
        "resources": {"requests": takes}, "volumeMounts": [{"name": "bench", "mountPath": "/bench"}],
    }  # fmt: skip
    container["resources"]["limits"] = {names.RESOURCE: "1"}  # type: ignore[index]
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{at:04}", "annotations": said},
        "spec": {
            "schedulingGates": [{"name": names.GATE}], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "containers": [container], "enableServiceLinks": False, "dnsPolicy": "Default", "hostNetwork": True,
            "automountServiceAccountToken": False,
            "volumes": [{"name": "bench", "hostPath": {"path": str(folder)}}],
        },
    }  # fmt: skip


@contextlib.contextmanager
def process(words: list[str], log: Path, environment: dict[str, str]) -> Any:
    """A process that ends with the block."""
    with log.open("w") as file:
        running = subprocess.Popen(words, stdout=file, stderr=file, env={**os.environ, **environment})
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def agent(plan: Plan, folder: Path, kubelet: Path, kubeconfig: Path) -> Any:
    """`berth k8s node`."""
    words = [
        str(BERTH), "k8s", "node", "--node-name", NODE, "--fake-gpus", f"{plan.gpus}xTITAN-12G", "--kubeconfig",
        str(kubeconfig), "--kubelet-folder", str(kubelet), "--state-folder", str(folder / "state"),
        "--run-folder", str(folder / "run"), "--cdi-folder", str(folder / "cdi"), "--dra", "none", "--every", "2",
    ]  # fmt: skip
    folder.mkdir(exist_ok=True)
    return process(words, folder / "agent.log", {})


class Ours:
    """A node with the tests' own kubelet: it starts what is bound to it, and tells how it ended."""

    def __init__(self, plan: Plan, name: str, world: World, top: Path) -> None:
        self.plan, self.name, self.world, self.top = plan, name, world, top
        self.folder = top / name
        self.kubelet = Kubelet(self.folder / "kubelet")
        self.server = ApiServer(world.api, name)
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.gate = asyncio.Semaphore(4)

    async def ready(self) -> None:
        """Make the node, with what its plugin has."""
        await self.kubelet.until_registered(names.RESOURCE)
        units, _ = self.kubelet.capacity(names.RESOURCE)
        counted = {"cpu": "64", "memory": "64Gi", "pods": "1000", names.RESOURCE: str(units)}
        await self.world.patch(
            f"/api/v1/nodes/{self.name}/status", {"status": {"allocatable": counted, "capacity": counted}}
        )

    async def follow(self) -> None:
        """Start pods as they are bound, for ever."""
        while True:
            for each in await self.server.pods():
                if each.uid not in self.tasks and not each.ended and names.PLACEMENT in each.annotations:
                    self.tasks[each.uid] = asyncio.create_task(self._run(each))
            for task in self.tasks.values():
                if task.done() and task.exception():
                    task.result()
            await asyncio.sleep(0.1)

    async def _run(self, each: Any) -> None:
        at = int(each.name.removeprefix("p"))
        try:
            async with self.gate:
                await self.kubelet.admit(each, names.RESOURCE)
                given = await self.kubelet.pre_start(each, "main", names.RESOURCE)
                words = command(self.plan, at, str(self.top / "ends"), str(self.top / "job"))
                scratch = self.folder / "scratch" / each.name
                scratch.parent.mkdir(exist_ok=True)
                running = await asyncio.to_thread(
                    start, of_device_plugin(given.answer), ["/bin/sh", "-c", words], scratch
                )
        except AdmissionError as error:
            await self.world.ended(each.name, "Failed")
            print(error, file=sys.stderr)
            return
        output, _ = await asyncio.to_thread(running.communicate)
        if running.returncode:
            print(each.name, running.returncode, output[-300:], file=sys.stderr)
        self.kubelet.end(each)
        await self.world.ended(each.name, "Failed" if running.returncode else "Succeeded")


@asynccontextmanager
async def cluster(plan: Plan, world: World, top: Path) -> AsyncIterator[None]:
    """The node with its kubelet and agent, cordoned."""
    async with AsyncExitStack() as stack:
        if plan.kubelet == "real":
            node = RealNode(top, world.kubeconfig, {"maxPods": len(plan.works) + 10, "kubeAPIQPS": 50,
                                                    "kubeAPIBurst": 100, "eventRecordQPS": 50})  # fmt: skip
            stack.callback(node.close)
            await asyncio.to_thread(node.start)
            stack.enter_context(agent(plan, top / "here", KUBELET_FOLDER, world.kubeconfig))
        else:
            ours = Ours(plan, NODE, world, top)
            ours.folder.mkdir()
            await ours.kubelet.start()
            stack.push_async_callback(ours.kubelet.stop)
            await world.node(NODE, gpus=0, labels={"berth.dev/gpus": "shared"})
            stack.enter_context(agent(plan, ours.folder, ours.kubelet.folder, world.kubeconfig))
            await ours.ready()
            task = asyncio.create_task(ours.follow())
            world._running.append(task)
            stack.callback(task.cancel)

        async def ready() -> bool:
            listed = json.loads(await world.api.request("GET", "/api/v1/nodes"))["items"]
            return any(
                int(node["status"].get("allocatable", {}).get(names.RESOURCE, 0)) == 16 * plan.gpus
                and "berth.dev/gpu-indices" in node["metadata"].get("labels", {})
                for node in listed
            )

        await world.until("the node is ready", ready, 180)
        await world.patch(f"/api/v1/nodes/{NODE}", {"spec": {"unschedulable": True}})
        yield


async def measure(plan: Plan, world: World, top: Path) -> dict[str, Any]:
    """One run."""
    ends = top / "ends"
    ends.mkdir()
    shutil.copy(NATIVE / "local_queue_job", top / "job")
    async with cluster(plan, world, top):
        path = "/api/v1/namespaces/default/pods"
        for at in range(len(plan.works)):  # in their order
            await world.api.request("POST", path, pod(plan, at, top))
        words = [
            str(BERTH),
            "k8s",
            "steerer",
            "--kubeconfig",
            str(world.kubeconfig),
            "--policy",
            WAYS[plan.way],
        ]
        if plan.way == "learned":
            words += ["--knowledge", "bench.kubernetes_comparison:knowledge", "--right-size", "apply"]
        environment = {SCALE: str(plan.scale), "PYTHONPATH": f"{ROOT}:{ROOT / 'bench'}"}
        with process(words, top / "scheduler.log", environment) as scheduler:
            last = f"p{len(plan.works) - 1:04}"
            await world.until_told(last if "easy" in WAYS[plan.way] else "p0000", "node", patience_s=180)
            await world.patch(f"/api/v1/nodes/{NODE}", {"spec": {"unschedulable": False}})
            began = time.time()
            until, most = began + GIVE_UP_S, 0
            while len(list(ends.iterdir())) < len(plan.works) and time.time() < until:
                await asyncio.sleep(1)
                if scheduler.poll() is not None:
                    raise SystemExit(f"the steerer ended:\n{(top / 'scheduler.log').read_text()[-3000:]}")
                pods = (await world.pods()).values()
                most = max(most, sum(each["status"].get("phase") == "Running" for each in pods))
                if all(each["status"].get("phase") in ("Succeeded", "Failed") for each in pods):
                    break
            pods = (await world.pods()).values()
            used = set()
            for each in pods:
                placed = json.loads(each["metadata"]["annotations"].get(names.PLACEMENT, '{"gpus": []}'))
                used |= {(each["spec"]["nodeName"], gpu["index"]) for gpu in placed["gpus"]}
            codes = {each.name: each.read_text().strip() for each in ends.iterdir()}
            return {
                "total_s": round(max(each.stat().st_mtime for each in ends.iterdir()) - began, 1),
                "failed": len(plan.works) - sum(code == "0" for code in codes.values()), "gpus_used": len(used),
                "most_running": most, "load": round(os.getloadavg()[0]),
            }  # fmt: skip


def once(plan: Plan) -> dict[str, Any]:
    """One run on an API server of its own."""
    assets = find_assets()
    if isinstance(assets, str):
        raise SystemExit(assets)

    async def whole(kubeconfig: Path, top: Path) -> dict[str, Any]:
        async with Api(from_kubeconfig(kubeconfig)) as api:
            world = World(api, kubeconfig)
            await world.clean()
            return await measure(plan, world, top)

    with a_server(assets) as server, tempfile.TemporaryDirectory(prefix="bk-", dir="/tmp") as top:
        try:
            return asyncio.run(whole(Path(server.kubeconfig()), Path(top)))
        except BaseException:
            for log in sorted(Path(top).glob("**/*.log")):
                print(f"--- {log}\n{log.read_text(errors='replace')[-1500:]}", file=sys.stderr)
            raise


def compare(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """How `learned` compares, over the seeds that have both."""
    told = {}
    for way in ("exclusive", "best-fit"):
        both = [each for each in runs.values() if way in each and "learned" in each]
        if both:
            more = [100 * (each["learned"]["total_s"] / each[way]["total_s"] - 1) for each in both]
            mean, half = interval(more)
            told[f"learned against {way}, %"] = {
                "seeds": len(both), "mean": round(mean, 1), "half": round(half, 1) if len(both) > 1 else None,
            }  # fmt: skip
    return told


def main() -> None:
    """Measure what is not there yet, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--gpus", type=int, default=20)
    parser.add_argument("--kubelet", choices=("real", "ours"), default="real")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    ways = asked.ways.split(",")
    if unknown := set(ways) - set(WAYS):
        parser.error(f"--ways '{asked.ways}' names {', '.join(sorted(unknown))}; there are {', '.join(WAYS)}")
    if asked.kubelet == "real" and (missing := programs()):
        parser.error(f"--kubelet real: {missing}")
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "all", "tests"], check=True)
    link = [f"-L{NATIVE / 'fake'}", "-l:libcuda.so.1"]
    source, program = ROOT / "bench" / "local_queue_job.c", NATIVE / "local_queue_job"
    subprocess.run([shutil.which("cc") or "cc", "-O2", "-std=c11", source, "-o", program, *link], check=True)
    kept = BENCH / "results" / "kubernetes_comparison.json"
    results: dict[str, Any] = json.loads(kept.read_text())["results"] if kept.exists() else {}
    size = f"{asked.pods} pods, {asked.gpus} GPUs, kubelet {asked.kubelet}, scale {asked.scale}"
    runs = results.setdefault(size, {}).setdefault("runs", {})
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        ways = ways[1:] + ways[:1]  # none always goes first
        for way in ways:
            found = runs.setdefault(str(seed), {})
            if asked.again or way not in found:
                work = works(asked.pods, seed, asked.scale)
                found[way] = once(Plan(way, work, asked.gpus, asked.kubelet, asked.scale))
                print(seed, way, found[way], flush=True)
                results[size] |= compare(runs)
                save("kubernetes_comparison", results)
    print(size, compare(runs))


if __name__ == "__main__":
    main()
