"""A site at one moment as tables: its GPUs with the jobs on them, and the jobs that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.counts import counted
from berth.live.driver.snapshot import Gpu, Snapshot, Stranger, Tenant
from berth.live.driver.words import mib, span

if TYPE_CHECKING:
    from rich.console import Group

MOST_WAITS = 50
"""Jobs of the table of those that wait."""


def snapshot_tables(seen: Snapshot) -> Group:
    """The GPUs, below them the first jobs that wait, and what would start more."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table

    nodes = len({gpu.node for gpu in seen.gpus})
    title = (
        f"{counted(len(seen.gpus), 'GPU')} on {counted(nodes, 'node')}; jobs: {seen.running:,} running,"
        f" {seen.waiting:,} waiting"
    )
    names = ("node", "GPU", "model", "compute", "memory", "jobs")
    gpus = Table(*names, box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for gpu in seen.gpus:
        holders: tuple[Tenant | Stranger, ...] = (*gpu.tenants, *gpu.strangers)
        given = mib(sum(each.mem_mib for each in holders))
        gpus.add_row(
            gpu.node,
            str(gpu.index),
            gpu.model,
            f"{sum(each.milli for each in holders) / 10:g} %",
            f"{given} of {mib(gpu.mem_mib)}" if gpu.mem_mib else "not known",
            ", ".join(_on(gpu)),
        )
    waits = Table("waits", "for", "why", box=SIMPLE_HEAD, pad_edge=False)
    waiting = [job for job in seen.jobs if job.state in ("waiting", "held")]
    for job in waiting[:MOST_WAITS]:
        waits.add_row(job.id, span(seen.at_ms - job.submit_ms), job.why)
    more = (each.text for each in seen.more_cards) if waiting else ()
    return Group(gpus, *([waits] if waiting else []), *more, *seen.notes)


def _on(gpu: Gpu) -> list[str]:
    found = [_named(each) for each in gpu.tenants] + [each.what for each in gpu.strangers]
    if gpu.drained:
        found.append("drained: nothing new starts")
    return [*found, gpu.health] if gpu.health else found


def _named(tenant: Tenant) -> str:
    """A job, how its memory grows, and whether its use is measured."""
    if tenant.promise_mib is None or tenant.max_mib is None:
        return f"{tenant.job} (measured)" if tenant.measured else tenant.job
    sizes = (
        f"{mib(tenant.promise_mib)} promised, {mib(tenant.mem_mib)} granted, at most {mib(tenant.max_mib)}"
    )
    return f"{tenant.job} ({sizes}{', measured' if tenant.measured else ''})"
