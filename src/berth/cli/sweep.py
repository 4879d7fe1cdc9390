"""`berth sweep`: one plan, many simulations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from berth.cli.files import command_line, interruption_explained, write_results
from berth.cli.output import JsonOrCsv, console, printed
from berth.cli.progress import compiling_shown, progress_bar
from berth.cli.run_options import Processes, Ray, tell_skipped
from berth.counts import counted
from berth.errors import SettingError


def sweep(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN.toml", help="What to simulate; docs/sweeps.md lists the keys.")
    ],
    jobs: Processes = 1,
    ray: Ray = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write report.html, result.json and finished runs to this folder."),
    ] = None,
    part: Annotated[
        str,
        typer.Option(
            metavar="I/N",
            help="With --out: make only the I-th of N parts of the runs, as one task of a Slurm array.",
        ),
    ] = "",
    as_json: JsonOrCsv = None,
) -> None:
    """Simulate every policy and seed of a plan at every load, size and condition, as one table."""
    from berth.experiments.sweep import read_plan
    from berth.experiments.sweep import sweep as run_plan

    share = _part(part, out)
    read = read_plan(plan)
    with progress_bar(f"{len(read.cases)} cases") as progress, compiling_shown(), interruption_explained(out):
        found = run_plan(read, processes=jobs, ray=ray, keep=out, part=share, progress=progress)
    if share is not None:
        print(
            f"part {part}: {counted(len(found.runs), 'run')} kept in {out}; the same command without --part makes the"
            " table"
        )
        return
    if out is not None:
        from berth.experiments.sweep.page import page_of

        write_results(out, page_of(found, command_line()), found.to_dict())
    if not printed(as_json, found.rows(), found.to_dict()):
        from berth.experiments.sweep.table import rich_grid

        screen = console(soft_wrap=True)
        jobs_each = found.runs[0].summary.jobs
        runs = f"{counted(len(found.runs), 'simulation')} of {counted(jobs_each, 'job')}"
        cases = counted(len(read.cases), "case")
        screen.print(f"{read.trace.path}: {runs}, {cases}")
        for sentence in found.answers:
            screen.print(sentence, style="bold")
        screen.print(rich_grid(found.runs))
        if out is not None:
            screen.print(f"wrote {out / 'report.html'}")
    tell_skipped(found.skipped)


def _part(text: str, out: Path | None) -> tuple[int, int] | None:
    """`3/10` as numbers; None where no part is asked for."""
    if not text:
        return None
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal()):
        raise SettingError(f"--part is '{text}'; expected I/N, such as 3/10")
    if out is None:
        raise SettingError("--part keeps its runs for the other parts; say where with --out")
    return int(number), int(parts)
