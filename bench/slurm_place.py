"""berth beside a real Slurm: jobs placed a second, decisions, what its queries cost the controller, advice replayed.

    python bench/slurm_place.py [--jobs 300] [--pending 2000] [--replay 100000] [--only place,decide,queries,replay]

Starts a Slurm of its own (tests/slurm_cluster.sh; packages in .ci/packages) with six nodes of two GPUs, typed as
`berth slurm install` types them, its Lua plugin and slurmrestd. `replay` needs no Slurm.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import save

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
CLUSTER = ROOT / "tests" / "slurm_cluster.sh"
NODES = 6


def setup(folder: Path) -> Path:
    """A script that gives each GPU a type of its own and shards, and takes the jobs of `gpu` off Slurm's hands."""
    from berth.live.slurm.install import shipped

    lua = shipped("berth.lua").replace(
        "local BERTH_PARTITIONS = {}", "local BERTH_PARTITIONS = { gpu = true }"
    )
    (folder / "job_submit.lua").write_text(lua)
    script = folder / "setup.sh"
    script.write_text(f"""
sed -i 's/Gres=gpu:v100:2/Gres=gpu:v100_0:1,gpu:v100_1:1,shard:8/; s/^GresTypes=.*/GresTypes=gpu,shard/' $DIR/slurm.conf
sed -i 's/CPUs=16 RealMemory=64000/CPUs=1000 RealMemory=6400000/' $DIR/slurm.conf
printf 'JobSubmitPlugins=lua\\nMaxJobCount=20000\\nMaxArraySize=10001\\n' >>$DIR/slurm.conf
sed -i 's/^PartitionName=.*/&\\nPartitionName=plain Nodes=ALL MaxTime=60 DefMemPerCPU=1/' $DIR/slurm.conf
sed -i 's/DefMemPerCPU=500/DefMemPerCPU=1/' $DIR/slurm.conf
cat >$DIR/gres.conf <<END
NodeName=node[1-{NODES}] Name=gpu Type=v100_0 File=/dev/null
NodeName=node[1-{NODES}] Name=gpu Type=v100_1 File=/dev/zero
NodeName=node[1-{NODES}] Name=shard Count=8
END
cp {folder}/job_submit.lua $DIR/
""")
    return script


def on_slurm(folder: Path, only: set[str], jobs: int, pending: int) -> dict[str, Any]:
    """Run this script's inner part inside a Slurm; what it measured."""
    folder.chmod(0o755)  # slurmrestd is started as another user
    told = {"only": sorted(only), "jobs": jobs, "pending": pending, "out": str(folder / "out.json")}
    words = {
        **os.environ, "CLUSTER_NODES": str(NODES), "CLUSTER_ACCOUNTING": "no", "CLUSTER_REST": "yes",
        "CLUSTER_SETUP": str(setup(folder)), "INNER": json.dumps(told),
    }  # fmt: skip
    command = f"export $(scontrol token lifespan=3600); {sys.executable} {Path(__file__).resolve()}"
    subprocess.run([CLUSTER, folder / "c", command], env=words, check=True, stdout=subprocess.DEVNULL)
    return dict(json.loads((folder / "out.json").read_text()))


def inner(told: dict[str, Any]) -> dict[str, Any]:
    """What is measured inside."""
    from berth.live.slurm.controller import Change, Controller
    from berth.live.slurm.rest import RestChannel

    controller = Controller()
    rest = RestChannel(Path("rest").resolve(), controller, print)
    count = int(told["jobs"])
    found: dict[str, Any] = {}
    if "place" in told["only"]:
        note = "berth:1;node=gres:gpu:1;job=;task="
        ways: dict[str, tuple[Callable[..., dict[str, str]], Callable[[int], dict[str, str]]]] = {
            "nodes alone, REST": (rest.apply, lambda at: {}),
            "nodes alone, scontrol": (controller.apply, lambda at: {}),
            "exact GPU, REST": (rest.apply, lambda at: {"gres": f"gres:shard:v100_{at % 2}:1"}),
            "exact GPU and note, scontrol": (
                controller.apply, lambda at: {"gres": f"gres:shard:v100_{at % 2}:1", "admin_comment": note},
            ),
        }  # fmt: skip
        for name, (apply, more) in ways.items():
            ids = held(count)
            changes = [
                Change(job, node_list=f"node{1 + at % NODES}", hold=False, **more(at))  # type: ignore[arg-type]
                for at, job in enumerate(ids)
            ]
            began = time.perf_counter()
            failed = apply(changes)
            seconds = time.perf_counter() - began
            found[name] = {"jobs": count, "a_second": count / seconds, "failed": len(failed)}
            cancel()
    if "decide" in told["only"] or "queries" in told["only"]:
        found |= looks(int(told["pending"]), controller)
    return found


