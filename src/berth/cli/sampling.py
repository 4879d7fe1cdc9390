"""`berth sample`: what this node's jobs do with its GPUs, into a spool."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from berth.counts import counted
from berth.sampling.nvml import Nvml
from berth.sampling.sampler import Settings
from berth.sampling.sampler import sample as run
from berth.sampling.spool import SpoolWriter


def sample(
    spool: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to write to; several nodes may share one.")
    ] = Path("/var/spool/berth"),
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.05, metavar="S", help="Seconds between samples.")
    ] = 1.0,
    flush_s: Annotated[
        float,
        typer.Option(
            "--flush", min=0.0, metavar="S", help="Seconds between writes; a crash loses at most this much."
        ),
    ] = 10.0,
    prolog: Annotated[
        Path,
        typer.Option(
            "--prolog-dir", metavar="DIR", help="Folder in which the Prolog names the GPUs of each job."
        ),
    ] = Path("/run/berth/jobs"),
    node: Annotated[
        str, typer.Option(metavar="NAME", help="This node's name; by default its host name.")
    ] = "",
    cluster: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the cluster in the history; empty: any.")
    ] = "",
    for_s: Annotated[
        float,
        typer.Option(
            "--for", min=0.0, metavar="S", help="Stop after this many seconds; 0: run until stopped."
        ),
    ] = 0.0,
) -> None:
    """Measure each job's use of this node's GPUs through NVML, until stopped.

    `berth import samples DIR` adds the spool to the history, at any time and as often as you like.
    """
    import socket

    name = node or socket.gethostname().partition(".")[0]
    stopped_by: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: stopped_by.append(got))
    settings = Settings(
        interval_ms=round(interval_s * 1000),
        flush_ms=round(flush_s * 1000),
        prolog=prolog,
        for_ms=round(for_s * 1000) if for_s else None,
    )
    with Nvml() as cards, SpoolWriter(spool, name, cluster, settings.interval_ms) as writer:
        samples = run(cards, writer, settings, stopped=lambda: bool(stopped_by))
    print(f"took {counted(samples, 'sample')}; the spool is {spool}")
