"""The learners of `berth train` side by side at an equal budget of processor seconds.

Each is trained on the thesis's five workloads under one model of interference, all that it does counted, compiling and
what comes before the first iteration too, but not the measurements. At equal points of the budget its network plays
sets of jobs that nobody is trained on, as the policy that ships would decide by it, in the simulator: total time over
that of one job after the other. What comes out best of these points plays further sets, beside `greedy` and what ships.

    XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1" OMP_NUM_THREADS=1 \\
        python bench/learners.py [--budget-s 300] [--learners ppo,rollouts] [--interference mps] [--seed 0]

`ppo-then-rollouts` is `ppo` for half of the budget, gone on from by `rollouts` with the other half. Whoever stops it
goes on with the same command from what is in `--kept`. Writes bench/results/learners.json and a plot.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

import berth
from berth.cli.files import checked_place
from berth.cli.progress import progress_bar
from berth.cluster import Cluster
from berth.engine import simulate
from berth.files import whole_file
from berth.interference import make_interference, make_speeds
from berth.knowledge import Oracle
from berth.learning.learners import LEARNERS
from berth.learning.plan import Plan, make, model_of
from berth.learning.training import Trained, TrainingSettings, train
from berth.model import EventKind, Node
from berth.network.model_file import Model, model_bytes, read_model
from berth.plots.style import INK, dress, policy_styles
from berth.policies import Setting, make_policy
from berth.policies.colocation.learned import model_named, shipped_for
from berth.profiles import THESIS_GPU, WORKLOADS, workload_jobs
from berth.report.image import write_image
from harness import BENCH, save

COMPARED = ("rollouts", "ppo-then-rollouts", "ppo", "double-dqn")
THEN = "-then-"
UNDER = ("mps", "time-sliced")
POINTS_SEED, TABLE_SEED = 2_000_000, 2_500_000
"""Sets that say which point of a training is best, and sets for the table. Experiments use seeds below 1,000,000."""
JOBS = 30
ONE = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
ENDLESS = 10**9

Curve = list[tuple[float, float]]
"""Processor seconds, and total time over that of one job after the other."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for."""

    budget_s: float
    points: int
    point_sets: int
    """Sets of each workload that are played at each point."""
    table_sets: int
    """Sets of each workload for the table."""
    seed: int
    kept: Path


