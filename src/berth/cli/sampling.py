"""`berth sample`: what this node's jobs do with its GPUs, into a spool."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from berth.counts import counted


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
    push: Annotated[
        str, typer.Option(metavar="URL", help="Also send the spool to a `berth collect` at this address.")
    ] = "",
    push_every_s: Annotated[
        float, typer.Option("--push-every", min=1.0, metavar="S", help="Seconds between pushes.")
    ] = 60.0,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with the collector's token; only its owner may be able to read it."
        ),
    ] = None,
) -> None:
    """Measure each job's use of this node's GPUs through NVML, until stopped.

    `berth import samples DIR` adds the spool to the history, at any time and as often as you like.
    """
    import socket
    from contextlib import nullcontext

    from berth.errors import SettingError
    from berth.sampling.collector import read_token
    from berth.sampling.nvml import Nvml
    from berth.sampling.push import Pusher
    from berth.sampling.sampler import Settings
    from berth.sampling.sampler import sample as run
    from berth.sampling.spool import SpoolWriter

    if bool(push) != (token_file is not None):
        raise SettingError("--push URL and --token-file FILE need each other; one of them is missing")
    name = node or socket.gethostname().partition(".")[0]
    pusher = Pusher(spool, name, push, read_token(token_file), push_every_s) if token_file else nullcontext()
    stopped_by: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: stopped_by.append(got))
    settings = Settings(
        interval_ms=round(interval_s * 1000),
        flush_ms=round(flush_s * 1000),
        prolog=prolog,
        for_ms=round(for_s * 1000) if for_s else None,
    )
    with Nvml() as cards, SpoolWriter(spool, name, cluster, settings.interval_ms) as writer, pusher:
        looks = run(cards, writer, settings, stopped=lambda: bool(stopped_by))
    print(f"took {counted(looks, 'sample')}; the spool is {spool}")


def collect(
    token_file: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="File with the token that nodes send; only its owner may be able to read it."
        ),
    ],
    spool: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the spools of all nodes.")] = Path(
        "/var/spool/berth"
    ),
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Address to listen on; put a reverse proxy before it for TLS."
        ),
    ] = "127.0.0.1:8472",
) -> None:
    """Receive samples that nodes push with `berth sample --push`, until stopped.

    `berth import samples DIR` adds them to the history, at any time and as often as you like.
    """
    import threading

    from berth.errors import SettingError
    from berth.sampling.collector import Collector, read_token

    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise SettingError(f"--listen {listen}: expected HOST:PORT, such as 0.0.0.0:8472")
    with Collector(spool, read_token(token_file), host.strip("[]"), int(port)) as collector:

        def stop(*_: object) -> None:
            threading.Thread(target=collector.stop).start()  # which waits for `serve`, that this thread is in

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        print(f"listening on {host}:{collector.port}; the spools are in {spool}", flush=True)
        collector.serve()
