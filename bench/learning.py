"""Steps a second of environment and update, both signs of the thesis's equation 2, the time to beat the baselines, and
what the networks that ship do alone.

`python bench/learning.py [speed] [signs] [beat] [alone]`, by default all four. CPU time stands beside wall time: on a
machine that does other work too, the first tells more.

`python bench/learning.py tune --former FOLDER --out FOLDER` makes the networks that ship from those that `berth train`
made: each plays the thesis's workloads, sees what every start costs if it goes on, and learns from that. Then its
weights follow the gradient of total time, estimated from networks drawn around it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from berth.cluster import Cluster
from berth.engine import simulate
from berth.interference import make_interference, make_speeds
from berth.learning.domains import Domain
from berth.learning.environment import Environment, Settings
from berth.learning.forecast_learner import NEVER, ForecastSettings, Player, best_of, drawn_sets
from berth.learning.jobsets import JobSets, thesis_sets, thesis_task
from berth.learning.plan import VALIDATION_SEED, Plan, file_of, make
from berth.learning.queue_kernels import NONE, SEATS
from berth.learning.rollouts import NETWORK_ALONE, STEP_MS
from berth.learning.training import Point, Trained, TrainingSettings, train
from berth.model import EventKind, Job, Node
from berth.network.forecast_network import ForecastNetwork, scores
from berth.network.model_file import Model, model_bytes, read_model
from berth.plots.training import training_curve
from berth.policies.colocation.learned import model_named
from berth.profiles import FIRST_TRAINING_SEED, THESIS_GPU, WORKLOADS, workload_jobs
from berth_papers.baselines.image_learner import ImageLearner, PaperSettings
from drawing import write_image
from harness import BENCH, save

ASKED = {5: 80_000, 3: 250_000}
ENVIRONMENTS = 32
BASELINES = ("sjf+first-fit", "tetris-sharing", "deeprm-max", "deeprm-mean", "greedy")
BEATEN_ON = 10
TUNED = {"mps": 268, "time-sliced": 131}
"""Rounds of six sets that each network plays, of the workloads in turn."""


class Polishing(NamedTuple):
    """How total times are brought down."""

    steps: int
    sets: int
    """Sets of each workload in a step."""
    step: float
    """How far a step goes at first, in standard deviations of a layer's weights."""
    seed: int
    falls: bool
    """Whether steps become shorter, down to nothing."""


POLISHED = {
    "mps": Polishing(24, 80, 0.04, 31, falls=False),
    "time-sliced": Polishing(16, 50, 0.05, 32, falls=True),
}
DRAWN_PAIRS, DRAWN_APART = 8, 0.12
"""Pairs of networks that are drawn in a step, and how far from the present one, in the same unit."""
DRAWN_LAYERS = ("last", "second_bias", "first_bias", "second")
WITH_CHOICES = tuple(name for name in WORKLOADS if name != "GPUmemory_heavy")
"""On the other no two jobs fit beside one another."""
HELD_OUT = 5
"""Of this many rounds one is held out, to measure on."""
ONE = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])


