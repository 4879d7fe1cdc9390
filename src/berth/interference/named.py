"""Speeds of pairs that were measured by name, for applications without a profile.

Gavel (Narayanan et al., *Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads*, OSDI 2020)
published steps per second of 26 training jobs, alone and in pairs, on a K80, a P100 and a V100. What ships is a
fit: of each job on each card how sensitive it is and how much it presses, in the contention model's terms.

    log2 stress_ij = sensitivity_i + pressure_j          speed_i = 1 / (1 + Σ_j stress_ij)
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from berth.errors import ProfileError

__all__ = ["NamedPairs", "Observation", "fit_named", "published_names", "read_named"]

LOG_ONE = 256
"""One doubling in sensitivity and pressure."""
LEVELS = np.arange(-8 * LOG_ONE, 5 * LOG_ONE + 1, 16)
"""What sensitivity and pressure may be."""
ROUNDS = 20
BEST_PAIR_MILLI = 2000
"""The speeds of two that do not slow each other, together."""
FILE = "gavel.json"

Observation = tuple[str, str, float]
"""An application, its neighbour, and its speed beside it as a fraction of its speed alone."""


@dataclass(frozen=True, repr=False)
class NamedPairs:
    """Of each card, by the beginning of its name, the sensitivity and pressure of each application."""

    cards: Mapping[str, Mapping[str, tuple[int, int]]]

    def speeds_milli(self, applications: Sequence[str], card: str) -> tuple[int, ...] | None:
        """Speeds per mille of applications that share a card; None unless all are known on it."""
        of_card = next((known for name, known in self.cards.items() if card.upper().startswith(name)), None)
        if of_card is None or any(application not in of_card for application in applications):
            return None
        if len(applications) == 1:
            return (1000,)
        found = [of_card[application] for application in applications]
        speeds = []
        for at, (sensitivity, _) in enumerate(found):
            others = (pressure for other, (_, pressure) in enumerate(found) if other != at)
            stress = sum(2 ** ((sensitivity + pressure) / LOG_ONE) for pressure in others)
            # No triple was measured: more tenants get no more in sum than two that do not slow each other.
            most = BEST_PAIR_MILLI // len(found)
            speeds.append(max(1, min(int(1000 / (1 + stress)), most)))
        return tuple(speeds)

    def __repr__(self) -> str:
        digest = hashlib.sha256(self.to_json().encode()).hexdigest()[:16]
        return f"NamedPairs({', '.join(self.cards)} {digest})"

    def to_json(self) -> str:
        """As text, a card a line."""
        cards = ",\n".join(f"{json.dumps(card)}: {json.dumps(known)}" for card, known in self.cards.items())
        return "{\n" + cards + "\n}\n"


@cache
def published_names() -> NamedPairs:
    """The fit that ships."""
    read = json.loads((files("berth.interference") / FILE).read_text(encoding="utf-8"))
    return NamedPairs(
        {card: {name: (pair[0], pair[1]) for name, pair in known.items()} for card, known in read.items()}
    )


def read_named(path: Path) -> dict[str, list[Observation]]:
    """The observations of each card, from the columns `gpu, job, other, solo_steps_per_s, shared_steps_per_s`.

    Pairs that made no step together are left out: they did not fit the card, which is not a matter of speed.
    Raises ProfileError naming line and column.
    """
    found: dict[str, list[Observation]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            try:
                alone, shared = float(row["solo_steps_per_s"]), float(row["shared_steps_per_s"])
                observation = (row["job"], row["other"], shared / alone)
                card = row["gpu"].upper()
            except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
                raise ProfileError(
                    f"{path}, line {reader.line_num}: {error}; expected gpu, job, other, solo_steps_per_s above 0 and"
                    " shared_steps_per_s"
                ) from error
            if shared > 0:
                found.setdefault(card, []).append(observation)
    return found


def fit_named(observations: Sequence[Observation]) -> dict[str, tuple[int, int]]:
    """Sensitivity and pressure of each application on one card: least squares of the logarithms of stress, then
    least absolute error of the speeds, each by turns."""
    names = sorted({name for mine, theirs, _ in observations for name in (mine, theirs)})
    index = {name: number for number, name in enumerate(names)}
    mine = np.array([index[one] for one, _, _ in observations])
    theirs = np.array([index[other] for _, other, _ in observations])
    speed = np.array([value for _, _, value in observations])
    logs = LOG_ONE * np.log2(np.clip(1 / np.clip(speed, 1e-3, 1) - 1, 2.0**-8, 2.0**5))
    sensitivity, pressure = np.zeros(len(names)), np.zeros(len(names))
    turns = ((sensitivity, mine, pressure, theirs), (pressure, theirs, sensitivity, mine))
    for _ in range(ROUNDS):
        for own, chosen, other, facing in turns:
            seen = np.bincount(chosen, minlength=len(names))
            own[:] = np.bincount(chosen, logs - other[facing], len(names)) / np.maximum(seen, 1)
    for _ in range(ROUNDS):
        for own, chosen, other, facing in turns:
            for number in range(len(names)):
                rows = chosen == number
                if rows.any():
                    tried = np.append(LEVELS, own[number])
                    stress = np.exp2((tried[:, None] + other[facing][rows]) / LOG_ONE)
                    own[number] = tried[np.abs(1 / (1 + stress) - speed[rows]).sum(axis=1).argmin()]
    return {name: (round(sensitivity[number]), round(pressure[number])) for name, number in index.items()}
