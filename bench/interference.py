"""How far predicted speeds of co-located jobs are from measured ones, on pairs and applications not fitted to.

    python bench/interference.py [--data FOLDER] [--write]

Measured in turn:

- Lucid's pairs, five-fold, each over five ways to deal the folds: random pairs (asked: at most 0.043), applications
  held out (asked: at most 0.062), and models held out in all their settings;
- the same fit with the applications that it has seen known by name;
- controls: a monotone boosting on all six numbers that are published of an application alone, a constant, sharing of
  the card's capacity alone, and `time-sliced`;
- how much of the card the pairs use together, as NVML counts it and as effective use;
- MISO's slices, each model held out (asked: at most 0.05);
- Gavel's pairs, five-fold;
- two engines that serve LLMs on one A100.

`--write` fits to everything and writes the coefficients that ship. Writes bench/results/interference.json.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lightgbm
import numpy as np

from berth.interference import make_speeds
from berth.interference.named import NamedPairs
from berth.interference.speeds import GPU
from berth.interference.time_sliced import time_sliced
from berth_papers.interference.fitting import (
    evaluate,
    fit,
    folds_of_applications,
    folds_of_models,
    folds_of_pairs,
)
from berth_papers.interference.measurements import Measurements, read_measurements
from berth_papers.interference.mig_fitting import fit_slices, held_up, read_slices, speed_on
from berth_papers.interference.named_fitting import Observation, fit_named, read_named
from harness import data_folder, save

SEEDS = 5
SHIPPED = Path(__file__).resolve().parents[1] / "src" / "berth" / "interference"
SIX = ("batchsize", "amp", "speed", "gpu_util", "gmem_util", "gmem")
FALLS = [0, 0, 0, -1, -1, -1]
"""Speed falls with what the neighbour uses; the first three are no use of the card."""

SERVING = {
    "time-sliced": {2: 0.445, 4: 0.450, 8: 0.512, 16: 0.616, 32: 0.728},
    "mps": {2: 0.635, 4: 0.604, 8: 0.680, 16: 0.778, 32: 0.879},
}
"""Speed of two engines on one A100 by the number of requests that each serves at once, as a fraction of an engine that
has the card. Under `mps` each has half of the multiprocessors (NVIDIA, *Dynamo: Interpreting GPU Sharing Results*)."""
ENGINE = (1000, 38_000, 900, 0)
"""What an engine is assumed to use, as nothing of it is published: the GPU all of the time, its memory most of it."""

Folds = Callable[..., list[tuple[np.ndarray, np.ndarray]]]


def capacity_alone(
    usage: np.ndarray, present: np.ndarray, capacity_mem_mib: int, *, xp: object = np
) -> np.ndarray:
    """Everybody gets what he asks for until the card is full, and from there the same part of it."""
    total = usage[..., GPU].sum(axis=-1, keepdims=True)
    return np.broadcast_to(1_000_000 // np.maximum(total, 1000), usage.shape[:-1])


def sides(measured: Measurements) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each observation the application, its neighbour and its speed."""
    pairs, speeds = measured.pairs, measured.speeds
    mine = np.concatenate([pairs[:, 0], pairs[:, 1]])
    return mine, np.concatenate([pairs[:, 1], pairs[:, 0]]), np.concatenate([speeds[:, 0], speeds[:, 1]])


def boosted(train: Measurements, test: Measurements, numbers: np.ndarray) -> float:
    """The control: boosting on the six numbers of both, never above 1 and monotone in the neighbour's use."""
    mine, theirs, speed = sides(train)
    settings = {"objective": "huber", "alpha": 0.05, "verbose": -1, "num_threads": 1, "seed": 0}
    settings |= {"min_data_in_leaf": 5, "monotone_constraints": [0] * 6 + FALLS}
    data = lightgbm.Dataset(np.concatenate([numbers[mine], numbers[theirs]], axis=1), speed)
    trees = lightgbm.train(settings, data, 200)
    mine, theirs, speed = sides(test)
    found = trees.predict(np.concatenate([numbers[mine], numbers[theirs]], axis=1))
    return float(np.abs(np.clip(np.asarray(found), 0, 1) - speed).mean())


def on_engines() -> dict[str, dict[str, float]]:
    """The speed that two engines are predicted to have, and how far the measured ones are from it."""
    rows, there = np.array([ENGINE] * 2, dtype=np.int32), np.ones(2, dtype=bool)
    found = {}
    for mode, speeds in SERVING.items():
        predicted = float(make_speeds(mode)(rows, there, 0)[0]) / 1000
        errors = [abs(predicted - speed) for speed in speeds.values()]
        found[mode] = {"predicted": predicted, "mae": round(float(np.mean(errors)), 4)}
    return found


def folded(measured: Measurements, folds: Folds, numbers: np.ndarray) -> dict[str, list[float]]:
    """Mean absolute error of each model for each way to deal the folds."""
    made: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        errors: dict[str, list[tuple[float, int]]] = {}
        for train, test in folds(measured, seed):
            seen, unseen = measured.of(train), measured.of(test)
            median = np.median(np.minimum(seen.speeds, 1))
            fitted = fit(seen)
            for name, mae in (
                ("mps", evaluate(replace(fitted, names={}), unseen).mae),
                ("mps, known by name", evaluate(fitted, unseen).mae),
                ("boosting on the six numbers", boosted(seen, unseen, numbers)),
                ("a constant", float(np.abs(unseen.speeds - median).mean())),
                ("capacity sharing alone", evaluate(capacity_alone, unseen).mae),
                ("time-sliced", evaluate(time_sliced, unseen).mae),
            ):
                errors.setdefault(name, []).append((mae, len(unseen)))
        for name, rows in errors.items():
            maes, weights = zip(*rows, strict=True)
            made.setdefault(name, []).append(round(float(np.average(maes, weights=weights)), 4))
    return made


