"""Reports of what the experiments give."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from berth import __version__
from berth.experiments.compare.comparison import Comparison
from berth.experiments.inflate import UP_TO_PCT, Inflation
from berth.model import Node
from berth.report.page import write
from berth.report.report import Report

__all__ = ["write_report"]


def write_report(
    result: Comparison | Sequence[Inflation],
    path: str | os.PathLike[str],
    *,
    command: str = "",
    created: datetime | None = None,
) -> Path:
    """Write a comparison, or inflations on one workload, as one self-contained HTML page; returns its path.

    `command` is what makes the same again, and `created` the time that the page tells, now by default.
    """
    made = f"{created or datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    report = (
        _comparison(result, command, made)
        if isinstance(result, Comparison)
        else _inflations(result, command, made)
    )
    target = Path(path)
    write(report, target)
    return target


def _comparison(result: Comparison, command: str, created: str) -> Report:
    policies = f"{len(result.policies)} policies" if len(result.policies) > 1 else result.policies[0]
    faster = (
        f", arrivals compressed {result.conditions.compress:g}×" if result.conditions.compress != 1 else ""
    )
    return Report(
        title=f"{Path(result.trace).name}: {policies}",
        command=command or f"berth.compare({result.trace!r}, policies={list(result.policies)!r})",
        trace=f"{result.trace}: {result.runs[0].summary.jobs:,} jobs{faster}",
        cluster=_cluster(result.nodes),
        created=created,
        version=__version__,
        runs=result.runs,
        nodes=result.nodes,
    )


def _inflations(results: Sequence[Inflation], command: str, created: str) -> Report:
    first = results[0]
    return Report(
        title=f"Inflation of {Path(first.workload).name}",
        command=command or f"berth.inflate(…, {first.curve.policy!r}, seed={first.curve.seed})",
        trace=f"{first.workload}: jobs arrive until {UP_TO_PCT} % of the GPUs is asked for; none leaves",
        cluster=_cluster(first.nodes),
        created=created,
        version=__version__,
        inflation=[result.curve for result in results],
    )


def _cluster(nodes: Sequence[Node]) -> str:
    """How many nodes, and how many GPUs of which models, the most first."""
    models: dict[str, int] = {}
    for node in nodes:
        if node.gpus:
            name = node.gpu_model.name if node.gpu_model and node.gpu_model.name else "unnamed"
            models[name] = models.get(name, 0) + node.gpus
    kinds = ", ".join(
        f"{number:,} {name}" for name, number in sorted(models.items(), key=lambda item: -item[1])
    )
    return (
        f"{len(nodes):,} nodes, {sum(models.values()):,} GPUs ({kinds})" if kinds else f"{len(nodes):,} nodes"
    )
