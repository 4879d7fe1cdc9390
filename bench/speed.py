"""How long the foundation's main tasks take, as medians over runs in processes of their own.

    python bench/speed.py [--runs 7]
    python bench/speed.py --against ../other/src [--runs 7] [--only TEXT]
    python bench/speed.py --sample easy+fifo+best-fit

Inflation of openb_pod_list_default by each policy, `seconds` (the simulation alone, kernels loaded) and the
whole command from the shell; the whole Philly trace, arrivals compressed six times, on 2,490 GPUs, from
reading to result in a warm process; `berth --help`. A fixed loop of Python and NumPy is timed beside them, so
that figures of another machine, or of the same on a busy day, can be compared as ratios. Writes
bench/results/speed.json.

With `--against`, each task runs with this checkout's sources and with those of the folder given, in turns, each run
in a process of its own that has done the task once before; which of a pair comes first changes from pair to pair. It
prints the medians of processor time, their ratio (this checkout to the other), and the interval that holds 95 % of the
ratios of medians of resampled pairs. Writes bench/results/speed_against.json.

With `--sample`, Philly is replayed under one policy while each millisecond of processor time notes which functions are
under way. It prints the parts of the functions in which the time was spent, alone and with what they call.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from types import FrameType, SimpleNamespace

import numpy as np

import berth
from harness import BENCH, OWN, data_folder, other_sources, save, with_sources

BERTH = str(Path(sys.executable).with_name("berth"))
POLICIES = ("fgd", "best-fit", "dot-product", "gpu-packing", "gpu-clustering", "first-fit", "random")
REPLAYS = (("fifo+first-fit", "< 1.5 s"), ("sjf+best-fit", "< 5 s"), ("easy+fifo+best-fit", "< 3 s"))
MILLION = "a million jobs of one GPU, fifo+first-fit"
HELP = "berth --help"
FROM_SHELL = "inflation, fgd, from the shell"


def yardstick() -> float:
    """Seconds that a fixed piece of work takes here and now: dictionaries, heaps' comparisons, small arrays."""
    begin = time.perf_counter()
    table: dict[int, tuple[int, int]] = {}
    row = np.arange(1213)
    total = 0
    for number in range(60_000):
        table[number % 997] = (number, total)
        total += table[number * 7 % 997][0] if number * 7 % 997 in table else 1
        if number % 8 == 0:
            total += int(row[number % 1213 :].argmax())
    return time.perf_counter() - begin


def several(task: Callable[[], float], runs: int) -> dict[str, float]:
    """Median seconds of the task, and its median ratio to the yardstick taken right before each run."""
    pairs = [(yardstick(), task()) for _ in range(runs)]
    return {
        "median_seconds": round(median(seconds for _, seconds in pairs), 3),
        "least_seconds": round(min(seconds for _, seconds in pairs), 3),
        "ratio_to_yardstick": round(median(seconds / unit for unit, seconds in pairs), 2),
    }


def shell(*command: str | Path) -> tuple[float, str]:
    """Wall seconds and standard output of a command."""
    begin = time.perf_counter()
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return time.perf_counter() - begin, done.stdout


class Table:
    """Prints a row a task, and keeps them."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, float]] = {}
        print(f"{'task':<44}{'median':>11}{'least':>11}{'ratio':>9}   asked")

    def add(self, name: str, figures: dict[str, float], asked: str) -> None:
        """Print and keep the figures of a task."""
        self.rows[name] = figures
        print(
            f"{name:<44}{figures['median_seconds']:>9.3f} s{figures['least_seconds']:>9.3f} s"
            f"{figures['ratio_to_yardstick']:>9.2f}   {asked}"
        )


def inflate_command(data: Path, policy: str) -> tuple[str | Path, ...]:
    """The inflation of openb's default workload, as a command."""
    return (
        BERTH, "experiment", "inflate", "--json", "--policy", policy, "--seed", "42",
        "--nodes", data / "openb_v2023/openb_node_list_gpu_node.csv.gz",
        "--pods", data / "openb_v2023/openb_pod_list_default.csv.gz",
        "--order", data / "fgd_orders/openb_pod_list_default.npz",
    )  # fmt: skip


