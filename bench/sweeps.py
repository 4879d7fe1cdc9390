"""Scale: a million jobs, backfilling, cost against the number of jobs, a sweep on two processes, a silent Ray.

    python bench/sweeps.py [JOBS | sweep]

With a number it runs that many jobs on 10,000 nodes alone, with `sweep` the sweep alone. Else it does all and writes
bench/results/sweeps.json.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import SettingError
from berth.experiments.compare import compare
from berth.experiments.compare.parallel import check_address
from berth.experiments.compare.sweep import held_collector
from berth.traces import read_nodes, read_trace
from harness import data_folder, save

WORKLOAD = "synthetic:poisson?jobs={jobs}&gpus=80000&load=0.9&seed=1"
CLUSTER = "10000x8:V100"


def one(jobs: int) -> None:
    """In a process of its own: so many jobs on 10,000 nodes; prints seconds, CPU seconds and the most memory in MiB."""
    nodes = read_nodes(CLUSTER)
    begin, cpu = time.perf_counter(), time.process_time()
    with held_collector():
        events = sum(
            1
            for _ in simulate(read_trace(WORKLOAD.format(jobs=jobs)).jobs(), Cluster(nodes), "fifo+first-fit")
        )
    seconds = time.perf_counter() - begin
    print(
        events, seconds, time.process_time() - cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    )


def scale() -> list[dict[str, float]]:
    rows = []
    for jobs in (10_000, 100_000, 1_000_000):
        done = subprocess.run(
            [sys.executable, __file__, str(jobs)], capture_output=True, text=True, check=True
        )
        events, seconds, cpu, mib = (float(part) for part in done.stdout.split())
        rows.append(
            {
                "jobs": jobs,
                "events": events,
                "seconds": seconds,
                "cpu_s": cpu,
                "us_a_job": 1e6 * cpu / jobs,
                "mib": mib,
            }
        )
        print(
            f"{jobs:>9,} jobs on 10,000 nodes: {seconds:6.2f} s ({cpu:.2f} s of CPU),"
            f" {1e6 * cpu / jobs:5.1f} µs of CPU a job, {mib:,.0f} MiB"
        )
    return rows


def backfilling() -> dict[str, float]:
    found = {}
    for name, spec in {
        "philly-like at load 1.3": "synthetic:philly-like?jobs=100000&load=1.3&seed=1"
    }.items():
        trace = read_trace(spec)
        jobs = list(trace.jobs())
        for policy in ("fifo+first-fit", "easy+first-fit"):
            begin, cpu = time.perf_counter(), time.process_time()
            with held_collector():
                for _ in simulate(jobs, Cluster(trace.nodes or ()), policy):
                    pass
            found[policy] = time.perf_counter() - begin
            found[f"{policy}, CPU"] = time.process_time() - cpu
            print(
                f"{name}, 100,000 jobs, {policy}: {found[policy]:.2f} s ({found[f'{policy}, CPU']:.2f} s of CPU)"
            )
    return found


def sweep() -> dict[str, float]:
    policies = [
        *(
            "fifo+first-fit",
            "sjf+first-fit",
            "largest-first+first-fit",
            "fair-share+first-fit",
            "easy+first-fit",
        ),
        *("fifo+best-fit", "sjf+best-fit", "fifo+worst-fit", "fifo+random", "sjf+dot-product"),
    ]
    spec = "synthetic:philly-like?jobs=8000&load=1.1"
    taken = {}
    for processes in (1, 2):
        begin, cpu = time.perf_counter(), cpu_s()
        compare(spec, policies, seeds=10, processes=processes)
        taken[f"{processes} processes"] = time.perf_counter() - begin
        taken[f"{processes} processes, CPU"] = cpu_s() - cpu
        print(
            f"10 policies × 10 seeds in {processes} processes: {taken[f'{processes} processes']:.1f} s"
            f" ({taken[f'{processes} processes, CPU']:.1f} s of CPU)"
        )
    taken["speed-up"] = taken["1 processes"] / taken["2 processes"]
    print(f"speed-up: {taken['speed-up']:.2f}")
    return taken


def cpu_s() -> float:
    """Seconds of CPU of this process and of those that it has ended."""
    return sum(os.times()[:4])


def silent_ray() -> dict[str, float]:
    """How long it takes until an address is refused at which a connection opens and nothing is said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        begin = time.perf_counter()
        try:
            check_address(f"127.0.0.1:{listener.getsockname()[1]}")
        except SettingError as error:
            seconds = time.perf_counter() - begin
            print(f"a Ray address that stays silent: {seconds:.1f} s: {error}")
            return {"seconds": seconds}
    raise SystemExit("an address that stays silent was taken for a Ray cluster")


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].isdigit():
        one(int(sys.argv[1]))
    elif sys.argv[1:] == ["sweep"]:
        sweep()
    else:
        print(f"data: {data_folder()}")
        results = {"silent_ray": silent_ray(), "scale": scale(), "backfilling_seconds": backfilling()}
        save("sweeps", {**results, "sweep_seconds": sweep()})
