"""`berth experiment optimality` and `berth experiment utilisation`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.output import JsonOrCsv, printed
from berth.cli.run_options import Knowledge, Processes
from berth_papers.cli.pages import show_answers, show_chapter, write_chapters, write_numbers

if TYPE_CHECKING:
    from berth_papers.genetic.optimality import Optimality

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
    as_json: JsonOrCsv = None,
) -> None:
    """Compare each policy with the optimum on batches of jobs.

    Compute by a mixed-integer model (extra `optimum`) how much GPU fits at once, and compare it with what each
    policy places. docs/genetic.md documents the file of batches.
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
    rows = [{"policy": name} | figures for name, figures in measured["policies"].items()]
    written: list[Path] = []
    if whole and (out is not None or as_json is None):
        from berth_papers.genetic import chapters as pages

        first, answers = pages.optimality_chapter(whole), pages.optimality_answers(whole)
        if out is not None:
            drawn = batches or f"{instances} random instances on {machines} machines, seed {seed}"
            number = "1 batch" if len(whole) == 1 else f"{len(whole)} batches"
            chapters = [first, pages.batches_chapter(whole), *pages.convergence_chapter(whole[0])]
            what, where = f"{number} of {drawn}; knowledge: {knowledge}", "the machines of each batch"
            written = write_chapters(out, "Distance to the optimum", what, where, chapters, answer, answers)
    elif out is not None:
        write_numbers(out, answer)
    if not printed(as_json, rows, answer) and whole:
        show_answers(answers)
        show_chapter(first, written)
        for one in whole:
            for line in one.unplaceable:
                print(f"batch {one.batch}: {line}", file=sys.stderr)
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
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; they are 0, 1, ….")] = 10,
    jobs: Processes = 1,
    knowledge: Knowledge = "oracle",
    out: Out = None,
    as_json: JsonOrCsv = None,
) -> None:
    """Measure GPU utilisation and completion time under more load than the cluster can hold.

    Figures 3 and 4 of Kwon and Bahn, "Scheduling of Artificial Intelligence Workloads in Cloud Environments Using
    Genetic Algorithms", JIIBC 24(3), 2024.
    """
    from berth.cli.files import interruption_explained
    from berth.cli.progress import progress_bar
    from berth_papers.genetic.cases import case_of
    from berth_papers.genetic.utilisation import (
        DEFAULT_CASE,
        POLICIES,
        measure_utilisation,
        utilisation_dict,
    )

    names = POLICIES if policies is None else tuple(name.strip() for name in policies.split(","))
    chosen = [case_of(text) for text in cases or [DEFAULT_CASE]]
    with (
        progress_bar(f"{len(chosen)} × {len(names)} × {seeds} runs") as progress,
        interruption_explained(out),
    ):
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
    if out is not None or as_json is None:
        from berth_papers.genetic import chapters as pages

        chapters, answers = pages.utilisation_chapters(outcomes), pages.utilisation_answers(outcomes)
        if out is not None:
            title = "GPU utilisation under genetic scheduling"
            what = f"{'; '.join(case.name for case in chosen)}; knowledge: {knowledge}"
            written = write_chapters(out, title, what, "of each trace", chapters, answer, answers)
    if not printed(as_json, measured["runs"], answer):
        show_answers(answers)
        for chapter in chapters:
            show_chapter(chapter, written if chapter is chapters[-1] else ())


def _show_interrupted(one: Optimality, out: Path | None) -> None:
    """What had been found when Ctrl-C came."""
    gap = one.gaps[-1]
    print(
        f"batch {one.batch}: {gap.policy} was stopped; the best that it had found places {gap.placed_milli:,} of"
        f" {one.asked_milli:,} milli, {len(gap.placements):,} instances"
        f" ({'result.json' if out else '--json'} has each with its GPUs)",
        file=sys.stderr,
    )