def alone(data: Path, table: Table, runs: int) -> None:
    """Time every task with these sources."""
    in_process(LOOP, data)
    for policy in POLICIES:
        command = inflate_command(data, policy)
        shell(*command)
        asked = "< 0.2 s" if policy == "fgd" else "< 0.15 s"
        simulation = several(lambda c=command: float(json.loads(shell(*c)[1])["seconds"]), runs)  # type: ignore[misc]
        table.add(f"inflation, {policy}, simulation alone", simulation, asked)
        if policy == "fgd":
            table.add(FROM_SHELL, several(lambda c=command: shell(*c)[0], runs), "< 1.5 s")  # type: ignore[misc]
    philly = data / "philly/sia_philly.csv.gz"
    for policy, asked in REPLAYS:

        def replay(policy: str = policy) -> float:
            begin = time.perf_counter()
            berth.compare(philly, policy, compress=6)
            return time.perf_counter() - begin

        replay()
        table.add(f"Philly at 6x, {policy}, warm", several(replay, runs), asked)
    table.add(HELP, several(lambda: shell(BERTH, "--help")[0], runs), "< 0.2 s")


def tasks() -> dict[str, str]:
    """The task of each row that is compared with other sources: `KIND:POLICY` or a command."""
    return {
        **{f"inflation, {policy}, simulation alone": f"inflate:{policy}" for policy in POLICIES},
        FROM_SHELL: "inflate",
        **{f"Philly at 6x, {policy}, warm": f"philly:{policy}" for policy, _ in REPLAYS},
        MILLION: "1000000:fifo+first-fit",
        HELP: "help",
    }


LOOP = "20000:fifo+first-fit"
"""A run of 20,000 jobs compiles the loop and keeps it on disk. From then on, shorter runs use it."""
MILLION_NODES = [berth.Node(f"n{number}", gpus=8) for number in range(128)]


def many_jobs(count: int) -> list[berth.Job]:
    """Jobs that ask for about 98 % of a thousand GPUs."""
    draw = random.Random(1)
    jobs, now_ms = [], 0
    for number in range(count):
        now_ms += draw.randint(0, 8)
        jobs.append(berth.Job(f"j{number}", now_ms, draw.randint(1, 8000), user=f"u{number % 50}"))
    return jobs


def in_process(task: str, data: Path) -> float:
    """Seconds of processor time of a task in this process, done for the second time."""
    kind, _, policy = task.partition(":")
    if kind == "philly":

        def run() -> float:
            begin = time.process_time()
            berth.compare(data / "philly/sia_philly.csv.gz", policy, compress=6)
            return time.process_time() - begin
    elif kind.isdecimal():
        jobs = many_jobs(int(kind))

        def run() -> float:
            begin = time.process_time()
            deque(berth.simulate(jobs, berth.Cluster(MILLION_NODES), policy), maxlen=0)
            return time.process_time() - begin
    else:
        try:
            from berth_papers.inflate import inflate, read_arrivals
        except ImportError:  # sources from before the papers had a package of their own
            from berth.experiments.inflate import inflate, read_arrivals

        # `seconds` is the simulation alone; it is measured in processor time here.
        sys.modules[inflate.__module__].time = SimpleNamespace(perf_counter=time.process_time)  # type: ignore[attr-defined]
        nodes = berth.read_nodes(data / "openb_v2023/openb_node_list_gpu_node.csv.gz")
        pods = data / "openb_v2023/openb_pod_list_default.csv.gz"
        workload = list(berth.read(pods, nodes=nodes, file_order=True))
        arrivals = read_arrivals(data / "fgd_orders/openb_pod_list_default.npz", 42)

        def run() -> float:
            return inflate(nodes, workload, policy, seed=42, arrivals=arrivals).seconds

    run()
    return run()


