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
    push: Annotated[
        str, typer.Option(metavar="URL", help="Send the spool to a `berth collect` there as well.")
    ] = "",
    push_every_s: Annotated[
        float, typer.Option("--push-every", min=1.0, metavar="S", help="Seconds between sendings.")
    ] = 60.0,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The collector's token, readable for its owner only.")
    ] = None,
) -> None:
    """Measure what each job on this node does with its GPUs, through NVML, until it is stopped.

    `berth import samples DIR` takes the spool into the history, while this goes on, as often as one likes.
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
        raise SettingError("--push URL needs --token-file FILE, and the reverse")
    name = node or socket.gethostname().partition(".")[0]
    pusher = Pusher(spool, name, push, read_token(token_file), push_every_s) if token_file else nullcontext()
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: told.append(got))
    settings = Settings(
        interval_ms=round(interval_s * 1000),
        flush_ms=round(flush_s * 1000),
        prolog=prolog,
        for_ms=round(for_s * 1000) if for_s else None,
    )
    with Nvml() as cards, SpoolWriter(spool, name, cluster, settings.interval_ms) as writer, pusher:
        looks = run(cards, writer, settings, stopped=lambda: bool(told))
    print(f"looked {looks:,} times; the spool is {spool}")


def collect(
    token_file: Annotated[
        Path, typer.Option(metavar="FILE", help="The token that nodes send, readable for its owner only.")
    ],
    spool: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the spools of all nodes are written.")
    ] = Path("/var/spool/berth"),
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; TLS is a reverse proxy's.")
    ] = "127.0.0.1:8472",
) -> None:
    """Receive the spools of many nodes' `berth sample --push`, until it is stopped.

    `berth import samples DIR` takes them into the history, while this goes on, as often as one likes.
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
