"""`berth job ID`: all that is known of one job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from berth.cli.importing import AsJson, HistoryFolder


def job(
    job_id: Annotated[
        str, typer.Argument(metavar="ID", help="The job's id, or its label, such as 12_3 or 7+1.")
    ],
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="Of this cluster only; by default of all.")
    ] = "",
    history: HistoryFolder = Path("history"),
    as_json: AsJson = False,
) -> None:
    """Say what became of one job: attempts, waits and why, use, what it cost, and what would have been enough.

    A job that the queue of this machine knows is told by the queue; any other by the history.
    """
    from berth.cli.job_answer import tell_job

    tell_job(job_id, cluster, history, as_json)