def with_source(source: Path, task: str, data: Path) -> float:
    """Seconds of processor time of a task with the sources of a folder, in a process of its own."""
    if ":" in task:
        command: tuple[str | Path, ...] = (
            sys.executable, BENCH / "speed.py", "--task", task, "--data", data
        )  # fmt: skip
        return float(with_sources(source, *command))
    command = inflate_command(data, "fgd") if task == "inflate" else (BERTH, "--help")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with_sources(source, *command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def sample(data: Path, policy: str) -> None:
    """Print in which functions a warm replay of Philly spends its processor time, in percent."""
    alone: Counter[str] = Counter()
    within: Counter[str] = Counter()

    def note(_: int, frame: FrameType | None) -> None:
        stack = [] if frame is None else [each.f_code for each, _ in traceback.walk_stack(frame)]
        names = [
            f"{Path(code.co_filename).parent.name}/{Path(code.co_filename).name} {code.co_name}"
            for code in stack
        ]
        alone.update(names[:1])
        within.update(set(names))

    berth.compare(data / "philly/sia_philly.csv.gz", policy, compress=6)
    signal.signal(signal.SIGPROF, note)
    begin = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    berth.compare(data / "philly/sia_philly.csv.gz", policy, compress=6)
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(f"{time.process_time() - begin:.2f} s of processor time, {alone.total():,} samples")
    for title, counts in (("alone", alone), ("with what they call", within)):
        print(title)
        for name, count in counts.most_common(25):
            print(f"{100 * count / alone.total():6.1f} %  {name}")


def ratio_of_medians(own: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """The ratio of the medians, and the interval that holds 95 % of those of resampled pairs."""
    pairs = np.array([own, other])
    drawn = np.random.default_rng(0).integers(0, len(own), (4000, len(own)))
    medians = np.median(pairs[:, drawn], axis=2)
    low, high = np.quantile(medians[0] / medians[1], (0.025, 0.975))
    return median(own) / median(other), float(low), float(high)


def against(other: Path, data: Path, runs: int, only: str) -> dict[str, object]:
    """Time every task with both sources in turns; print and return a row a task."""
    chosen = {name: task for name, task in tasks().items() if only in name}
    if not chosen:
        raise SystemExit(f"no task has '{only}' in its name; there are: {'; '.join(tasks())}")
    sources = {"own": OWN, "other": other}
    print(f"{'task, processor time':<44}{'other':>11}{'this':>11}{'ratio':>9}   95 %")
    rows: dict[str, object] = {}
    for source in sources.values():
        with_source(source, LOOP, data)
    for name, task in chosen.items():
        for source in sources.values():  # compiles what is not on disk yet
            with_source(source, task, data)
        seconds: dict[str, list[float]] = {kind: [] for kind in sources}
        for run in range(runs):
            for kind in sorted(sources, reverse=bool(run % 2)):
                seconds[kind].append(with_source(sources[kind], task, data))
        ratio, low, high = ratio_of_medians(seconds["own"], seconds["other"])
        rows[name] = {"ratio": round(ratio, 4), "low": round(low, 4), "high": round(high, 4), **seconds}
        print(
            f"{name:<44}{median(seconds['other']):>9.3f} s{median(seconds['own']):>9.3f} s"
            f"{ratio:>9.3f}   {low:.3f} to {high:.3f}",
            flush=True,
        )
    return rows


def main() -> None:
    """Time the tasks, alone or against other sources."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, help="the folder of the traces")
    arguments.add_argument("--runs", type=int, default=7, help="runs of each task, with each of the sources")
    arguments.add_argument("--against", type=Path, metavar="SRC", help="the src folder of another checkout")
    arguments.add_argument(
        "--only", default="", metavar="TEXT", help="with --against: tasks with TEXT in their names"
    )
    arguments.add_argument("--sample", metavar="POLICY", help="tell where a replay of Philly spends its time")
    arguments.add_argument(
        "--task", help=argparse.SUPPRESS
    )  # do a task in this process, and print its seconds
    chosen = arguments.parse_args()
    data = (chosen.data or data_folder()).resolve()
    if chosen.runs < 1:
        raise SystemExit(f"--runs {chosen.runs}; expected 1 or more")
    if chosen.task:
        print(in_process(chosen.task, data))
    elif chosen.sample:
        sample(data, chosen.sample)
    elif chosen.against:
        rows = against(other_sources(chosen.against), data, chosen.runs, chosen.only)
        save("speed_against", {"other": str(chosen.against), "runs": chosen.runs, "rows": rows})
    else:
        table = Table()
        alone(data, table, chosen.runs)
        save("speed", table.rows)


if __name__ == "__main__":
    main()
