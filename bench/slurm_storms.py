"""Storms on a real Slurm: its daemons and berth's are killed in turn while jobs of all kinds wait and run.

    python bench/slurm_storms.py [--jobs 200] [--rounds 5]

The jobs are single ones, parts of a GPU, jobs of two nodes, heterogeneous ones, arrays, jobs that wait for others, and
jobs of a partition that is not berth's. Each round kills berth twice, and both slurmd, slurmctld and the nodes' agent
once; it requeues a running job, and sets a node down until jobs have ended on the other. Counted are jobs whose script
never reached its end, and jobs that still wait or run long after the storm (`WAIT_S`, and `JOB_S` for each job). A job
that its user holds in the other partition must not change; changes of it are counted too. A minute after the storm, and
each minute from then on while jobs are left, `scontrol reconfigure` is called as an operator would: Slurm then finds
jobs that a killed slurmd never launched. How often is printed, with the shards that Slurm has of each GPU at the end,
and those that it counts as used: it must have lost none, and count none.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from harness import save

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
SCRIPT = Path(__file__).with_name("slurm_storm.sh")
PLAIN = "sed -i 's/^PartitionName=.*/&\\nPartitionName=plain Nodes=ALL MaxTime=60 DefMemPerCPU=500/' $DIR/slurm.conf\n"
A_SET = 9
"""Jobs that the script submits at once: one of each kind, and three tasks."""
WAIT_S, JOB_S = 300, 5
"""How long the end of a storm is waited for, and for each job; submission and kills have as long, and 100 s a round."""


def storm(folder: Path, sets: int, rounds: int) -> dict[str, object]:
    """Have one; what it left."""
    from tests.live.slurm.real_slurm import tell

    setup = folder / "setup.sh"
    setup.write_text(PLAIN)
    began = time.monotonic()
    wait_s = WAIT_S + JOB_S * A_SET * sets
    told = tell(
        folder / "c",
        f". {SCRIPT}",
        timeout_s=2 * wait_s + 100 * rounds,
        CLUSTER_SETUP=str(setup),
        SETS=str(sets),
        ROUNDS=str(rounds),
        WAIT_S=str(wait_s),
    )
    asked, ran = ((told / name).read_text().split() for name in ("ids", "ran"))
    left = (told / "left").read_text().splitlines()
    held = (told / "held").read_text().strip()
    return {
        "jobs": len(asked),
        "kills": 6 * rounds,
        "lost": sorted(set(asked) - set(ran)),
        "stuck": [line for line in left if line.split()[0] != held],
        "touched": [line for line in left if line.split()[0] == held] != [f"{held} PENDING JobHeldUser mine"],
        "ran_twice": len(ran) - len(set(ran)),
        "operator": (told / "operator").read_text().splitlines(),
        "shards": [" ".join(line.split()) for line in (told / "shards").read_text().splitlines()],
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    """Have a storm, and say what it left."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as name:
        Path(name).chmod(0o755)
        found = storm(Path(name), -(-asked.jobs // A_SET), asked.rounds)
    print(found)
    save("slurm_storms", found)


if __name__ == "__main__":
    main()