def together(measured: Measurements) -> dict[str, object]:
    """How much of the card each pair uses together, of the speeds as measured, at most 1."""
    model = fit(measured)
    usage, speeds = measured.usage[measured.pairs], np.minimum(measured.speeds, 1)
    found: dict[str, object] = {"use of a GPU that is busy all of the time": model.use_milli / 1000}
    for name, used in (("NVML", usage[..., GPU] / 1000), ("effective", model.effective_milli(usage) / 1000)):
        sums = (used * speeds).sum(axis=1)
        found[name] = {
            "above 1": round(float((sums > 1).mean()), 3),
            "p50, p90, p99": np.quantile(sums, (0.5, 0.9, 0.99)).round(3).tolist(),
        }
    return found


def on_slices(path: Path) -> dict[str, float]:
    """Errors on the slices of models that were not fitted, from their speed on the smallest that they fit in."""
    trainings = read_slices(path)
    errors, constant = [], []
    for model in sorted({one.model for one in trainings}):
        seen = [one for one in trainings if one.model != model]
        found = fit_slices(seen)
        for _, _, speeds in (one for one in trainings if one.model == model):
            smallest = min(speeds)
            c = held_up(found, smallest, speeds[smallest])
            for size in speeds:
                if size != smallest:
                    errors.append(abs(speed_on(found, size, c) - speeds[size]))
                    known = [one.speeds[size] for one in seen if size in one.speeds]
                    constant.append(abs(float(np.median(known)) - speeds[size]))
    return {
        "trainings": len(trainings),
        "speeds": len(errors),
        "mae": round(float(np.mean(errors)), 4),
        "a constant for each slice": round(float(np.mean(constant)), 4),
    }


def named_error(known: dict[str, tuple[int, int]], card: str, unseen: list[Observation]) -> list[float]:
    pairs = NamedPairs({card: known})
    found = []
    for mine, theirs, speed in unseen:
        predicted = pairs.speeds_milli((mine, theirs), card)
        found.append(abs((predicted[0] / 1000 if predicted else 0.5) - speed))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--write", action="store_true", help="Write the coefficients that ship.")
    asked = parser.parse_args()
    data = asked.data or data_folder()
    alone = data / "lucid" / "single.csv"
    measured = read_measurements(alone, data / "lucid" / "colocate.csv")
    with alone.open(newline="") as file:
        numbers = np.array([[float(row[name]) for name in SIX] for row in csv.DictReader(file)])
    over = np.maximum(measured.speeds - 1, 0)
    results: dict[str, object] = {
        "pairs": len(measured),
        "published above 1": round(float((over > 0).mean()), 4),
        "least error of speeds up to 1": round(float(over.mean()), 4),
        "used together": together(measured),
    }
    print(results, flush=True)
    for title, folds in (
        ("random pairs", folds_of_pairs),
        ("unseen applications", folds_of_applications),
        ("unseen models", folds_of_models),
    ):
        rows = folded(measured, folds, numbers)
        results[title] = rows
        for name, maes in rows.items():
            print(
                f"{title}, {name}: mean {np.mean(maes):.4f}, {min(maes):.4f} to {max(maes):.4f}", flush=True
            )
    slices = data / "miso_mig" / "mig_speeds.csv"
    results["slices of unseen models"] = on_slices(slices)
    print(f"slices of unseen models: {results['slices of unseen models']}", flush=True)
    print(f"fitted to all: {fit_slices(read_slices(slices))}", flush=True)
    cards = {}
    for card, observations in read_named(data / "gavel" / "pairs.csv").items():
        order = np.random.default_rng(0).permutation(len(observations))
        errors: list[float] = []
        for fold in range(5):
            test = set(order[fold::5].tolist())
            known = fit_named([each for at, each in enumerate(observations) if at not in test])
            errors += named_error(known, card, [observations[at] for at in sorted(test)])
        median = float(np.median([speed for _, _, speed in observations]))
        constant = float(np.mean([abs(speed - median) for _, _, speed in observations]))
        cards[card] = {
            "speeds": len(observations),
            "mae": round(float(np.mean(errors)), 4),
            "constant": round(constant, 4),
        }
        print(f"named pairs, {card}: {cards[card]}", flush=True)
    results["named"] = cards
    results["engines"] = on_engines()
    print(f"engines that serve LLMs: {results['engines']}", flush=True)
    if asked.write:
        (SHIPPED / "mps.json").write_text(replace(fit(measured), names={}).to_json(), encoding="utf-8")
        pairs = NamedPairs(
            {card: fit_named(seen) for card, seen in read_named(data / "gavel" / "pairs.csv").items()}
        )
        (SHIPPED / "gavel.json").write_text(pairs.to_json(), encoding="utf-8")
        print(f"wrote mps.json and gavel.json to {SHIPPED}")
    save("interference", results)


if __name__ == "__main__":
    main()
