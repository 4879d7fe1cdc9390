"""Speeds of pairs that were measured by name, for applications without a profile.

Gavel (Narayanan et al., *Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads*, OSDI 2020)
published steps per second of 26 training jobs, alone and in pairs, on a K80, a P100 and a V100. What ships is a
fit: of each job on each card how sensitive it is and how much it presses, in the contention model's terms.

    log2 stress_ij = sensitivity_i + pressure_j          speed_i = 1 / (1 + Σ_j stress_ij)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

LOG_ONE = 256
"""One doubling in sensitivity and pressure."""
BEST_PAIR_MILLI = 2000
"""The speeds of two that do not slow each other, together."""
FILE = "gavel.json"


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
