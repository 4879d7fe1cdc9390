"""On a machine with a GPU and PyTorch: pairs of small trainings alone and together, beside what `mps` predicts.

    python bench/colocation_real_gpu.py [--gpu 0] [--seconds 20] [--pairs 6] [--model mps]

Each of six trainings runs alone while its profile is recorded through NVML, as `berth profile record` does; then pairs
of them run at once, and both are timed while both train. The profiles alone go into the model. The last line is the
mean absolute error, to be set beside that of the published pairs. Without a GPU or PyTorch it says so and runs nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from berth.errors import ProfileError
from berth.interference import make_speeds
from berth.model import Profile
from berth.profiles import series
from berth.profiles.recorder import NvmlCard, record
from harness import save
from small_trainings import NAMES

SCRIPT = Path(__file__).with_name("small_trainings.py")
Notes = list[tuple[float, int]]
"""When (s) how many steps were done."""


def command(name: str, seconds: float, file: Path) -> list[str]:
    return [sys.executable, str(SCRIPT), name, str(seconds), str(file)]


def rate(notes: Notes, begin_s: float, end_s: float) -> float:
    """Steps per second between two moments."""
    at, steps = np.array(notes, dtype=np.float64).T
    done = np.interp([begin_s, end_s], at, steps)
    return float((done[1] - done[0]) / (end_s - begin_s))


def alone(card: NvmlCard, name: str, seconds: float, folder: Path) -> tuple[Profile, float]:
    """A training's profile and its steps per second."""
    file = folder / f"{name}.json"
    profile, status = record(card, command(name, seconds, file), name, kind="ML")
    if status != 0:
        raise SystemExit(
            f"error: the training '{name}' ended with status {status}; what it said stands above"
        )
    notes: Notes = json.loads(file.read_text())
    return profile, rate(notes, notes[0][0], notes[-1][0])


def together(names: tuple[str, str], seconds: float, folder: Path) -> tuple[float, float]:
    """Steps per second of both, while both train."""
    files = [folder / f"{'-'.join(names)}-{at}.json" for at in range(2)]
    running = [
        subprocess.Popen(command(name, seconds, file)) for name, file in zip(names, files, strict=True)
    ]
    statuses = [one.wait() for one in running]
    if any(statuses):
        raise SystemExit(f"error: one of {' and '.join(names)} failed; what it said stands above")
    notes: list[Notes] = [json.loads(file.read_text()) for file in files]
    begin_s, end_s = max(one[0][0] for one in notes), min(one[-1][0] for one in notes)
    if end_s - begin_s < seconds / 4:
        raise SystemExit(
            f"error: {' and '.join(names)} trained together for {end_s - begin_s:.0f} s only; give more --seconds"
        )
    return rate(notes[0], begin_s, end_s), rate(notes[1], begin_s, end_s)


def training_row(profile: Profile, card: NvmlCard) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """What a training uses once it is loaded: the median of the second half of its profile."""
    usage = series(profile, card.model).usage
    row: np.ndarray[tuple[int], np.dtype[np.int32]] = np.median(usage[len(usage) // 2 :], axis=0).astype(
        np.int32
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--model", default="mps")
    words = parser.parse_args()
    try:
        card = NvmlCard.open(words.gpu)
    except ProfileError as error:
        print(f"not run: there is no GPU on this machine ({error})")
        return
    if importlib.util.find_spec("torch") is None:
        print("not run: PyTorch is not installed; pip install torch")
        return
    os.environ |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(words.gpu)}
    every = [*zip(NAMES, NAMES[1:] + NAMES[:1], strict=True)]
    every += [
        pair for pair in itertools.combinations_with_replacement(NAMES, 2) if {*pair} not in map(set, every)
    ]
    model = make_speeds(words.model)
    found = []
    with tempfile.TemporaryDirectory(prefix="berth-pairs-") as scratch:
        folder = Path(scratch)
        single = {name: alone(card, name, words.seconds, folder) for name in NAMES}
        print(f"{card.model.name}, {words.model}; speeds as a part of the speed alone: measured (predicted)")
        for pair in every[: max(6, words.pairs)]:
            rates = together(pair, words.seconds, folder)
            rows = np.stack([training_row(single[name][0], card) for name in pair])
            predicted = model(rows, np.ones(2, dtype=np.bool_), card.model.mem_mib) / 1000
            measured = [mine / single[name][1] for mine, name in zip(rates, pair, strict=True)]
            found.append({"pair": pair, "measured": measured, "predicted": predicted.tolist()})
            print(
                "   ".join(
                    f"{name:>13} {was:.3f} ({said:.3f})"
                    for name, was, said in zip(pair, measured, predicted.tolist(), strict=True)
                ),
                flush=True,
            )
    errors = [
        abs(was - said) for one in found for was, said in zip(one["measured"], one["predicted"], strict=True)
    ]
    print(f"mean absolute error over {len(found)} pairs: {np.mean(errors):.3f}")
    save("colocation_real_gpu", {"gpu": card.model.name, "model": words.model, "pairs": found})


if __name__ == "__main__":
    main()
