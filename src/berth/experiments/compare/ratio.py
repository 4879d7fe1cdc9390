"""How much shortest-first gains over first-in-first-out, as the literature states it of Helios.

Hu and others, SC 2021 (see `berth.traces.readers.helios`), table 3:
the mean completion time of all GPU jobs of a cluster
under FIFO, divided by that under shortest job first with known run times; each virtual cluster has a strict queue
and nodes of its own. They find 3.07 on Venus in September 2020; fleetsim's replay of it finds 3.21, with the most
nodes that each virtual cluster had in that month and every job on the fullest node that holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from berth.statistics import Run

__all__ = ["DEFINITION", "Ratio", "fifo_over_sjf"]

DEFINITION = (
    "mean over all finished jobs of (end − submission) under fifo, divided by the same under sjf (run times known,"
    " strict order, virtual clusters with nodes of their own queue apart)"
)


@dataclass(frozen=True, slots=True)
class Ratio:
    """FIFO over SJF for one placement, the mean over seeds on which both ran."""

    fifo: str
    sjf: str
    completion: float
    """Of mean completion times."""
    waiting: float
    """Of mean waiting times."""

    def to_dict(self) -> dict[str, object]:
        """As the JSON has it."""
        return {
            "fifo": self.fifo,
            "sjf": self.sjf,
            "mean_completion_ratio": self.completion,
            "mean_wait_ratio": self.waiting if self.waiting == self.waiting else None,
            "definition": DEFINITION,
        }


def fifo_over_sjf(runs: Sequence[Run]) -> tuple[Ratio, ...]:
    """The ratio for each placement of which there are runs in both orders."""
    by_policy: dict[str, dict[int, Run]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, {})[run.seed] = run
    found: list[Ratio] = []
    for name, fifos in by_policy.items():
        placement = name.removeprefix("fifo+") if name.startswith("fifo") else name
        sjfs = by_policy.get("sjf" if name == "fifo" else f"sjf+{placement}", {})
        pairs = [(fifos[seed].summary, sjfs[seed].summary) for seed in sorted(fifos.keys() & sjfs.keys())]
        pairs = [(one, other) for one, other in pairs if one.finished and other.completion_time_s.mean > 0]
        if not pairs or name.startswith("sjf"):
            continue
        waits = [
            one.waiting_time_s.mean / other.waiting_time_s.mean
            for one, other in pairs
            if other.waiting_time_s.mean > 0
        ]
        completions = [one.completion_time_s.mean / other.completion_time_s.mean for one, other in pairs]
        sjf = "sjf" if name == "fifo" else f"sjf+{placement}"
        found.append(Ratio(name, sjf, fmean(completions), fmean(waits) if waits else float("nan")))
    return tuple(found)