def speed(runs: int = 7, iterations: int = 20) -> list[dict[str, float | int | str]]:
    """Environment and policy-gradient update together: 32 environments, images of 20 steps × 4 resources."""
    rows: list[dict[str, float | int | str]] = []
    task = thesis_task()
    sets = thesis_sets(task, "random", FIRST_TRAINING_SEED, 200)
    for slots, asked in ASKED.items():
        environment = Environment(task, make_speeds("time-sliced"), settings=Settings(slots))
        settings = PaperSettings(trajectories=8, sets=ENVIRONMENTS // 8)
        learner = ImageLearner(environment, sets, settings)
        many = jax.jit(
            lambda state, learner=learner: jax.lax.scan(
                lambda now, _: learner.iterate(now), state, None, length=iterations
            )
        )
        state = jax.block_until_ready(many(learner.begin(0)))[0]
        steps = iterations * settings.length * ENVIRONMENTS
        wall, cpu = [], []
        for _ in range(runs):
            begun, begun_cpu = time.perf_counter(), time.process_time()
            state = jax.block_until_ready(many(state))[0]
            wall.append(steps / (time.perf_counter() - begun))
            cpu.append(steps / (time.process_time() - begun_cpu))
        row = {"slots": slots, "device": jax.devices()[0].device_kind, "asked": asked}
        row |= {"steps_per_s": float(np.median(wall)), "best_steps_per_s": max(wall)}
        row |= {"steps_per_cpu_s": float(np.median(cpu))}
        rows.append(row)
        print(
            f"M = {slots}, {ENVIRONMENTS} environments on {row['device']}: {row['steps_per_s']:,.0f} steps/s"
            f" (best {row['best_steps_per_s']:,.0f}; {row['steps_per_cpu_s']:,.0f} a CPU second), asked {asked:,}"
        )
    if jax.default_backend() == "cpu":
        print(
            "no accelerator here: JAX sees CPUs only; run this where one is for its steps a second beside these"
        )
    return rows


def signs(drawn: str = ".html", iterations: int = 300) -> dict[str, list[dict[str, float | None]]]:
    """Equation 2 as mended and as printed, once each on `GPU_light`; the curves are drawn beside the results."""
    curves: dict[str, tuple[Point, ...]] = {}
    begun: dict[str, float] = {}
    for name in ("dqn", "dqn-as-printed"):
        plan = Plan(name, "GPU_light", ("time-sliced",), sets=200, validation=20)
        found = _trained(plan, TrainingSettings(iterations, measure_every=50))
        curves[name] = found.curve
        begun |= {} if found.begun is None else {name: found.begun}
        ends = [point.measured for point in found.curve if point.measured is not None]
        print(f"{name}: total time of one after the other: {', '.join(f'{value:.3f}' for value in ends)}")
    (BENCH / "results").mkdir(exist_ok=True)
    path = BENCH / "results" / f"learning_signs{drawn}"
    write_image(training_curve(curves, begun=begun), path)
    print(f"wrote {path}")
    return {name: [point._asdict() for point in curve] for name, curve in curves.items()}


def beat(out: Path | None, iterations: int = 40) -> dict[str, object]:
    """Train on `random` until it is faster than every baseline there, on unseen sets, all in the simulator."""
    plan = Plan("learned", "random", ("time-sliced",))
    sets = [workload_jobs("random", plan.jobs, seed) for seed in range(3_000_000, 3_000_000 + BEATEN_ON)]
    alone_ms = np.array([sum(job.work_ms or 0 for job in jobs) for jobs in sets])
    baselines = {name: float((_total_ms(sets, name) / alone_ms).mean()) for name in BASELINES}
    print("total time of one after the other:", {name: round(worth, 4) for name, worth in baselines.items()})
    begun, begun_cpu = time.perf_counter(), time.process_time()
    made = make(plan)
    learner = made.learner
    state = learner.begin(0)
    looking, looking_cpu, measured = 0.0, 0.0, []
    kept = Path(tempfile.mkdtemp(prefix="berth-learning-")) / "model.npz"
    for iteration in range(1, iterations + 1):
        state, figures = learner.iterate(state)
        wall, cpu = time.perf_counter() - begun - looking, time.process_time() - begun_cpu - looking_cpu
        at, at_cpu = time.perf_counter(), time.process_time()
        network = jax.tree.map(np.asarray, learner.network(state))
        point = Point(iteration, int(figures.decisions), wall, None, None)
        content = file_of(made, Trained(network, 1.0, iteration, (point,)), ("random",), 0)
        kept.write_bytes(content)
        worth = float((_total_ms(sets, f"learned?model={kept}") / alone_ms).mean())
        looking += time.perf_counter() - at
        looking_cpu += time.process_time() - at_cpu
        measured.append({"iteration": iteration, "seconds": wall, "cpu_s": cpu, "total_time": worth})
        print(f"  after {iteration} iterations, {wall:.0f} s ({cpu:.0f} CPU s): {worth:.4f}", flush=True)
        if worth < min(baselines.values()):
            print(f"beats all of them after {wall:.0f} s, compiling included ({cpu:.0f} CPU s); asked 60 s")
            break
    else:
        print(f"has not beaten all of them in {iterations} iterations")
    if out is not None:
        out.write_bytes(content)
    return {"plan": asdict(plan), "baselines": baselines, "measured": measured}


def alone(count: int = 60, first_seed: int = 2_100_000) -> list[dict[str, object]]:
    """What ships without plans and the rules, followed to the end of queues whose jobs are known.

    Where no two jobs fit beside one another, `learned` goes by joint progress instead of its network.
    """
    task = thesis_task()
    rows: list[dict[str, object]] = []
    for mode in ("time-sliced", "mps"):
        network = model_named(f"learned-{mode}").network
        for workload in WORKLOADS:
            sets = thesis_sets(task, workload, first_seed, count)
            player = Player(Domain(task, make_speeds(mode), sets, sets))
            player.model.network = network
            queue = np.stack([sets.application, sets.work_ms.astype(np.int64) * 1000], axis=-1)
            no_tenants, no_jobs = np.zeros((count, SEATS, 3), np.int64), np.full(count, NONE)
            length = np.full(count, queue.shape[1])
            mine = NETWORK_ALONE if workload in WITH_CHOICES else player.rules[1]
            totals = {
                name: player.model.followed(one, no_tenants, queue, no_jobs, length, STEP_MS) / 1000
                for name, one in zip(
                    ("sum of speeds", "joint progress", "rule", "network"),
                    (*player.rules, mine),
                    strict=True,
                )
            }
            best = min(totals, key=lambda name: (name == "network", totals[name].mean()))
            less_pct = 100 * (totals["network"] - totals[best]) / totals[best].mean()
            mean, half = float(less_pct.mean()), float(1.96 * less_pct.std(ddof=1) / count**0.5)
            print(
                f"{mode}, {workload}: {', '.join(f'{name} {one.mean():,.0f} s' for name, one in totals.items())};"
                f" network less {best} {mean:+.2f} % [{mean - half:+.2f}, {mean + half:+.2f}]",
                flush=True,
            )
            totals_s: dict[str, object] = {f"{name}_s": float(one.mean()) for name, one in totals.items()}
            rows.append(
                {"mode": mode, "workload": workload, "best": best, "less_pct": mean, "half_95": half}
                | totals_s
            )
    return rows


Moments = tuple[np.ndarray, np.ndarray, np.ndarray]
"""What is seen (N, C, INPUTS), what each start costs (N, C), infinite where it may not be, and the round (N,)."""


def tune(former: Path, out: Path) -> None:
    """Make the networks that ship, `learned-MODE.npz`, from the former ones."""
    for mode, rounds in TUNED.items():
        model = read_model(former / f"learned-{mode}.npz")
        played = play([known_world(mode, name) for name in WITH_CHOICES], model.network, rounds, seed=1)
        network = polish(mode, learn(model.network, *played), POLISHED[mode])
        content = model_bytes(tuned(model, network))
        (out / f"learned-{mode}.npz").write_bytes(content)


def known_world(mode: str, workload: str) -> Domain:
    """A workload of the thesis, to learn from and to measure on."""
    task = thesis_task()
    training = thesis_sets(task, workload, FIRST_TRAINING_SEED, 200)
    return Domain(task, make_speeds(mode), training, thesis_sets(task, workload, VALIDATION_SEED, 20))


def tuned(model: Model, network: ForecastNetwork) -> Model:
    """The model with another network, and what that is worth."""
    worths = []
    for world in (known_world(model.interference[0], name) for name in WITH_CHOICES):
        total_ms = Player(world).decided_ms(world.validation, network)
        worths.append(float(np.mean(total_ms / world.validation.work_ms.sum(axis=1))))
    figures = {"total_time_to_one_after_the_other": float(np.mean(worths))}
    command = f"python bench/learning.py tune, from {model.command}"
    return replace(model, network=network, figures=figures, command=command)


def play(worlds_of: Sequence[Domain], network: ForecastNetwork, rounds: int, seed: int) -> Moments:
    """Moments of the network's own play in worlds in turn, some of it astray, with what each start costs if the network
    goes on."""
    draw, players = np.random.default_rng(seed), [Player(one) for one in worlds_of]
    seen, costs, whose = [], [], []
    for number in range(rounds):
        player = players[number % len(players)]
        player.model.network = network
        some = drawn_sets(player.domain.sets, 6, draw)
        unit_s = ForecastSettings().unit * float(some.work_ms.mean()) / 1000
        worlds = player.model.begin(some)
        while not worlds.over.all():
            rows = np.flatnonzero(~worlds.over)
            here, action = worlds.take(rows), np.full(len(worlds.head), NONE, np.int64)
            inputs = player.model.inputs(here, here.allowed)
            judged = np.flatnonzero(draw.random(len(rows)) < 0.4)
            if len(judged):
                seen.append(inputs[judged].astype(np.float16))
                costs.append(player.worth_s(here.take(judged), [NETWORK_ALONE]) / unit_s)
                whose.append(np.full(len(judged), number + 1))
            value = np.where(here.allowed, scores(network, inputs, np), -np.inf)
            strays = draw.random(len(rows)) < 0.12
            value = np.where(strays[:, None] & here.allowed, draw.random(value.shape), value)
            action[rows] = best_of(value, here.allowed)
            worlds = player.model.advance(worlds, action)
    return np.concatenate(seen), np.concatenate(costs).astype(np.float32), np.concatenate(whose)


def learn(
    network: ForecastNetwork, inputs: np.ndarray, costs: np.ndarray, whose: np.ndarray, steps: int = 1500
) -> ForecastNetwork:
    """The network after as many steps on these moments, the mean of its latest weights."""
    lost = np.where(np.isfinite(costs), costs - costs.min(axis=1, keepdims=True), np.inf)
    held_out, settings = whose % HELD_OUT == 0, ForecastSettings()
    optimiser = optax.adam(optax.cosine_decay_schedule(1.5e-3, steps, 0.03))

    def loss(weights: ForecastNetwork, seen: jax.Array, cost: jax.Array) -> jax.Array:
        there = jnp.isfinite(cost)
        cost = jnp.where(there, jnp.minimum(cost, settings.most), 0.0)
        logs = jax.nn.log_softmax(jnp.where(there, scores(weights, seen, jnp), NEVER))
        wanted = jax.nn.softmax(jnp.where(there, -cost / settings.softness, NEVER))
        nearly = -jnp.sum(wanted * jnp.where(there, logs, 0.0), axis=-1)
        return jnp.mean(jnp.sum(jnp.exp(logs) * cost, axis=-1) + settings.soft * nearly)

    @jax.jit
    def update(weights, mean, state, seen, cost):  # type: ignore[no-untyped-def]
        gradient = jax.grad(loss)(weights, seen, cost)
        change, state = optimiser.update(gradient, state, weights)
        weights = optax.apply_updates(weights, change)
        return weights, optax.incremental_update(weights, mean, settings.averaged), state

    weights = mean = jax.tree.map(lambda one: jnp.asarray(one, jnp.float32), network)
    state, draw, learned_from = optimiser.init(weights), np.random.default_rng(0), np.flatnonzero(~held_out)
    for _ in range(steps):
        some = draw.choice(learned_from, settings.batch)
        weights, mean, state = update(weights, mean, state, inputs[some].astype(np.float32), lost[some])
    found = ForecastNetwork(*(np.asarray(one, np.float64) for one in mean))
    for name, one in (("before", network), ("after", found)):
        value = np.where(np.isfinite(lost), scores(one, inputs.astype(np.float64), np), -np.inf)
        loses = np.take_along_axis(lost, value.argmax(axis=1)[:, None], axis=1)[:, 0]
        print(
            f"a start loses {name}: {loses[~held_out].mean():.3f}, held out {loses[held_out].mean():.3f}",
            flush=True,
        )
    return found


def polish(mode: str, network: ForecastNetwork, how: Polishing) -> ForecastNetwork:
    """The network after steps by which total times fall, the mean of the latest.

    Salimans et al., "Evolution strategies as a scalable alternative to reinforcement learning", 2017, with pairs of
    opposite draws that play the same sets.
    """
    players = [Player(known_world(mode, name)) for name in WITH_CHOICES]
    draw = np.random.default_rng(how.seed)
    layers = [getattr(network, name) for name in DRAWN_LAYERS]
    scale = np.concatenate([np.full(one.size, one.std()) for one in layers])
    ends = np.cumsum([one.size for one in layers])

    def with_weights(weights: np.ndarray) -> ForecastNetwork:
        parts = zip(DRAWN_LAYERS, layers, np.split(weights, ends[:-1]), strict=True)
        return network._replace(**{name: part.reshape(one.shape) for name, one, part in parts})

    def total(weights: np.ndarray, sets: Sequence[JobSets]) -> np.ndarray:
        """Mean total time in each world, as a part of one job after another."""
        found = with_weights(weights)
        return np.array(
            [
                np.mean(player.decided_ms(some, found) / some.work_ms.sum(axis=1))
                for player, some in zip(players, sets, strict=True)
            ]
        )

    weights = np.concatenate([one.ravel() for one in layers])
    mean, momentum, size = weights.copy(), np.zeros_like(weights), 0.0
    for number in range(1, how.steps + 1):
        sets = [drawn_sets(player.domain.sets, how.sets, draw) for player in players]
        now, gradient = total(weights, sets), np.zeros_like(weights)
        for _ in range(DRAWN_PAIRS):
            away = draw.normal(size=len(weights))
            over, under = (total(weights + side * DRAWN_APART * scale * away, sets) for side in (1, -1))
            gradient += 100 * np.mean((over - under) / now) / (2 * DRAWN_APART) * away / DRAWN_PAIRS
        momentum, size = 0.9 * momentum + 0.1 * gradient, 0.99 * size + 0.01 * np.mean(gradient**2)
        far = how.step * (0.5 + 0.5 * np.cos(np.pi * (number - 1) / how.steps) if how.falls else 1.0)
        towards = momentum / (1 - 0.9**number) / np.sqrt(size / (1 - 0.99**number))
        weights = weights - far * scale * towards
        mean += (weights - mean) * max(0.1, 1 / number)
        print(f"step {number}: {mode} takes {100 * now.mean():.2f} % of one job after another", flush=True)
    return with_weights(mean)


def _total_ms(sets: Sequence[Sequence[Job]], policy: str) -> np.ndarray:
    """Total time of each set on one GPU of the thesis."""
    interference = make_interference("time-sliced")
    totals = []
    for jobs in sets:
        events = simulate(jobs, ONE, policy, interference=interference)
        totals.append(max(event.time_ms for event in events if event.kind == EventKind.FINISH))
    return np.array(totals)


def _trained(plan: Plan, settings: TrainingSettings) -> Trained:
    made = make(plan)
    return train(made.learner, made.measure, settings)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=[], metavar="speed|signs|beat|alone|tune")
    parser.add_argument("--out", type=Path, help="write the model of `beat`, or the folder of `tune`")
    parser.add_argument("--former", type=Path, help="folder of the networks that `tune` begins with")
    parser.add_argument("--drawn", default=".html", help=".html, .png or .svg for the curves of `signs`")
    given = parser.parse_args()
    parts = given.parts or ["speed", "signs", "beat", "alone"]
    if "tune" in parts:
        if given.former is None or given.out is None:
            parser.error("tune needs --former FOLDER and --out FOLDER")
        tune(given.former, given.out)
        return
    results: dict[str, object] = {}
    path = BENCH / "results" / "learning.json"
    if path.exists():
        results = json.loads(path.read_text())["results"]
    if "speed" in parts:
        results["speed"] = speed()
    if "signs" in parts:
        results["signs"] = signs(given.drawn)
    if "beat" in parts:
        results["beat"] = beat(given.out)
    if "alone" in parts:
        results["alone"] = alone()
    save("learning", results)


if __name__ == "__main__":
    main()
