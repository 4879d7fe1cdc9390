"""What the matrix of worlds says: means, paired intervals, and one sentence on what the network adds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from berth.report.report import Chapter
from berth.statistics import paired_difference_95
from berth_papers.colocation.matrix import Cell, Matrix, World

ALONE = "learned?plans=0"
"""`learned` without plans: its network decides."""
NETWORKS = ("learned", "dqn", "deeprm-max", "deeprm-mean")
"""Policies that decide by a network; all others are rules."""
LEAST_SETS = 3


@dataclass(frozen=True, slots=True)
class Added:
    """What `learned` adds over the best rule in a world."""

    world: World
    rule: str
    """The rule of the least mean in this world, chosen after the fact."""
    mean_pct: float
    """`learned` less the rule, of the rule's mean: below zero it helps."""
    low_pct: float
    """Of the 95 % interval, set by set; NaN for fewer than three sets."""
    high_pct: float

    @property
    def verdict(self) -> str:
        """`helps`, `harms`, or `cannot be told from zero`."""
        if self.high_pct < 0:
            return "helps"
        return "harms" if self.low_pct > 0 else "cannot be told from zero"


def measured_s(world: World, cell: Cell) -> float:
    """What a world is judged by: total time of a queue, mean completion where jobs arrive."""
    return cell.completion_s if world.arrivals else cell.total_s


def difference_pct(matrix: Matrix, world: World, policy: str, other: str) -> tuple[float, float, float]:
    """A policy less another on the same sets, in per cent of the other's mean, with its 95 % interval."""
    ours, theirs = (
        np.array([measured_s(world, one) for one in matrix.of(world, name)]) for name in (policy, other)
    )
    scale = 100 / float(theirs.mean())
    if len(ours) < LEAST_SETS:
        return float((ours - theirs).mean()) * scale, math.nan, math.nan
    found = paired_difference_95(ours, theirs)
    return found.mean * scale, found.low * scale, found.high * scale


def added(matrix: Matrix, policy: str = "learned") -> list[Added]:
    """The policy against the best rule of each world; empty where either is missing."""
    rules = [name for name in matrix.policies if name.partition("?")[0].rpartition("+")[2] not in NETWORKS]
    if policy not in matrix.policies or not rules:
        return []
    found = []
    for world in matrix.worlds:
        best = min(rules, key=lambda name, here=world: _mean(matrix, here, name))  # type: ignore[misc]
        found.append(Added(world, best, *difference_pct(matrix, world, policy, best)))
    return found


def sentences(matrix: Matrix) -> tuple[str, str]:
    """What `learned` adds over the best rule, with all that it plans, and what its network adds by itself."""
    return (
        sentence(added(matrix), "learned", "learned"),
        sentence(added(matrix, ALONE), "the network alone", ALONE),
    )


def sentence(found: Sequence[Added], subject: str, policy: str) -> str:
    """What a policy, called `subject`, adds over the best rule, in one sentence."""
    if not found:
        return f"What {subject} adds is not known: it takes {policy} and a rule in one run."
    if any(math.isnan(one.high_pct) for one in found):
        return f"What {subject} adds is not known: it takes three sets or more."
    names = {
        verdict: [f"{one.world.workload} ({_where(one.world)})" for one in found if one.verdict == verdict]
        for verdict in ("helps", "harms", "cannot be told from zero")
    }
    mean = float(np.mean([one.mean_pct for one in found]))
    helps, harms, level = names.values()
    less = "less" if mean <= 0 else "more"
    sentence = f"{policy} takes {abs(mean):.1f} % {less} than the best rule of each world on average"
    subject = subject.capitalize()
    if not helps:
        sentence = f"{subject} adds nothing over the best rule that can be told from chance: {sentence}"
    else:
        sentence = (
            f"{subject} adds something over the best rule in {len(helps)} of {len(found)} worlds: {sentence}"
        )
    parts = [f"the 95 % interval is below zero in {len(helps)}"]
    parts += [f"holds zero in {len(level)}"] if level else []
    parts += [f"is above zero in {len(harms)}: {', '.join(harms)}"] if harms else []
    return f"{sentence}; {', '.join(parts)}."


