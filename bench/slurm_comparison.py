"""berth against Slurm's own backfill with whole GPUs, and against its shards, on one real Slurm.

    python bench/slurm_comparison.py [--seeds 10] [--first-seed 0] [--jobs 200] [--only whole,shards,berth]
        [--keep FILE] [--minutes 12] [--policy learned]

Six slurmd of two fake GPUs each, whose kernels take turns. Each seed draws twelve applications of its own and the order
of their jobs, and runs them in all ways in the same minutes. The jobs last 8 s and stand for jobs of hours, so
berth looks every 0.1 s, not every 5 s.

For all ways, slurm.conf has the settings of `berth slurm install` that affect when jobs start: an Epilog, and
batch_sched_delay=1. `--keep` writes the runs to a file after each seed; a run that was cut off goes on from it, and
`--minutes` cuts it off before a seed that would not end in time. A seed takes about 4 minutes on two quiet processors.

Users declare 1 to 2 times the memory that a job takes. All jobs are submitted to a partition that is down. The total
time runs from when it comes up to the last end. Jobs themselves record what an Epilog would have measured, because
the Prologs of six nodes on one machine would take its processors from the jobs.

    whole     `--gres=gpu:1`, Slurm's own backfill
    shards    `--gres=shard:N`, as many eighths of a GPU as the declared memory takes
    berth     `--gres=gpu:1` with `gpu_mem=` in the comment, so that compute is best effort; `berth slurm run` places it
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from berth.files import whole_file
from harness import save
from local_queue_peers import CARD_MIB, NATIVE, ROOT, Application, interval
from slurm_place import CLUSTER, NODES, setup

SHARDS = 8
GIVE_UP_S = 1200.0
INTERVAL_S = "0.3"
"""Between berth's queries; by default it is 5 s, which is half of a job here."""


def applications(seed: int, count: int) -> list[Application]:
    """Jobs of the seed's twelve kinds, in the order of their submission."""
    kinds = random.Random(seed)
    made = []
    for at in range(12):
        busy = kinds.choice((0.1, 0.2, 0.3, 0.5, 0.7))
        mem_mib = kinds.choice((3, 5, 8, 12, 18, 26)) << 10
        steps = round(kinds.uniform(3.0, 12.0) * 1000 / 40)
        declared = round(mem_mib * kinds.choice((1.0, 1.2, 1.5, 2.0)))
        kernel_ms = max(4, round(40 * busy))
        made.append(Application(f"app{at}", mem_mib, kernel_ms, 40 - kernel_ms, steps, declared))
    jobs = [made[at % len(made)] for at in range(count)]
    kinds.shuffle(jobs)
    return jobs


def batch(folder: Path, job: Application, at: int) -> str:
    """A batch script that works on the GPU that Slurm gave it, and writes down how it ended."""
    return f"""#!/bin/bash
export LD_LIBRARY_PATH={NATIVE}/fake BERTH_FAKE_GPUS=2 BERTH_FAKE_MEM_MIB={CARD_MIB}
export BERTH_FAKE_CARD={folder}/card-$SLURMD_NODENAME CUDA_VISIBLE_DEVICES=$SLURM_JOB_GPUS
begun=$(date +%s.%N)
{NATIVE}/local_queue_job {job.mem_mib} {job.kernel_ms} {job.think_ms} {job.steps}
code=$?
echo '{{"peak_mib": {job.mem_mib}, "gpu_ms": {job.kernel_ms * job.steps}, "refused": 0, "needs_mib": 0,' \\
    "\\"raw_id\\": \\"$SLURM_JOB_ID\\", \\"node\\": \\"$SLURMD_NODENAME\\"}}" \\
    >{folder}/state/results/$SLURM_JOB_ID-$SLURMD_NODENAME
echo $code $begun $(date +%s.%N) $SLURMD_NODENAME $SLURM_JOB_GPUS >{folder}/ends/{at}
exit $code
"""


def words_of(way: str, job: Application) -> list[str]:
    """What is asked for."""
    if way == "whole":
        return ["-p", "plain", "--gres=gpu:1"]
    if way == "shards":
        return ["-p", "plain", f"--gres=shard:{-(-job.declared_mib * SHARDS // CARD_MIB)}"]
    return ["-p", "gpu", "--gres=gpu:1", "--comment", f"{job.name} gpu_mem={job.declared_mib}M"]