class ProcessorClock:
    """Seconds of all of this process's threads, but for what is not to count."""

    def __init__(self) -> None:
        self.left_out_s = time.process_time()

    def __call__(self) -> float:
        """Seconds so far."""
        return time.process_time() - self.left_out_s

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It stands meanwhile."""
        at = time.process_time()
        try:
            yield
        finally:
            self.left_out_s += time.process_time() - at


def played(policy: str, workload: str, interference: str, seed: int) -> float:
    """Total time of a set of jobs on one GPU of the thesis, over that of one after the other."""
    jobs = workload_jobs(workload, JOBS, seed)
    truth = make_interference(interference)
    chosen = make_policy(policy, Setting(seed, knowledge=Oracle(jobs, truth)))
    events = simulate(jobs, ONE, chosen, interference=truth)
    last_ms = max(event.time_ms for event in events if event.kind == EventKind.FINISH)
    return last_ms / sum(job.work_ms for job in jobs)


def mean_played(policy: str, interference: str, first_seed: int, count: int) -> float:
    """The mean over so many sets of each workload."""
    seeds = range(first_seed, first_seed + count)
    return float(np.mean([played(policy, name, interference, seed) for name in WORKLOADS for seed in seeds]))


def trained(learner: str, interference: str, asked: Asked) -> Curve:
    """The curve of one training, done now or kept."""
    first, _, second = learner.partition(THEN)
    begun: Curve = []
    if any(name.startswith(f"{first}{THEN}") for name in COMPARED):  # others go on from its half
        begun = piece(f"{first}-half", first, interference, asked, asked.budget_s / 2, first)
    if not second:
        return piece(learner, learner, interference, asked, asked.budget_s, learner)
    start = read_model(asked.kept / f"{first}-half-{interference}.npz")
    went_on = piece(learner, second, interference, asked, asked.budget_s / 2, learner, start)
    return begun + [(seconds + begun[-1][0], worth) for seconds, worth in went_on]


def piece(
    label: str,
    learner: str,
    interference: str,
    asked: Asked,
    budget_s: float,
    folder: str,
    start: Model | None = None,
) -> Curve:
    """Train for so long, on from what the folder keeps; the best network is written under the label."""
    name = f"{label}-{interference}"
    done, model_file = (asked.kept / f"{name}{ending}" for ending in (".json", ".npz"))
    what = {"budget_s": budget_s, "seed": asked.seed, "points": asked.points, "point_sets": asked.point_sets}
    kept = json.loads(done.read_text()) if done.exists() else {}
    if kept.get("asked") == what:
        return [(seconds, worth) for seconds, worth in kept["curve"]]
    made = make(Plan(learner, interference=(interference,)), start=start)
    clock = ProcessorClock()
    aside_file = asked.kept / f"{name}.now.npz"

    def write(path: Path, result: Trained) -> None:
        with whole_file(path) as aside:
            aside.write_bytes(model_bytes(model_of(made, result, WORKLOADS, asked.seed)))

    def measure(network: Any) -> float:
        with clock.stopped():
            write(aside_file, Trained(jax.tree.map(np.asarray, network), 1.0, 0))
            policy = f"{LEARNERS[learner].ships_as}?model={aside_file}"
            return mean_played(policy, interference, POINTS_SEED, asked.point_sets)

    with progress_bar(f"training {name}", long=True) as update:

        def progress(done: float, _total: float, said: str) -> None:
            if update is not None:
                update(min(clock(), budget_s), budget_s, f"{done:.0f} iterations, {said}")

        result = train(
            made.learner,
            measure,
            TrainingSettings(
                ENDLESS, asked.seed, ENDLESS, budget_s=budget_s, measure_every_s=asked.budget_s / asked.points
            ),
            training=made.described,
            folder=asked.kept / f"{folder}-{interference}",
            resume=True,
            progress=progress,
            clock=clock,
        )
    aside_file.unlink()
    curve = [] if result.begun is None else [(0.0, result.begun)]
    curve += [(point.seconds, point.measured) for point in result.curve if point.measured is not None]
    write(model_file, result)
    with whole_file(done) as aside:
        aside.write_text(json.dumps({"asked": what, "curve": curve}, indent=1) + "\n")
    return curve


def table_of(
    policies: Mapping[str, str], interference: str, asked: Asked
) -> dict[str, dict[str, list[float]]]:
    """Of each policy the total time of each set of each workload; what was played before is kept."""
    path = asked.kept / f"played-{interference}.json"
    known: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}
    seeds = range(TABLE_SEED, TABLE_SEED + asked.table_sets)
    with progress_bar(f"playing under {interference}", long=True) as update:
        for at, (name, policy) in enumerate(policies.items()):
            found = known.setdefault(_identity(policy, interference), {})
            for workload in WORKLOADS:
                for seed in seeds:
                    if f"{workload} {seed}" not in found:
                        found[f"{workload} {seed}"] = played(policy, workload, interference, seed)
            with whole_file(path) as aside:
                aside.write_text(json.dumps(known) + "\n")
            if update is not None:
                update(at + 1, len(policies), name)
    return {
        name: {
            workload: [known[_identity(policy, interference)][f"{workload} {seed}"] for seed in seeds]
            for workload in WORKLOADS
        }
        for name, policy in policies.items()
    }


def _identity(policy: str, interference: str) -> str:
    """The policy, and which bytes its model has, be it one of a file or the one that ships."""
    name, _, path = policy.partition("?model=")
    if path:
        model = Path(path).read_bytes()
    elif any(way.ships_as == name for way in LEARNERS.values()):
        model = model_bytes(model_named(shipped_for(name, make_speeds(interference))))
    else:
        return policy
    return f"{policy} {sha256(model + _sources()).hexdigest()[:16]}"


@cache
def _sources() -> bytes:
    """What decides and what simulates, as it is now."""
    folder = Path(berth.__file__).parent
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py")))


def paired(one: Mapping[str, list[float]], other: Mapping[str, list[float]]) -> dict[str, float]:
    """Mean of the differences set by set, and half of its 95 % interval."""
    gap = np.concatenate([np.subtract(one[name], other[name]) for name in WORKLOADS])
    return {"mean": float(gap.mean()), "half_interval": float(1.96 * gap.std(ddof=1) / np.sqrt(len(gap)))}


def drawn(curves: Mapping[str, Mapping[str, Curve]], levels: Mapping[str, float]) -> go.Figure:
    """Total time over processor seconds, a line a learner, one model of interference beside the other."""
    figure = make_subplots(rows=1, cols=len(curves), horizontal_spacing=0.08)
    names = dict.fromkeys(name for found in curves.values() for name in found)
    for name, style in policy_styles(names).items():
        for column, found in enumerate(curves.values(), start=1):
            if name not in found:
                continue
            figure.add_scatter(
                x=[seconds for seconds, _ in found[name]],
                y=[worth for _, worth in found[name]],
                name=name, legendgroup=name, showlegend=column == 1, mode="lines+markers",
                line={"color": style.colour, "dash": style.dash}, row=1, col=column,
            )  # fmt: skip
    for column, (interference, found) in enumerate(curves.items(), start=1):
        # A network that begins with nothing is far above all others: its line comes in from beyond the picture.
        trained_by_then = [worth for curve in found.values() for seconds, worth in curve if seconds > 0]
        shown = [levels[interference], *trained_by_then]
        room = max(0.005, 0.15 * (max(shown) - min(shown)))
        figure.update_yaxes(range=[min(shown) - room, max(shown) + room], row=1, col=column)
        figure.add_hline(
            levels[interference], row=1, col=column, line={"color": INK, "width": 1, "dash": "dot"},
            annotation={"text": "greedy", "font": {"size": 12}}, annotation_position="top right",
        )  # fmt: skip
        figure.add_annotation(
            text=f"{interference}: total time over one after the other", x=0, y=1, xanchor="left", yanchor="bottom",
            xref=f"x{column if column > 1 else ''} domain", yref=f"y{column if column > 1 else ''} domain",
            yshift=3, showarrow=False, font={"size": 13},
        )  # fmt: skip
    dress(figure, "Learners at an equal budget, on sets not trained on", height=420)
    figure.update_layout(margin={"t": 104}, legend={"y": 1.12})
    figure.update_xaxes(title_text="processor seconds")
    return figure


def main() -> None:
    """Train what is not yet trained, play the sets, print, save and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget-s", type=float, default=300.0, help="processor seconds of each training")
    parser.add_argument("--learners", default=",".join(COMPARED), help="also deeprm-max, deeprm-mean")
    parser.add_argument("--interference", default=",".join(UNDER))
    parser.add_argument("--points", type=int, default=4, help="equal parts of the budget")
    parser.add_argument("--point-sets", type=int, default=6, help="sets of each workload at each point")
    parser.add_argument("--sets", type=int, default=12, help="sets of each workload for the table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, default=Path("out/learners"), help="what is done already")
    parser.add_argument("--drawn", type=Path, default=BENCH / "results" / "learners.html")
    given = parser.parse_args()
    asked = Asked(given.budget_s, given.points, given.point_sets, given.sets, given.seed, given.kept)
    asked.kept.mkdir(parents=True, exist_ok=True)
    (BENCH / "results").mkdir(exist_ok=True)
    checked_place(given.drawn)
    learners, under = given.learners.split(","), given.interference.split(",")
    curves = {
        interference: {learner: trained(learner, interference, asked) for learner in learners}
        for interference in under
    }
    rows = {}
    for interference in under:
        policies = {name: name for name in ("greedy", *shipped(learners))}
        for learner in learners:
            ships_as = LEARNERS[learner.rpartition(THEN)[2]].ships_as
            policies[f"{learner}, trained"] = (
                f"{ships_as}?model={asked.kept / f'{learner}-{interference}.npz'}"
            )
        found = table_of(policies, interference, asked)
        rows[interference] = {
            name: {
                "total_time": float(np.mean([np.mean(found[name][workload]) for workload in WORKLOADS])),
                "by_workload": {workload: float(np.mean(found[name][workload])) for workload in WORKLOADS},
                "to_greedy": paired(found[name], found["greedy"]),
                "to_shipped_dqn": paired(found[name], found["learned"]),
            }
            for name in policies
        }
        print(f"{interference}, {asked.table_sets} sets of each workload, total time of one after the other")
        for name, row in rows[interference].items():
            gap, to_dqn = row["to_greedy"], row["to_shipped_dqn"]
            print(
                f"  {name:24} {row['total_time']:.4f}; to greedy {gap['mean']:+.4f} ± {gap['half_interval']:.4f};"
                f" to what ships as learned {to_dqn['mean']:+.4f} ± {to_dqn['half_interval']:.4f}"
            )
    levels = {name: mean_played("greedy", name, POINTS_SEED, asked.point_sets) for name in under}
    write_image(drawn(curves, levels), given.drawn)
    print(f"wrote {given.drawn}")
    save("learners", {"asked": {**asdict(asked), "kept": str(asked.kept)}, "curves": curves, "table": rows})


def shipped(learners: Iterable[str]) -> list[str]:
    """The policies whose models ship that these learners are compared with."""
    return list(
        dict.fromkeys(
            (
                "learned",
                *(name for name in learners if LEARNERS.get(name, LEARNERS["learned"]).shown != "series"),
            )
        )
    )


if __name__ == "__main__":
    main()
