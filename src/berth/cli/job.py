"""`berth job ID`: all that is known of one job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from berth.cli import completing
from berth.cli.history_folder import NamedHistory, history_read
from berth.cli.output import AsJson


def job(
    context: typer.Context,
    job_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The job's id, its label, such as 12_3 or 7+1, or its name.",
            autocompletion=completing.known_jobs,
        ),
    ],
    cluster: Annotated[str, typer.Option(metavar="NAME", help="Only this cluster; by default all.")] = "",
    history: NamedHistory = Path("history"),
    as_json: AsJson = False,
) -> None:
    """Show all about one job: attempts, waits and why, use, cost, and what would have been enough.

    If this machine's queue knows the job, the queue answers; otherwise the history does.
    """
    named = context.get_parameter_source("history")
    if not cluster and (named is None or named.name != "COMMANDLINE"):
        from berth.live.local.client import print_job

        if print_job(job_id, as_json):
            return
    from berth.cli.job_report import print_job_report

    print_job_report(job_id, cluster, history_read(context, history), as_json)
