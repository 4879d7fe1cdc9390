"""`berth mcp serve`: this machine's queue as tools for agents."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    help="Serve this machine's queue to agents, by the Model Context Protocol.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def _group() -> None:
    pass


@app.command()
def serve(
    context: typer.Context,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Also let agents submit and cancel jobs, as this user.")
    ] = False,
) -> None:
    """Answer one agent on standard input and output: why, queue, status, job, wait; read-only by default."""
    from berth.cli.app import load
    from berth.cli.local import option_names
    from berth.live.local.mcp import read_and_print
    from berth.live.local.protocol import Flags
    from berth.live.local.submitting import queued

    options = option_names(load("submit"))

    def submit(flags: Flags, command: list[str]) -> list[str]:
        return queued(flags, command, lambda words: ({}, words), options)

    read_and_print(submit if allow_changes else None)
