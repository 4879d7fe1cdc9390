"""How far predicted speeds of co-located jobs are from measured ones, on pairs and applications not fitted to.

    python bench/interference.py [--data FOLDER] [--write]

Lucid's pairs: five-fold over random pairs (asked: at most 0.037) and over applications held out in all their
settings (asked: at most 0.068), each over five ways to deal the folds, beside sharing of the card's capacity alone
and the law without corrections; and what nobody can reach who never says more than 1. Gavel's, five-fold over random
pairs. `--write` fits to all pairs and writes the coefficients that ship. Writes bench/results/interference.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from berth.interference.contention import Contention
from berth.interference.fitting import evaluate, fit, folds_of_applications, folds_of_pairs
from berth.interference.measured import measured as measured_model
from berth.interference.measurements import Measurements, read_measurements
from berth.interference.named import NamedPairs, Observation, fit_named, read_named
from berth.interference.speeds import GPU
from berth.interference.time_sliced import time_sliced
from harness import data_folder, save

SEEDS = 5
SHIPPED = Path(__file__).resolve().parents[1] / "src" / "berth" / "interference"


def capacity_alone(
    usage: np.ndarray, present: np.ndarray, capacity_mem_mib: int, *, xp: object = np
) -> np.ndarray:
    """Everybody gets what he asks for until the card is full, and from there the same part of it."""
    total = usage[..., GPU].sum(axis=-1, keepdims=True)
    return np.broadcast_to(1_000_000 // np.maximum(total, 1000), usage.shape[:-1])


def law_alone(model: Contention) -> Contention:
    return Contention(model.law, model.cells[:0], model.coefficients[:0])


def folded(
    measured: Measurements, folds: Callable[..., list[tuple[np.ndarray, np.ndarray]]]
) -> dict[str, list[float]]:
    """Mean absolute error of each model for each way to deal the folds."""
    made: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        errors: dict[str, list[tuple[float, int]]] = {}
        for train, test in folds(measured, seed):
            model, unseen = fit(measured.of(train)), measured.of(test)
            found = evaluate(model, unseen)
            law = evaluate(law_alone(model), unseen)
            plain = evaluate(capacity_alone, unseen)
            turns = evaluate(time_sliced, unseen)
            for name, mae in (
                ("measured", found.mae),
                ("measured, speeds alone", found.mae_speed),
                ("law without corrections", law.mae),
                ("capacity sharing alone", plain.mae),
                ("time-sliced", turns.mae),
            ):
                errors.setdefault(name, []).append((mae, len(unseen)))
        for name, rows in errors.items():
            maes, weights = zip(*rows, strict=True)
            made.setdefault(name, []).append(round(float(np.average(maes, weights=weights)), 4))
    return made


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
    measured = read_measurements(data / "lucid" / "single.csv", data / "lucid" / "colocate.csv")
    over = np.maximum(measured.speeds - 1, 0)
    read = measured_model().reading_milli(measured.usage[measured.pairs])
    results: dict[str, object] = {
        "pairs": len(measured),
        "published above 1": round(float((over > 0).mean()), 4),
        "largest published": float(measured.speeds.max()),
        "largest reading": int(read.max()) / 1000,
        "least error without a reading": round(float(over.mean()), 4),
    }
    print(results, flush=True)
    for title, folds in (("random pairs", folds_of_pairs), ("unseen applications", folds_of_applications)):
        rows = folded(measured, folds)
        results[title] = rows
        for name, maes in rows.items():
            print(
                f"{title}, {name}: mean {np.mean(maes):.4f}, {min(maes):.4f} to {max(maes):.4f}", flush=True
            )
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
    if asked.write:
        (SHIPPED / "measured.json").write_text(fit(measured).to_json(), encoding="utf-8")
        pairs = NamedPairs(
            {card: fit_named(seen) for card, seen in read_named(data / "gavel" / "pairs.csv").items()}
        )
        (SHIPPED / "gavel.json").write_text(pairs.to_json(), encoding="utf-8")
        print(f"wrote {SHIPPED / 'measured.json'} and gavel.json")
    save("interference", results)


if __name__ == "__main__":
    main()
