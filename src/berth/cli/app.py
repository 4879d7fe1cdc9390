"""Every command in one place; what a command needs is imported when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from berth.cli import (
    advice,
    compare,
    cost,
    digest,
    doctor,
    experiment,
    history,
    importing,
    interference,
    job,
    kubernetes,
    local,
    partition,
    policies,
    profile,
    sampling,
    slurm,
    stats,
    trace,
    train,
    waiting,
)

__all__ = ["app"]

app = typer.Typer(
    help="berth packs, partitions and accounts for shared GPUs.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("simulate")(compare.simulate)
app.command("compare")(compare.compare)
app.command("policies")(policies.policies)
app.add_typer(experiment.app, name="experiment")
app.add_typer(trace.app, name="trace")
app.add_typer(importing.app, name="import")
app.add_typer(history.app, name="history")
app.command("stats")(stats.stats)
app.command("job")(job.job)
app.command("report")(stats.report)
app.command("cost")(cost.cost)
app.command("digest")(digest.digest)
app.command("plot")(stats.plot)
app.command("applications")(stats.applications)
app.add_typer(profile.app, name="profile")
app.add_typer(interference.app, name="interference")
app.add_typer(waiting.app, name="predict-wait")
app.command("advise")(advice.advise)
app.command("sample")(sampling.sample)
app.command("train")(train.train)
app.command("doctor")(doctor.doctor)
app.command("run", context_settings={"allow_interspersed_args": False})(partition.run)
app.add_typer(partition.app, name="partition")
app.add_typer(kubernetes.app, name="k8s")
app.add_typer(slurm.app, name="slurm")
local.add_commands(app)


def _version(wanted: bool) -> None:
    if wanted:
        from berth import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _berth(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version and stop.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    pass