def matrix_dict(matrix: Matrix) -> dict[str, Any]:
    """What `--json` prints of it."""
    found, (adds, network_adds) = added(matrix), sentences(matrix)
    return {
        "seeds": list(matrix.seeds),
        "policies": list(matrix.policies),
        "adds": adds,
        "network_adds": network_adds,
        "added": [_plain(one) for one in found],
        "worlds": [
            asdict(world)
            | {
                "judged_by": "mean completion" if world.arrivals else "total time",
                "policies": [_row(matrix, world, policy) for policy in matrix.policies],
            }
            for world in matrix.worlds
        ],
    }


def matrix_chapter(matrix: Matrix) -> Chapter:
    """The matrix as a table: a row for each world and policy, with learned against it in pairs."""
    rows = []
    short = _short_knowledges(matrix.worlds)
    for world in matrix.worlds:
        name = f"{world.workload}, {_where(replace(world, knowledge=short[world.knowledge]))}"
        for policy in matrix.policies:
            row = _row(matrix, world, policy)
            interval = row["learned_less_this_pct"]
            assert isinstance(interval, dict)
            rows.append(
                (
                    name,
                    policy,
                    f"{row['mean_s']:,.0f}",
                    "" if policy == "learned" else _interval(interval),
                    f"{row['out_of_memory_per_100_jobs']:.1f}",
                    f"{row['lost']}",
                    f"{row['longest_wait_s']:,.0f}",
                )
            )
    judged = "Seconds are mean completion where jobs arrive, else total time. "
    count = len(matrix.seeds)
    sets = "the same set" if count == 1 else f"the same {count} sets"
    interval = "" if count < LEAST_SETS else ", with its 95 % interval"
    return Chapter(
        "What learned adds",
        f"{' '.join(sentences(matrix))} {judged}Learned less each policy on {sets}{interval}:"
        " below zero learned is sooner done. Out of memory: attempts, per 100 jobs.",
        (),
        (
            "World",
            "policy",
            "mean, s",
            "learned less it, %",
            "out of memory, %",
            "jobs lost",
            "longest wait, s",
        ),
        rows,
        matrix.policies,
        matrix.seeds,
    )


def _row(matrix: Matrix, world: World, policy: str) -> dict[str, object]:
    cells = matrix.of(world, policy)
    mean, low, high = math.nan, math.nan, math.nan
    if "learned" in matrix.policies:
        mean, low, high = difference_pct(matrix, world, "learned", policy)
    return {
        "policy": policy,
        "mean_s": _mean(matrix, world, policy),
        "learned_less_this_pct": {"mean": _number(mean), "low_95": _number(low), "high_95": _number(high)},
        "out_of_memory_per_100_jobs": 100
        * sum(one.out_of_memory for one in cells)
        / sum(one.jobs for one in cells),
        "lost": sum(one.lost for one in cells),
        "longest_wait_s": max(one.longest_wait_s for one in cells),
        "seconds": [measured_s(world, one) for one in cells],
    }


def _mean(matrix: Matrix, world: World, policy: str) -> float:
    return float(np.mean([measured_s(world, one) for one in matrix.of(world, policy)]))


def _short_knowledges(worlds: Sequence[World]) -> dict[str, str]:
    """Each knowledge without its settings where no other of its kind is there, so that a narrow page has room."""
    kinds = {world.knowledge: world.knowledge.split("?")[0] for world in worlds}
    several = Counter(kinds.values())
    return {name: kind if several[kind] == 1 else name for name, kind in kinds.items()}


def _where(world: World) -> str:
    parts = [world.mode, world.knowledge]
    parts += [f"{world.gpus} GPUs"] if world.gpus != "1x1" else []
    parts += [f"load {world.arrivals:g}"] if world.arrivals else []
    return ", ".join(parts)


def _interval(found: Mapping[str, float | None]) -> str:
    mean, low, high = found["mean"], found["low_95"], found["high_95"]
    if mean is None:
        return ""
    return f"{mean:+.1f}" if low is None or high is None else f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _plain(one: Added) -> dict[str, object]:
    """The same as JSON has it."""
    numbers = {name: _number(getattr(one, name)) for name in ("mean_pct", "low_pct", "high_pct")}
    return asdict(one) | numbers | {"verdict": one.verdict}