def quietly(*words: str) -> None:
    """Run a command that must work."""
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def berth_words(folder: Path, policy: str) -> list[str]:
    """The command of the berth that places."""
    return [
        str(Path(sys.executable).parent / "berth"), "slurm", "run", "--mode", "place", "--partitions", "gpu",
        "--policy", policy, "--knowledge", "history?begin=empty", "--card", f"v100={CARD_MIB}M",
        "--interval", INTERVAL_S, "--state", str(folder / "state"),
        "--rest", str(Path("rest").resolve()),
    ]  # fmt: skip


def seen(folder: Path, what: str) -> int:
    """A number of berth's status; -1 before it has looked."""
    try:
        return int(json.loads((folder / "state" / "status.json").read_text())[what])
    except (OSError, ValueError):
        return -1


def warm(folder: Path) -> None:
    """Have berth place some jobs of an application of their own: it has loaded then what it loads once."""
    for _ in range(4):
        words = ["-p", "gpu", "--gres=gpu:1", "--mem=1", "-t", "5", "--comment", "warm gpu_mem=1G gpu_pct=30"]
        quietly("sbatch", "-o", "/dev/null", *words, "--wrap", "sleep 1")
    while subprocess.run(["squeue", "-h"], capture_output=True, text=True).stdout.strip():
        time.sleep(0.2)


