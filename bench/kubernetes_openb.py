"""openb on a real API server: what the steerer allocates there, and what the simulator allocates of the same pods.

    python bench/kubernetes_openb.py [--part 8] [--policies fifo+best-fit,...] [--data DIR]

Takes every `--part`-th node of openb's cluster, and pods drawn from its trace until they ask for 130 % of the GPUs. The
simulator is given them in the order in which the API server has them. Prints both allocations, and how many pods are
on other GPUs than simulated. Writes bench/results/kubernetes_openb.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from berth.cluster import Cluster
from berth.knowledge import make_knowledge
from berth.live.kubernetes import names
from berth.live.kubernetes.client import Api
from berth.model import GpuModel, Job, Node, Placement, Share
from berth.policies import Setting, make_policy
from berth.scheduler import NeverFits, Scheduler
from berth.traces import read, read_nodes
from harness import data_folder, save
from kubernetes_steer import ROOT, World, a_server, find_assets, from_kubeconfig, gathered

Places = dict[str, tuple[str, tuple[int, ...]]]
ASKED = 1.3
"""Of all GPUs."""


def simulated(nodes: list[Node], jobs: list[Job], policy: str) -> Places:
    """Where the simulator's scheduler places them."""
    knowledge = make_knowledge("user")
    cluster = Cluster(nodes)
    scheduler = Scheduler(cluster, make_policy(policy, Setting(knowledge=knowledge)), knowledge)
    for job in jobs:
        scheduler.submit(job)
    found: Places = {}
    for _ in range(2):  # those that fit nowhere leave before the second
        for outcome in scheduler.decide(1):
            if isinstance(outcome, NeverFits):
                scheduler.withdraw(outcome.job.id, 1)
            elif isinstance(outcome, Placement):
                slots = outcome.slots
                gpus = tuple(slot.index for slot in slots) if outcome.job.gpus else ()
                found[outcome.job.id] = (cluster.nodes[slots[0].node].name, gpus)
    return found


def allocated_pct(places: Places, jobs: dict[str, Job], gpus: int) -> float:
    """GPU compute given away, per cent of all."""
    return sum(jobs[name].gpus * jobs[name].share.milli for name in places) / (10 * gpus)


async def on_server(
    kubeconfig: Path, nodes: list[Node], jobs: list[Job], policy: str
) -> tuple[Places, list[str]]:
    """Where the steerer places them on the API server, and the order in which that has them."""
    async with Api(from_kubeconfig(kubeconfig)) as api:
        world = World(api, kubeconfig)
        await world.clean()
        await gathered(
            [
                world.node(
                    node.name, node.gpus, model=node.gpu_model.name if node.gpu_model else "none", mem_mib=0,
                    cpu=f"{node.cpu_milli}m", memory=f"{node.mem_mib}Mi", pods="1000",
                )
                for node in nodes
            ]
        )  # fmt: skip
        posted = []
        for job in jobs:
            said = {names.MODELS: ",".join(job.models)} if job.models else {}
            posted.append(
                world.pod(
                    job.id, job.gpus, milli=job.share.milli if job.gpus else None, annotations=said,
                    cpu=f"{job.cpu_milli}m", memory=f"{job.mem_mib}Mi",
                )
            )  # fmt: skip
        await gathered(posted)
        waiting = [pod["metadata"] for pod in (await world.pods()).values()]
        waiting.sort(key=lambda meta: (meta["creationTimestamp"], int(meta["resourceVersion"])))
        order = [meta["name"] for meta in waiting]
        done = await asyncio.to_thread(
            subprocess.run,
            [str(Path(sys.executable).with_name("berth")), "k8s", "steerer",
             "--once", "--no-elect", "--kubeconfig", str(kubeconfig), "--policy", policy,
             "--knowledge", "user"],
            capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"the steerer ended with status {done.returncode}:\n{done.stderr[-3000:]}")
        await world.check()
        pods = await world.pods()
    found: Places = {}
    for name, pod in pods.items():
        if "nodeName" in pod["spec"]:
            placed = json.loads(pod["metadata"]["annotations"][names.PLACEMENT])
            found[name] = (pod["spec"]["nodeName"], tuple(gpu["index"] for gpu in placed["gpus"]))
    return found, order


def drawn(data: Path, part: int) -> tuple[list[Node], list[Job]]:
    """Nodes, and pods that ask for 130 % of their GPUs."""
    every = read_nodes(data / "openb_v2023/openb_node_list_gpu_node.csv.gz")
    nodes = [
        Node(
            node.name,
            node.gpus,
            GpuModel(node.gpu_model.name) if node.gpu_model else None,
            node.cpu_milli,
            node.mem_mib,
        )
        for node in sorted(every, key=lambda node: node.name)[::part]
    ]
    pods = list(read(data / "openb_v2023/openb_pod_list_default.csv.gz", nodes=every, file_order=True))
    random.Random(1).shuffle(pods)
    jobs: list[Job] = []
    wanted = ASKED * 1000 * sum(node.gpus for node in nodes)
    for at, pod in enumerate(pods):
        if sum(job.gpus * job.share.milli for job in jobs) >= wanted:
            break
        jobs.append(
            Job(
                f"p{at:05}", 0, None, gpus=pod.gpus, share=Share(pod.share.milli, 0), cpu_milli=pod.cpu_milli,
                mem_mib=pod.mem_mib, models=pod.models,
            )
        )  # fmt: skip
    return nodes, jobs


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", type=int, default=8)
    parser.add_argument("--policies", default="fifo+best-fit,easy+fifo+best-fit,easy+fifo+fgd")
    parser.add_argument("--data", type=Path, default=data_folder())
    asked = parser.parse_args()
    assets = find_assets()
    if isinstance(assets, str):
        raise SystemExit(assets)
    nodes, jobs = drawn(asked.data, asked.part)
    gpus, by_name = sum(node.gpus for node in nodes), {job.id: job for job in jobs}
    results: list[dict[str, Any]] = []
    print(f"{len(nodes)} nodes, {gpus} GPUs, {len(jobs)} pods")
    for policy in asked.policies.split(","):
        with a_server(assets) as server:
            real, order = asyncio.run(on_server(server.kubeconfig(), nodes, jobs, policy))
        expected = simulated(nodes, [by_name[name] for name in order], policy)
        row = {
            "policy": policy, "nodes": len(nodes), "gpus": gpus, "pods": len(jobs),
            "allocated_pct": round(allocated_pct(real, by_name, gpus), 3),
            "simulated_pct": round(allocated_pct(expected, by_name, gpus), 3),
            "pods_elsewhere": sum(real.get(name) != expected.get(name) for name in by_name),
        }  # fmt: skip
        results.append(row)
        print(row, flush=True)
    save("kubernetes_openb", results)


if __name__ == "__main__":
    main()
