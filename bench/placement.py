"""Policies that decide who shares which GPU, under sustained load: one table, paired by seed.

    python bench/placement.py [--parts mixed,equal,cold,wrong,demanding,decisions] [--gpus 20] [--seeds 10]
        [--minutes 6] [--keep out/placement.jsonl] [--slots 1] [--policies pairs,learned] [--curve delays.png]
        [--before before.jsonl] [--simulate] [--first-seed 31000]

Jobs arrive at random for `--minutes`; the first and the last fifth of them are not counted. A load is the work that
arrives divided by what the GPUs do without sharing. A row counts the seeds that all its policies have run.

    mixed      GPUs of five models, all is known
    equal      the same number of V100s, all is known
    cold       five models, and a history that begins empty
    wrong      five models, and beliefs that are wrong: run times by a factor of ten, memory by 30 %, speeds by 20 %
    demanding  five models, all is known; one job in ten asks for two whole GPUs, one in ten for most of a node's CPU
    decisions  the processor time of decisions on 1,000 GPUs with 10,000 waiting jobs

Mixed and equal GPUs are played in compiled worlds (`pair_worlds`), but for first fit by memory; with `--simulate`, and
in all other parts, by `simulate`. `learned?pairs=FILE` is `learned` with another network over pairs.

`first-fit-by-memory` starts jobs where the memory that they declare, their true peak, is left, as shards do. `pairs`
is the rule that a network would have to beat. The bound is no policy: no job ends before its run time alone, nor before
one server with the compute of all GPUs has served the shortest jobs first. Work per GPU is the load at which jobs
are delayed by `EQUAL_DELAY_S` on average, by their wait or by neighbours, on straight lines between loads. Seeds from
`FIRST_SEED` on are used for nothing else; constants were chosen on those from 700,000 on. With `--keep`, finished runs
are not run again.

`--before` compares with runs that an earlier version kept, `PYTHONPATH=OTHER/src python bench/placement.py --simulate
--policies first-fit-by-memory,learned --keep before.jsonl`. Give both runs `--simulate`, and first give that checkout
this one's src/berth/interference/mps.json: the truth must be one, and equal runs of first fit by memory show it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.gpu_models import GPU_MODELS
from berth.interference import make_interference
from berth.interference.mps import mps
from berth.knowledge import Oracle, make_knowledge
from berth.model import EventKind, GpuSlot, Job, Node, Placement, Reason, Share, placement_of
from berth.policies import Setting, make_policy
from berth.policies.colocation.open_gpus import all_have_room
from berth.policies.protocol import Decision, Policy
from berth.profiles import THESIS_GPU, peak_mem_mib, series, thesis_profiles, workload_jobs
from berth.statistics.spread import confidence_interval_95
from harness import count, save

if TYPE_CHECKING:
    import pair_worlds

FIRST_SEED = 31_000
CARDS = ("TITAN-XP", "T4", "V100", "RTX-3090", "A100-40")
PER_NODE, CPU_MILLI = 4, 64_000
WHOLE, BY_MEMORY = "easy+priority+whole-gpus", "first-fit-by-memory"
POLICIES = (WHOLE, BY_MEMORY, "greedy", "random-sharing", "pairs", "learned")
LOADS = (1.2, 1.6, 2.5, 3.5, 5.0)
ONE_LOAD = {"mps": (2.5,), "time-sliced": (1.6,)}
EQUAL_DELAY_S = 60.0
KNOWLEDGE = {"cold": "history?begin=empty", "wrong": "noisy?run=2.3&memory=0.3&pair=0.2"}
PEAKS_MIB = {name: peak_mem_mib(profile) for name, profile in thesis_profiles().items()}
PARTS = ("mixed", "equal", "cold", "wrong", "demanding", "decisions")


Counted = TypeVar("Counted")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of one policy."""

    part: str
    mode: str
    load: float
    policy: str
    seed: int
    gpus: int
    minutes: float
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it; of the jobs that are counted."""

    completion_s: float
    delay_s: float
    """By how much completion is later than the run time alone: the wait, and what neighbours cost."""
    wait_s: float
    longest_wait_s: float
    lost: int
    out_of_memory: int
    cpu_s: float


def cells(asked: argparse.Namespace) -> Iterator[Cell]:
    """All runs, one seed after the other, so that a table can be made of those that are done."""
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for part in asked.parts:
            always = part in ("mixed", "equal")
            for mode in ("mps", "time-sliced"):
                for load in LOADS if always else ONE_LOAD[mode]:
                    for policy in asked.policies.split(","):
                        simulated = asked.simulate or not always or policy == BY_MEMORY
                        yield Cell(part, mode, load, policy, seed, asked.gpus, asked.minutes, simulated)


@cache
def world(part: str, mode: str, gpus: int) -> pair_worlds.Cluster:
    """The compiled cluster of a part."""
    import pair_worlds  # which earlier versions, that --before compares with, lack

    return pair_worlds.Cluster(mode, CARDS if part == "mixed" else ("V100",) * len(CARDS), gpus)


@cache
def nodes_of(part: str, gpus: int) -> tuple[Node, ...]:
    """Nodes of four GPUs."""
    models = ("V100",) if part == "equal" else CARDS
    return tuple(
        Node(f"node-{at:03}", PER_NODE, GPU_MODELS[models[at % len(models)]], CPU_MILLI)
        for at in range(-(-gpus // PER_NODE))
    )


@cache
def jobs_of(cell: Cell) -> tuple[Job, ...]:
    """The jobs that arrive; the same for each policy."""
    gpus = sum(node.gpus for node in nodes_of(cell.part, cell.gpus))
    many = int(3 * cell.minutes * gpus * cell.load) + 100
    draw = np.random.default_rng([cell.seed, 9])
    made = workload_jobs("random", many, cell.seed)
    work_ms = float(np.mean([job.work_ms or 0 for job in made]))
    at_ms = np.cumsum(draw.exponential(work_ms / (gpus * cell.load), many)).astype(np.int64).tolist()
    kinds = draw.random(many) if cell.part == "demanding" else np.ones(many)
    return tuple(
        replace(
            job, submit_ms=at, gpus=2 if kind < 0.1 else 1, cpu_milli=48_000 if 0.1 <= kind < 0.2 else 1000
        )
        for job, at, kind in zip(made, at_ms, kinds.tolist(), strict=True)
        if at < 60_000 * cell.minutes
    )


class FirstFitByMemory:
    """Start each job that fits on the first GPU with enough memory left, by the memory that it declares."""

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        without_room: set[int] = set()
        for job in list(queue):
            request = cluster.request(job)
            if request in without_room:
                continue
            if job.gpus > 1:
                slots = cluster.slots_for(job, cluster.fitting_nodes(job))
                placement = None if slots is None else placement_of(job, slots)
            else:
                slots_left = (
                    GpuSlot(row, at) for row, node in enumerate(cluster.nodes) for at in range(node.gpus)
                )
                slot = next((slot for slot in slots_left if self._fits(job, slot, cluster)), None)
                placement = None if slot is None else Placement(job, (slot,), job.share, True, True)
            if placement is None:
                without_room.add(request)
            else:
                yield placement

    @staticmethod
    def _fits(job: Job, slot: GpuSlot, cluster: Cluster) -> bool:
        return all(run.best_effort for run in cluster.jobs_on(slot)) and all_have_room([job], slot, cluster)


def run(cell: Cell) -> tuple[Cell, Found]:
    """Play one."""
    return simulated(cell) if cell.simulated else compiled(cell)


def compiled(cell: Cell) -> tuple[Cell, Found]:
    """Play one in its compiled world."""
    import pair_worlds
    from berth.policies.colocation.learned import PAIRS, pair_network_named

    controls = {WHOLE: pair_worlds.WHOLE, "greedy": pair_worlds.GREEDY, "random-sharing": pair_worlds.RANDOM}
    jobs, begin = jobs_of(replace(cell, policy="")), time.process_time()
    name, _, file = cell.policy.partition("?pairs=")
    network = pair_network_named(file or PAIRS) if name == "learned" else None
    how = controls.get(name, pair_worlds.PAIRS)
    played = world(cell.part, cell.mode, cell.gpus).play(jobs, network, how, cell.seed)
    spent, some = time.process_time() - begin, counted_of(range(len(jobs)))
    completion_s, wait_s = played.completion_s[some], played.wait_s[some]
    alone_s = np.mean([jobs[at].work_ms or 0 for at in some]) / 1000
    return cell, Found(
        float(completion_s.mean()), float(completion_s.mean() - alone_s), float(wait_s.mean()),
        float(wait_s.max()), 0, 0, spent,
    )  # fmt: skip


def simulated(cell: Cell) -> tuple[Cell, Found]:
    """Simulate one."""
    jobs, truth = jobs_of(replace(cell, policy="", simulated=False)), make_interference(cell.mode)
    knowledge = make_knowledge(KNOWLEDGE.get(cell.part, "oracle"), jobs, truth, cell.seed)
    policy: Policy = FirstFitByMemory()
    if cell.policy == BY_MEMORY:
        jobs = tuple(replace(job, share=Share(1000, PEAKS_MIB[job.application])) for job in jobs)
    else:
        policy = make_policy(cell.policy, Setting(cell.seed, knowledge=knowledge))
    cluster = Cluster(nodes_of(cell.part, cell.gpus))
    begun: dict[str, int] = {}
    ended: dict[str, int] = {}
    full = 0
    begin = time.process_time()
    for event in simulate(jobs, cluster, policy, knowledge=knowledge, interference=truth, seed=cell.seed):
        if event.kind is EventKind.START:
            begun.setdefault(event.job.id, event.time_ms)
        elif event.kind is EventKind.FINISH:
            ended[event.job.id] = event.time_ms
        elif event.kind is EventKind.FAIL and event.reason == Reason.OUT_OF_MEMORY:
            full += 1
    spent = time.process_time() - begin
    counted = [job for job in counted_of(jobs) if job.id in ended]
    waits = [begun[job.id] - job.submit_ms for job in counted]
    took = [ended[job.id] - job.submit_ms for job in counted]
    return cell, Found(
        float(np.mean(took)) / 1000,
        float(np.mean(took) - np.mean([job.work_ms or 0 for job in counted])) / 1000,
        float(np.mean(waits)) / 1000,
        max(waits) / 1000,
        len(jobs) - len(ended),
        full,
        spent,
    )


def counted_of(jobs: Sequence[Counted]) -> Sequence[Counted]:
    """Those whose completion counts."""
    fifth = len(jobs) // 5
    return jobs[fifth : len(jobs) - fifth]


def bound_s(cell: Cell) -> float:
    """A mean completion below which no schedule of the counted jobs comes.

    Speeds of jobs on one GPU, times what each uses of it alone, add up to no more than the GPU, whichever of the models
    of interference it is. A job's use of compute is counted on the model where it is least.
    """
    jobs = counted_of(jobs_of(replace(cell, policy="")))
    cards = [node.gpu_model for node in nodes_of(cell.part, cell.gpus) for _ in range(node.gpus)]
    use = mps().use_milli / 1000 if cell.mode == "mps" else 1.0
    rate = sum(card.cores for card in cards if card)
    size: dict[str, float] = {}
    for name, profile in thesis_profiles().items():
        by_card = [
            series(profile, card).usage[:, 0].mean() / 1000 * card.cores for card in set(cards) if card
        ]
        size[name] = use * min(by_card) / rate
    left: list[tuple[float, int]] = []
    now, total, at = 0.0, 0.0, 0
    while at < len(jobs) or left:
        until = jobs[at].submit_ms if at < len(jobs) else np.inf
        while left and now < until:
            need, submit_ms = heappop(left)
            if now + need > until:
                heappush(left, (need - (until - now), submit_ms))
                break
            now += need
            total += now - submit_ms
        if at < len(jobs):
            now = max(now, until)
            job = jobs[at]
            heappush(left, (job.gpus * size[job.application] * (job.work_ms or 0), job.submit_ms))
            at += 1
    alone_ms = sum(job.work_ms or 0 for job in jobs)
    return max(total, alone_ms) / len(jobs) / 1000


def kept_in(path: Path) -> dict[Cell, Found]:
    """The runs that `--keep` wrote to a file."""
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    # Before the worlds were compiled, `simulate` ran all of them, and no file said so.
    return {Cell(**{"simulated": True, **one["cell"]}): Found(**one["found"]) for one in kept}


def measured(wanted: list[Cell], keep: Path, slots: int) -> dict[Cell, Found]:
    """All runs, those that are kept among them, which are not run again; without slots these alone."""
    found = kept_in(keep) if keep.is_file() else {}
    missing = [cell for cell in wanted if cell not in found] if slots else []
    keep.parent.mkdir(parents=True, exist_ok=True)
    with keep.open("a") as file, ProcessPoolExecutor(max(1, slots)) as processes:
        for cell, one in processes.map(run, missing):
            found[cell] = one
            file.write(json.dumps({"cell": asdict(cell), "found": asdict(one)}) + "\n")
            file.flush()
    return {cell: found[cell] for cell in wanted if cell in found}


def less_pct(mine: list[Found], others: list[Found]) -> dict[str, float | None]:
    """By how much the mean completion of one is below that of another, per cent, paired by seed."""
    gaps = [100 * (a.completion_s / b.completion_s - 1) for a, b in zip(mine, others, strict=True)]
    interval = confidence_interval_95(gaps)
    told = [None if np.isnan(one) else float(one) for one in (interval.low, interval.high)]
    return {"mean": interval.mean, "low_95": told[0], "high_95": told[1]}


def less_before(found: dict[Cell, Found], before: dict[Cell, Found]) -> list[dict[str, object]]:
    """By how much `learned` is below that of an earlier version, in each world that both have run."""
    rows: list[dict[str, object]] = []
    both = [cell for cell in found if cell in before]
    for part, mode, load in dict.fromkeys((cell.part, cell.mode, cell.load) for cell in both):
        cells = [cell for cell in both if (cell.part, cell.mode, cell.load) == (part, mode, load)]
        if any(
            before[cell].completion_s != found[cell].completion_s
            for cell in cells
            if cell.policy == BY_MEMORY
        ):
            raise SystemExit(
                f"{part}, {mode}: runs of {BY_MEMORY} differ, so the truth does; expected one mps.json"
            )
        mine = [cell for cell in cells if cell.policy == "learned"]
        gap = less_pct([found[cell] for cell in mine], [before[cell] for cell in mine])
        then_s = float(np.mean([before[cell].completion_s for cell in mine]))
        rows.append({"part": part, "mode": mode, "load": load, "before_s": then_s, "less_pct": gap})
        print(
            f"{part}, {mode}, load {load:g}: {in_words(gap)} against {then_s:.1f} s before, {len(mine)} seeds"
        )
    return rows


def in_words(gap: dict[str, float | None]) -> str:
    """The mean, and the interval of two seeds or more."""
    within = "" if gap["low_95"] is None else f" [{gap['low_95']:+.1f}, {gap['high_95']:+.1f}]"
    return f"{gap['mean']:+.1f} %{within}"


World = tuple[str, str, float]
"""Part, mode and load."""


def by_world(found: dict[Cell, Found]) -> dict[World, dict[str, dict[int, Found]]]:
    """The runs of each world by policy and seed, of the seeds that all its policies have."""
    worlds: dict[World, dict[str, dict[int, Found]]] = {}
    for cell, one in found.items():
        policies = worlds.setdefault((cell.part, cell.mode, cell.load), {})
        policies.setdefault(cell.policy, {})[cell.seed] = one
    for policies in worlds.values():
        seeds = set.intersection(*map(set, policies.values()))
        for policy, runs in policies.items():
            policies[policy] = {seed: runs[seed] for seed in sorted(seeds)}
    return worlds


def table(found: dict[Cell, Found], gpus: int, minutes: float) -> list[dict[str, object]]:
    """A row for each world and policy, and the bound of each world."""
    rows: list[dict[str, object]] = []
    for (part, mode, load), of in by_world(found).items():
        mine = of.get("learned")
        if not mine:
            continue
        bounds = [bound_s(Cell(part, mode, load, "", seed, gpus, minutes)) for seed in mine]
        world = f"{part}, {mode}, load {load:g}"
        print(
            f"{world}: {len(mine)} seeds; no schedule is below {np.mean(bounds):.1f} s (a bound, no policy)"
        )
        for policy, by_seed in of.items():
            runs = list(by_seed.values())
            gap = less_pct(list(mine.values()), runs)
            above = [100 * (one.completion_s / bound - 1) for one, bound in zip(runs, bounds, strict=True)]
            rows.append(
                {
                    "part": part, "mode": mode, "load": load, "policy": policy, "seeds": len(runs),
                    "completion_s": float(np.mean([one.completion_s for one in runs])),
                    "delay_s": float(np.mean([one.delay_s for one in runs])),
                    "wait_s": float(np.mean([one.wait_s for one in runs])),
                    "longest_wait_s": max(one.longest_wait_s for one in runs),
                    "lost": sum(one.lost for one in runs),
                    "out_of_memory": sum(one.out_of_memory for one in runs),
                    "cpu_s": float(np.mean([one.cpu_s for one in runs])),
                    "learned_less_this_pct": gap,
                    "above_the_bound_pct": float(np.mean(above)),
                }
            )  # fmt: skip
            print(
                f"  {policy} {rows[-1]['completion_s']:.1f} s, learned less it {in_words(gap)},"
                f" {rows[-1]['above_the_bound_pct']:.0f} % above the bound; delay {rows[-1]['delay_s']:.1f} s,"
                f" wait {rows[-1]['wait_s']:.1f} s, longest"
                f" {rows[-1]['longest_wait_s']:.0f} s, {rows[-1]['lost']} lost, {rows[-1]['out_of_memory']} out of"
                f" memory, processor {rows[-1]['cpu_s']:.1f} s",
                flush=True,
            )
    return rows


def load_at(delays_s: dict[float, float], delay_s: float) -> float:
    """The load at which jobs reach this mean delay, interpolated linearly between loads; NaN outside them."""
    loads = sorted(delays_s)
    delays = np.maximum.accumulate([delays_s[load] for load in loads])
    if not delays[0] <= delay_s <= delays[-1]:
        return float("nan")
    return float(np.interp(delay_s, delays, loads))


def work_per_gpu(found: dict[Cell, Found]) -> list[dict[str, object]]:
    """How much more work a GPU does at equal mean delay, under `learned` than under each other; paired by seed."""
    rows: list[dict[str, object]] = []
    delays: dict[tuple[str, str], dict[str, dict[int, dict[float, float]]]] = {}
    for (part, mode, load), of in by_world(found).items():
        if part in ("mixed", "equal"):
            for policy, by_seed in of.items():
                for seed, one in by_seed.items():
                    seeds = delays.setdefault((part, mode), {}).setdefault(policy, {})
                    seeds.setdefault(seed, {})[load] = one.delay_s
    for (part, mode), policies in delays.items():
        for policy, seeds in policies.items():
            if policy == "learned" or "learned" not in policies:
                continue
            ratios = [
                load_at(policies["learned"][seed], EQUAL_DELAY_S) / load_at(by_load, EQUAL_DELAY_S)
                for seed, by_load in seeds.items()
            ]
            known = [ratio for ratio in ratios if not np.isnan(ratio)]
            if not known:
                print(
                    f"{part}, {mode}: the delays under learned and {policy} do not both come to {EQUAL_DELAY_S:g} s"
                )
                continue
            interval = confidence_interval_95(known)
            rows.append(
                {
                    "part": part, "mode": mode, "policy": policy, "delay_s": EQUAL_DELAY_S, "seeds": len(known),
                    "ratio": interval.mean,
                    "low_95": None if len(known) < 2 else interval.low,
                    "high_95": None if len(known) < 2 else interval.high,
                }
            )  # fmt: skip
            within = "" if len(known) < 2 else f" [{interval.low:.2f}, {interval.high:.2f}]"
            print(
                f"{part}, {mode}: at a mean delay of {EQUAL_DELAY_S:g} s learned does {interval.mean:.2f} times the"
                f" work per GPU of {policy}{within}, {len(known)} of {len(ratios)}",
                flush=True,
            )
    return rows


def draw_delays(rows: list[dict[str, object]], out: Path) -> None:
    """Mean delays over load, a panel for each part and mode and a line for each policy."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    from berth.plots import policy_styles
    from drawing import write_image

    shown = [row for row in rows if row["part"] in ("mixed", "equal")]
    panels = list(dict.fromkeys((row["part"], row["mode"]) for row in shown))
    policies = list(dict.fromkeys(str(row["policy"]) for row in shown))
    styles = policy_styles(policies)
    titles = [f"{'five GPU models' if part == 'mixed' else 'equal GPUs'}, {mode}" for part, mode in panels]
    figure = make_subplots(1, len(panels), shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.03)
    for column, panel in enumerate(panels, start=1):
        for policy in policies:
            line = [row for row in shown if (row["part"], row["mode"]) == panel and row["policy"] == policy]
            style = styles[policy]
            figure.add_trace(
                go.Scatter(
                    x=[row["load"] for row in line],
                    y=[row["delay_s"] for row in line],
                    name=policy,
                    legendgroup=policy,
                    showlegend=column == 1,
                    mode="lines+markers",
                    line={"color": style.colour, "dash": style.dash, "width": 2},
                ),
                1,
                column,
            )
        figure.update_xaxes(title_text="load: work over what whole GPUs do", row=1, col=column)
    figure.update_xaxes(matches="x")
    figure.update_yaxes(type="log", dtick=1)
    figure.update_yaxes(title_text="mean delay: wait and slow-down (s)", row=1, col=1)
    figure.update_layout(title="Mean delay over load", width=1400, height=460)
    write_image(figure, out)
    print(f"wrote {out}")


