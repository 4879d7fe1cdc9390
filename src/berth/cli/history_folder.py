"""Which history a command reads: the one named, the one here, or that of this machine's queue."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def history_read(context: typer.Context, value: Path) -> Path:
    """The folder itself if it is named or here, else that of the queue; a folder here that hides the queue's says so.

    A command that replays a TRACE reads no history.
    """
    source = context.get_parameter_source("history")
    if context.resilient_parsing or context.params.get("trace") or source is None or source.name != "DEFAULT":
        return value
    from berth.live.local.places import Places, queue_folder

    places = Places(queue_folder())
    kept = os.path.exists(os.path.join(places.history, "index.json"))
    if not value.exists():
        return Path(places.history) if kept or os.path.exists(places.store) else value
    if kept and not value.samefile(places.history):
        print(
            f"berth: reading ./{value}, not the history of this machine's queue; for that: --history {places.history}",
            file=sys.stderr,
        )
    return value


HistoryFolder = Annotated[
    Path,
    typer.Option(
        "--history", metavar="DIR", envvar="BERTH_HISTORY", help="History folder.", callback=history_read
    ),
]
"""Of a command that reads a history."""
NamedHistory = Annotated[
    Path, typer.Option("--history", metavar="DIR", envvar="BERTH_HISTORY", help="History folder.")
]
"""Of a command that writes one, or asks the queue first."""