def held(count: int) -> list[str]:
    """Submit jobs that the plugin holds; their ids."""
    words = ["sbatch", "--parsable", "-o", "/dev/null", "-t", "10", "--gres=gpu:1", "--wrap", "sleep 60"]
    return [
        subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() for _ in range(count)
    ]


def cancel() -> None:
    """Take all jobs out, and wait until they are."""
    subprocess.run(["scancel", "-u", "root"], check=False)
    while subprocess.run(["squeue", "-h", "-r"], capture_output=True, text=True).stdout.strip():
        time.sleep(0.5)


def looks(pending: int, controller: Any) -> dict[str, Any]:
    """Decisions on jobs of their own that wait, and what the controller spends on the looks."""
    from berth.live.slurm.service import Service, Settings

    for _ in range(pending):
        words = [
            "sbatch",
            "-o",
            "/dev/null",
            "-p",
            "plain",
            "-t",
            "10",
            "--gres=gpu:1",
            "--wrap",
            "sleep 600",
        ]
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    settings = Settings(Path(tempfile.mkdtemp()), card_mib={"v100": 32_768})
    service = Service(settings, controller)
    service.step()
    subprocess.run(["sdiag", "--reset"], check=True, stdout=subprocess.DEVNULL)
    steps, decides, began = [], [], time.perf_counter()
    for _ in range(8):
        step = time.perf_counter()
        service.step()
        steps.append(time.perf_counter() - step)
        decides.append(service.decide_s)
    text = subprocess.run(["sdiag"], capture_output=True, text=True, check=True).stdout
    asked = {"REQUEST_JOB_INFO ", "REQUEST_NODE_INFO ", "REQUEST_PARTITION_INFO "}
    lines = [line.split() for line in text.splitlines() if any(name in line for name in asked)]
    spent_us = sum(
        int(word.split(":")[1]) for line in lines for word in line if word.startswith("total_time:")
    )
    queries = 8 + 2
    cancel()
    return {
        "pending": pending,
        "step_s": statistics.median(steps),
        "decide_s": statistics.median(decides),
        "controller_us_a_query": spent_us / queries,
        "controller_pct_at_5_s": spent_us / queries / 5e6 * 100,
        "looked_s": time.perf_counter() - began,
    }


def replay(count: int) -> dict[str, Any]:
    """A week of jobs that Slurm has run, as `advise` is compared with it: replayed by the default policy."""
    from berth.cluster import Cluster
    from berth.engine import simulate
    from berth.knowledge import make_knowledge
    from berth.model import Job, Node, Share
    from berth.policies import Setting, make_policy

    draw = random.Random(0)
    week_ms = 7 * 86_400_000
    jobs = [
        Job(
            str(at), submit, work := int(draw.lognormvariate(13.2, 1.4)), user=f"u{draw.randrange(50)}",
            gpus=draw.choice((1, 1, 1, 1, 2, 4, 8)), share=Share(), cpu_milli=4000, mem_mib=16_000,
            time_limit_ms=max(60_000, 2 * work), priority=draw.randrange(1000),
        )
        for at, submit in enumerate(sorted(draw.randrange(week_ms) for _ in range(count)))
    ]  # fmt: skip
    nodes = [Node(f"n{at}", 8, None, 128_000, 1_024_000) for at in range(110)]
    knowledge = make_knowledge("user", jobs)
    policy = make_policy("easy+priority+best-fit", Setting(knowledge=knowledge))
    began = time.process_time()  # of the processor, so that other work on the machine does not count
    events = sum(1 for _ in simulate(jobs, Cluster(nodes), policy, knowledge=knowledge))
    return {"replayed_jobs": count, "events": events, "replay_cpu_s": time.process_time() - began}


def main() -> None:
    """Measure, print a table, and write JSON."""
    if told := os.environ.get("INNER"):
        words = json.loads(told)
        Path(words["out"]).write_text(json.dumps(inner(words)))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--pending", type=int, default=2000)
    parser.add_argument("--replay", type=int, default=100_000)
    parser.add_argument("--only", default="place,decide,queries,replay")
    arguments = parser.parse_args()
    only = set(arguments.only.split(","))
    found: dict[str, Any] = {}
    if only & {"place", "decide", "queries"}:
        with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
            found |= on_slurm(Path(folder), only, arguments.jobs, arguments.pending)
    if "replay" in only:
        found |= replay(arguments.replay)
    for name, value in found.items():
        if isinstance(value, dict):
            print(
                f"{name:32} {value['a_second']:8.0f} jobs a second, {value['failed']} of {value['jobs']} failed"
            )
        else:
            print(f"{name:32} {value:10.4g}")
    save("slurm_place", found)


if __name__ == "__main__":
    main()