def decisions(policy: str, gpus: int, waiting: int, events: int) -> dict[str, float]:
    """Processor time in ms: to fill idle GPUs, and of decisions on full ones as jobs end and come."""
    truth = make_interference("mps")
    nodes = [Node(f"n{at}", 8, THESIS_GPU) for at in range(gpus // 8)]
    made = make_policy(policy, Setting(0, knowledge=Oracle((), truth)))
    filled: list[float] = []
    for seed in range(FIRST_SEED, FIRST_SEED + 4):
        cluster, queue = Cluster(nodes), Queue()
        for at, job in enumerate(workload_jobs("random", waiting, seed)):
            queue.add(replace(job, id=f"{at}"))
        spent = 0.0
        asked = iter(made(queue, cluster, 0))
        while True:
            begin = time.process_time()
            decision = next(asked, None)
            spent += time.process_time() - begin
            if decision is None:
                break
            if isinstance(decision, Placement):
                cluster.place(decision)
                queue.remove(decision.job)
        filled.append(1000 * spent)
    first = waiting + 4 * gpus
    jobs = [
        replace(job, id=f"{at}", submit_ms=max(0, at - first) * 20)
        for at, job in enumerate(workload_jobs("random", first + events, FIRST_SEED))
    ]
    took: list[float] = []

    def timed(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        spent = 0.0
        asked = iter(made(queue, cluster, now_ms))
        while True:
            begin = time.process_time()
            decision = next(asked, None)
            spent += time.process_time() - begin
            if decision is None:
                took.append(1000 * spent)
                return
            yield decision

    for _ in simulate(jobs, Cluster(nodes), timed, interference=truth):
        if len(took) > events:
            break
    later = np.array(took[1:])
    return {
        "fill_ms": float(np.median(filled[1:])),
        "median_ms": float(np.median(later)),
        "p99_ms": float(np.percentile(later, 99)),
        "decisions": len(later),
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--gpus", type=count, default=20)
    parser.add_argument("--seeds", type=count, default=10)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--keep", type=Path, default=Path("out/placement.jsonl"))
    parser.add_argument("--slots", type=count, default=1)
    parser.add_argument("--curve", type=Path, help="a .png, .svg or .html file for the delays over load")
    parser.add_argument("--before", type=Path, help="what --keep wrote of an earlier version")
    parser.add_argument("--no-runs", action="store_true", help="make the table of the runs that are kept")
    parser.add_argument("--simulate", action="store_true", help="mixed and equal GPUs too by `simulate`")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    asked = parser.parse_args()
    parts = asked.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"no part '{unknown[0]}'; there are {', '.join(PARTS)}")
    asked.parts = [part for part in parts if part != "decisions"]
    wanted = list(cells(asked))
    found = measured(wanted, asked.keep, 0 if asked.no_runs else asked.slots)
    rows = table(found, asked.gpus, asked.minutes)
    results: dict[str, object] = {"rows": rows, "work per GPU": work_per_gpu(found)}
    if asked.before is not None:
        results["learned less its earlier version"] = less_before(found, kept_in(asked.before))
    if asked.curve is not None:
        draw_delays(rows, asked.curve)
    if "decisions" in parts:
        for policy in ("greedy", "pairs", "learned"):
            results[f"decisions of {policy}"] = decided = decisions(policy, 1000, 10_000, 400)
            print(
                f"{policy}: fills 1,000 GPUs in {decided['fill_ms']:.0f} ms of processor time; on full GPUs median"
                f" {decided['median_ms']:.1f} ms, p99 {decided['p99_ms']:.1f} ms of {decided['decisions']:.0f}",
                flush=True,
            )
    save("placement", results)


if __name__ == "__main__":
    main()
