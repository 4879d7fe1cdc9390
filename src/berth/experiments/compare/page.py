"""The page of a comparison."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from berth.counts import counted
from berth.experiments.compare.chapters import comparison_chapters
from berth.experiments.compare.comparison import Comparison
from berth.experiments.compare.filling import filling, two_to_show
from berth.interference import mode_of
from berth.model import Node
from berth.report import Report, write
from berth.statistics import lead
from berth.version import __version__


def comparison_report(result: Comparison, command: str, created: str) -> Report:
    """The page of a comparison, made by that command at that time."""
    policies = (
        counted(len(result.policies), "policy", "policies")
        if len(result.policies) > 1
        else result.policies[0]
    )
    compress = result.conditions.compress
    knowledge = result.conditions.knowledge
    believed = f"; knowledge: {knowledge}" if knowledge != "oracle" else ""
    mode = mode_of(result.conditions.interference)
    shared = f"; GPUs are shared by {mode}" if mode != "none" else ""
    pair = two_to_show(result.runs)
    faster = f", arrivals compressed {compress:g}×" if compress != 1 else ""
    return Report(
        title=f"{Path(result.trace).name}: {policies}",
        command=command or f"berth.compare({result.trace!r}, policies={list(result.policies)!r})",
        trace=f"{result.trace}: {counted(result.runs[0].summary.jobs, 'job')}{faster}{believed}{shared}",
        cluster=cluster_in_words(result.nodes),
        created=created,
        version=__version__,
        chapters=comparison_chapters(result.runs, result.nodes),
        answers=result.answers,
        picture="" if pair is None else filling(pair),
        lead=lead(result.runs),
    )


def cluster_in_words(nodes: Sequence[Node]) -> str:
    """How many nodes, and how many GPUs of which models, the most first."""
    models: dict[str, int] = {}
    for node in nodes:
        if node.gpus:
            name = node.gpu_model.name if node.gpu_model and node.gpu_model.name else "unnamed"
            models[name] = models.get(name, 0) + node.gpus
    kinds = ", ".join(
        f"{number:,} {name}" for name, number in sorted(models.items(), key=lambda item: -item[1])
    )
    nodes_text = counted(len(nodes), "node")
    return f"{nodes_text}, {counted(sum(models.values()), 'GPU')} ({kinds})" if kinds else nodes_text


def write_report(
    result: Comparison,
    path: str | os.PathLike[str],
    *,
    command: str = "",
    created: datetime | None = None,
    first: str = "",
) -> Path:
    """Write a comparison as one self-contained HTML page; return its path.

    `command` makes the same page again, `created` is the time that it tells, now by default, and `first` a sentence
    before all others.
    """
    target = Path(path)
    report = comparison_report(result, command, f"{created or datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    write(replace(report, answers=(*filter(None, [first]), *report.answers)), target)
    return target