def once(way: str, jobs: list[Application], top: Path, policy: str) -> dict[str, Any]:
    """One run: the total time, and how many jobs did not do their work."""
    folder = Path(tempfile.mkdtemp(dir=top))
    for name in ("ends", "state/results"):
        (folder / name).mkdir(parents=True)
    partition = "gpu" if way == "berth" else "plain"
    berth = None
    if way == "berth":
        with open(folder / "berth.err", "w") as errors:
            berth = subprocess.Popen(berth_words(folder, policy), stderr=errors)
        warm(folder)
    quietly("scontrol", "update", f"PartitionName={partition}", "State=DOWN")
    queries = seen(folder, "queries")
    while berth is not None and seen(folder, "queries") < queries + 20 and berth.poll() is None:
        time.sleep(0.1)  # until it has seen that
    for at, job in enumerate(jobs):
        path = folder / f"{at}.sh"
        path.write_text(batch(folder, job, at))
        quietly(
            "sbatch", "-o", "/dev/null", "-t", "5", "-J", job.name, "--mem=1", *words_of(way, job), str(path)
        )
    while berth is not None and seen(folder, "kept_back") < len(jobs) and berth.poll() is None:
        time.sleep(0.1)
    began = time.time()
    quietly("scontrol", "update", f"PartitionName={partition}", "State=UP")
    while len(list((folder / "ends").iterdir())) < len(jobs) and time.time() < began + GIVE_UP_S:
        time.sleep(0.5)
    if berth is not None:
        berth.terminate()
        berth.wait()
    subprocess.run(["scancel", "-u", "root"], check=False)
    ends = [path.read_text().split() for path in (folder / "ends").iterdir()]
    ran = [float(end) - float(begin) for _, begin, end, *_ in ends]
    found = {
        "total_s": max((float(each[2]) for each in ends), default=began + GIVE_UP_S) - began,
        "failed": len(jobs) - sum(each[0] == "0" for each in ends), "run_mean_s": sum(ran) / max(1, len(ran)),
        "gpus": len({tuple(each[3:]) for each in ends}),
    }  # fmt: skip
    print(way, found, (folder / "berth.err").read_text()[-500:] if berth else "", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Run each on the same jobs, seed by seed."""
    if inner := os.environ.get("INNER"):
        words = json.loads(inner)
        jobs = applications(words["seed"], words["jobs"])
        found = {way: once(way, jobs, Path(words["top"]), words["policy"]) for way in words["ways"]}
        Path(words["out"]).write_text(json.dumps(found))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--only", default="whole,shards,berth")
    parser.add_argument("--policy", default="passing+longest-expected+worst-fit")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    asked = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "all", "tests"], check=True)
    link = [f"-L{NATIVE / 'fake'}", "-l:libcuda.so.1"]
    source, program = ROOT / "bench" / "local_queue_job.c", NATIVE / "local_queue_job"
    subprocess.run([shutil.which("cc") or "cc", "-O2", "-std=c11", source, "-o", program, *link], check=True)
    ways = asked.only.split(",")
    told: dict[str, Any] = {"jobs": asked.jobs, "policy": asked.policy, "runs": {}}
    if asked.keep is not None and asked.keep.exists():
        told |= json.loads(asked.keep.read_text())
        if (told["jobs"], told["policy"]) != (asked.jobs, asked.policy):
            raise SystemExit(f"{asked.keep} has runs of other jobs or another policy; name another file")
        compare(told)
    end_s, longest_s = time.monotonic() + 60 * asked.minutes, 0.0
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        ways = ways[1:] + ways[:1]  # none always goes first
        if set(ways) <= told["runs"].get(str(seed), {}).keys():
            continue
        began_s = time.monotonic()
        if began_s + longest_s > end_s:
            print(f"stopped before seed {seed}; the same command goes on from there", flush=True)
            break
        with tempfile.TemporaryDirectory(prefix="berth-bench-", dir="/dev/shm") as top:
            folder = Path(top)
            folder.chmod(0o755)  # slurmrestd is started as another user
            words = {
                "seed": seed, "jobs": asked.jobs, "ways": ways, "top": top, "out": f"{top}/out.json",
                "policy": asked.policy,
            }  # fmt: skip
            script = setup(folder)
            with open(script, "a") as file:  # eight shards a GPU
                file.write(
                    "sed -i 's/shard:8/shard:16/' $DIR/slurm.conf; sed -i 's/Count=8/Count=16/' $DIR/gres.conf\n"
                    # As `berth slurm install` makes it: with an Epilog slurmctld schedules at once when a job ends.
                    "sed -i 's/^SchedulerParameters=.*/&,batch_sched_delay=1/' $DIR/slurm.conf\n"
                    "echo Epilog=/bin/true >>$DIR/slurm.conf\n"
                    # Slurm's own 120 s: on a busy machine slurmd gets some launches later than the tests' 5 s.
                    "sed -i 's/,cred_expire=5//' $DIR/slurm.conf\n"
                )
            environment = {
                **os.environ, "CLUSTER_NODES": str(NODES), "CLUSTER_ACCOUNTING": "no", "CLUSTER_REST": "yes",
                "CLUSTER_SETUP": str(script),
                "INNER": json.dumps(words), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'bench'}:{ROOT}",
            }  # fmt: skip
            command = f"export $(scontrol token lifespan=3600); {sys.executable} {Path(__file__).resolve()}"
            subprocess.run([CLUSTER, folder / "c", command], env=environment, check=True)
            found = json.loads((folder / "out.json").read_text())
            told["runs"][str(seed)] = told["runs"].get(str(seed), {}) | found
            longest_s = max(longest_s, time.monotonic() - began_s)
        print(seed, told["runs"][str(seed)], flush=True)
        compare(told)
        if asked.keep is not None:
            with whole_file(asked.keep) as new:
                new.write_text(json.dumps(told, indent=1))
    save("slurm_comparison", told)


def compare(told: dict[str, Any]) -> None:
    """Add and print the mean of each way, and how berth compares over the seeds that have both."""
    for way in ("whole", "shards", "berth"):
        totals = [each[way]["total_s"] for each in told["runs"].values() if way in each]
        if totals:
            print(f"{way}, {len(totals)} seeds: {sum(totals) / len(totals):.1f} s on average", flush=True)
    for way in ("whole", "shards"):
        both = [each for each in told["runs"].values() if way in each and "berth" in each]
        if both:
            more = [100 * (each["berth"]["total_s"] / each[way]["total_s"] - 1) for each in both]
            mean, half = interval(more)
            told[f"berth against {way}, %"] = {
                "seeds": len(both),
                "mean": round(mean, 1),
                "half": round(half, 1),
            }
            print(f"berth against {way}, {len(both)} seeds: {mean:+.1f} % ± {half:.1f}", flush=True)


if __name__ == "__main__":
    main()
