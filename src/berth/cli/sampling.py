"""`berth sample`: what this node's jobs do with its GPUs, into a spool."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer


def sample(
    spool: Annotated[
        Path, typer.Option(metavar="DIR", help="Where it is written; one folder for many nodes will do.")
    ] = Path("/var/spool/berth"),
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.05, metavar="S", help="Seconds between looks.")
    ] = 1.0,
    flush_s: Annotated[
        float,
        typer.Option(
            "--flush", min=0.0, metavar="S", help="Write after so many seconds; a crash costs no more."
        ),
    ] = 10.0,
    prolog: Annotated[
        Path,
        typer.Option("--prolog-dir", metavar="DIR", help="Where the Prolog says which GPUs a job was given."),
    ] = Path("/run/berth/jobs"),
    node: Annotated[
        str, typer.Option(metavar="NAME", help="This node's name; by default its host name.")
    ] = "",
    cluster: Annotated[
        str, typer.Option(metavar="NAME", help="The cluster's name, as the history has it; empty: any.")
    ] = "",
    for_s: Annotated[
        float,
        typer.Option("--for", min=0.0, metavar="S", help="Stop after so many seconds; 0: when told to."),
    ] = 0.0,
) -> None:
    """Measure what each job on this node does with its GPUs, through NVML, until it is stopped.

    `berth import samples DIR` takes the spool into the history, while this goes on, as often as one likes.
    """
    import socket

    from berth.sampling.nvml import Nvml
    from berth.sampling.sampler import Settings
    from berth.sampling.sampler import sample as run
    from berth.sampling.spool import SpoolWriter

    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: told.append(got))
    settings = Settings(
        interval_ms=round(interval_s * 1000),
        flush_ms=round(flush_s * 1000),
        prolog=prolog,
        for_ms=round(for_s * 1000) if for_s else None,
    )
    name = node or socket.gethostname().partition(".")[0]
    with Nvml() as cards, SpoolWriter(spool, name, cluster, settings.interval_ms) as writer:
        looks = run(cards, writer, settings, stopped=lambda: bool(told))
    print(f"looked {looks:,} times; the spool is {spool}")
