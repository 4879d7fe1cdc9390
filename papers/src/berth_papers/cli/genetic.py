"""`berth experiment optimality` and `berth experiment utilisation`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.output import AsJson, Form, Format, console, printed
from berth.cli.run_options import Knowledge

__all__ = ["optimality", "show_answers", "show_chapter", "utilisation", "write_chapters"]

if TYPE_CHECKING:
    from berth.report import Chapter
    from berth_papers.genetic.optimality import Optimality
    from berth_papers.genetic.utilisation import Outcome

Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write report.html and result.json to this folder.")
]
Policies = Annotated[
    str | None, typer.Option(metavar="A,B,…", help="Policies; settings as in genetic?budget_ms=200.")
]


def optimality(
    batches: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Machines and instances; by default random ones.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of random batches.")] = 50,
    instances: Annotated[int, typer.Option(min=1, max=4000, help="Instances of each random batch.")] = 40,
    machines: Annotated[int, typer.Option(min=1, max=1814, help="Machines of each random batch.")] = 12,
    policies: Policies = None,
    seed: Annotated[int, typer.Option(help="Seed of random numbers.")] = 0,
    limit_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds to search for the optimum of one batch.")
    ] = 60.0,
    knowledge: Knowledge = "oracle",
    out: Out = None,
    as_json: AsJson = False,
    form: Format = Form.TABLE,
) -> None:
    """Compare each policy with the optimum on batches of jobs.

    The most GPU that can be placed at once, from a mixed-integer model (extra `optimum`), and what each policy
    places. docs/genetic.md documents the file of batches.
    """
    from berth.cli.progress import progress_bar
    from berth_papers.genetic.batch_file import random_batches, read_batches
    from berth_papers.genetic.optimality import POLICIES, measure_optimality, optimality_dict

    names = POLICIES if policies is None else tuple(name.strip() for name in policies.split(","))
    if batches is None:
        tasks = random_batches(count, instances=instances, machines=machines, seed=seed)
    else:
        tasks = read_batches(batches)
    with progress_bar(f"{len(tasks):,} {'batch' if len(tasks) == 1 else 'batches'}") as progress:
        found = measure_optimality(
            tasks, names, seed=seed, time_limit_s=limit_s, knowledge=knowledge, progress=progress
        )
    measured = optimality_dict(found)
    answer = {"seed": None if batches else seed, "knowledge": knowledge} | measured
    whole = [one for one in found if not one.interrupted]
    written: list[Path] = []
    if out is not None and whole:
        from berth_papers.genetic.chapters import (
            batches_chapter,
            convergence_chapter,
            optimality_answers,
            optimality_chapter,
        )

        chapters = [optimality_chapter(whole), batches_chapter(whole)]
        chapters += convergence_chapter(whole[0])
        drawn = f"{instances} random instances on {machines} machines, seed {seed}"
        what = f"{len(whole)} {'batch' if len(whole) == 1 else 'batches'} of {batches or drawn}; knowledge: {knowledge}"
        written = write_chapters(
            out,
            "Distance to the optimum",
            what,
            "the machines of each batch",
            chapters,
            answer,
            optimality_answers(whole),
        )
    elif out is not None:
        from berth.cli.files import write_aside

        out.mkdir(parents=True, exist_ok=True)
        write_aside(out / "result.json", json.dumps(answer, allow_nan=False, indent=1) + "\n")
    rows = [{"policy": name} | figures for name, figures in measured["policies"].items()]
    if not printed(form, as_json, rows, answer):
        _show_optimality(whole, written)
    if len(whole) < len(tasks):
        if found[-1].interrupted:
            _show_interrupted(found[-1], out)
        print(f"{len(whole):,} of {len(tasks):,} batches are done", file=sys.stderr)
        raise KeyboardInterrupt


def utilisation(
    cases: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE",
            help="Workloads, each with its settings: TRACE,cluster=FILE or SPEC,part=FRACTION,compress=FACTOR."
            " part is the fraction of the cluster's nodes to use, drawn by the seed.",
        ),
    ] = None,
    policies: Policies = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, ….")] = 10,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of runs at the same time.")] = 1,
    knowledge: Knowledge = "oracle",
    out: Out = None,
    as_json: AsJson = False,
    form: Format = Form.TABLE,
) -> None:
    """Measure GPU utilisation and completion time under more load than the cluster can hold.

    Figures 3 and 4 of Kwon and Bahn, "Scheduling of Artificial Intelligence Workloads in Cloud Environments Using
    Genetic Algorithms", JIIBC 24(3), 2024.
    """
    from berth.cli.files import told_what_is_kept
    from berth.cli.progress import progress_bar
    from berth_papers.genetic.utilisation import (
        DEFAULT_CASE,
        POLICIES,
        case_of,
        measure_utilisation,
        utilisation_dict,
    )

    names = POLICIES if policies is None else tuple(name.strip() for name in policies.split(","))
    chosen = [case_of(text) for text in cases or [DEFAULT_CASE]]
    with progress_bar(f"{len(chosen)} × {len(names)} × {seeds} runs") as progress, told_what_is_kept(out):
        outcomes = measure_utilisation(
            chosen,
            names,
            seeds=tuple(range(seeds)),
            processes=jobs,
            keep=out,
            knowledge=knowledge,
            progress=progress,
        )
    measured = utilisation_dict(outcomes)
    answer = {"knowledge": knowledge} | measured
    written: list[Path] = []
    if out is not None:
        from berth_papers.genetic.chapters import utilisation_answers, utilisation_chapters

        what = f"{'; '.join(case.name for case in chosen)}; knowledge: {knowledge}"
        chapters = utilisation_chapters(outcomes)
        written = write_chapters(
            out,
            "GPU utilisation under genetic scheduling",
            what,
            "of each trace",
            chapters,
            answer,
            utilisation_answers(outcomes),
        )
    if not printed(form, as_json, measured["runs"], answer):
        _show_utilisation(outcomes, written)


def write_chapters(
    out: Path,
    title: str,
    trace: str,
    cluster: str,
    chapters: Sequence[Chapter],
    answer: object,
    answers: Sequence[str] = (),
) -> list[Path]:
    """Write an experiment's chapters as a report and its answer as JSON into a folder; the files' paths.

    `answers` are the sentences that the page begins with.
    """
    from datetime import UTC, datetime

    from berth.cli.files import command_line, write_aside
    from berth.report import Report, write
    from berth.version import __version__

    out.mkdir(parents=True, exist_ok=True)
    report, numbers = out / "report.html", out / "result.json"
    write(
        Report(
            title=title,
            command=command_line(),
            trace=trace,
            cluster=cluster,
            created=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            version=__version__,
            chapters=chapters,
            answers=answers,
        ),
        report,
    )
    write_aside(numbers, json.dumps(answer, allow_nan=False, indent=1) + "\n")
    return [report, numbers]


def _show_interrupted(one: Optimality, out: Path | None) -> None:
    """What had been found when Ctrl-C came."""
    gap = one.gaps[-1]
    print(
        f"batch {one.batch}: {gap.policy} was stopped; the best that it had found places {gap.placed_milli:,} of"
        f" {one.asked_milli:,} milli, {len(gap.placements):,} instances"
        f" ({'result.json' if out else '--json'} has each with its GPUs)",
        file=sys.stderr,
    )


def _show_optimality(found: Sequence[Optimality], written: Sequence[Path]) -> None:
    from berth_papers.genetic.chapters import optimality_answers, optimality_chapter

    if not found:
        return
    show_answers(optimality_answers(found))
    chapter = optimality_chapter(found)
    show_chapter(chapter, written)
    for one in found:
        for line in one.unplaceable:
            print(f"batch {one.batch}: {line}", file=sys.stderr)


def _show_utilisation(outcomes: Sequence[Outcome], written: Sequence[Path]) -> None:
    from berth_papers.genetic.chapters import utilisation_answers, utilisation_chapters

    chapters = utilisation_chapters(outcomes)
    show_answers(utilisation_answers(outcomes))
    for chapter in chapters:
        show_chapter(chapter, written if chapter is chapters[-1] else ())


def show_answers(answers: Sequence[str]) -> None:
    """Print what was found, before any table."""
    screen = console(soft_wrap=True)
    for sentence in answers:
        screen.print(sentence, highlight=False, markup=False, style="bold")


def show_chapter(chapter: Chapter, written: Sequence[Path]) -> None:
    """Print an experiment's table, and what was written."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=chapter.title, title_justify="left")
    for at, heading in enumerate(chapter.headings):
        table.add_column(heading, justify="right" if at else "left")
    for row in chapter.rows:
        table.add_row(*row)
    screen = console(soft_wrap=True)
    screen.print(table)
    for path in written:
        screen.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
