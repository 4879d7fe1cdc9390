"""`berth experiment colocation`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.output import JsonOrCsv, printed
from berth.cli.run_options import Processes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from berth_papers.colocation.matrix import World

LOOKED_AT = 5
"""Number of sets of each workload that are gone through again to count where the network differs from greedy."""


def colocation(
    workload: Annotated[
        str,
        typer.Option(
            metavar="A,B,…|all",
            help="Workloads of the thesis: GPU_heavy, …, random; or drawn: applications drawn at random.",
        ),
    ] = "all",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of sets of jobs.")] = 30,
    first_seed: Annotated[int, typer.Option(min=0, help="The seed of the first set.")] = 0,
    interference: Annotated[
        str, typer.Option(metavar="A,B,…", help="How GPUs are really shared: time-sliced, mps or mig.")
    ] = "mps",
    knowledge: Annotated[
        str,
        typer.Option(
            metavar="A,B,…", help="Sources of policies' beliefs: oracle, history, user, noisy?run=0.3…."
        ),
    ] = "oracle",
    gpus: Annotated[
        str,
        typer.Option(
            metavar="1x1|20|100", help="One GPU as in the thesis, or 20 or 100 GPUs of five models."
        ),
    ] = "1x1",
    arrivals: Annotated[
        float,
        typer.Option(
            metavar="FACTOR",
            min=0,
            help="Arriving work divided by what the GPUs can do; 0: all jobs wait at the start.",
        ),
    ] = 0.0,
    policies: Annotated[str | None, typer.Option(metavar="A,B,…", help="Policies to compare.")] = None,
    jobs: Processes = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write report.html and result.json to this folder, and keep finished runs to continue from.",
        ),
    ] = None,
    as_json: JsonOrCsv = None,
) -> None:
    """Compare policies that choose which jobs to start together on one GPU (chapter V of the thesis).

    With several models of interference or kinds of knowledge, more GPUs, arrivals or drawn applications, it runs each
    policy in each of these worlds. It shows what `learned`, and its network alone, add to the best rule.

    Reports total time, use of GPU and memory, slowdowns, training, cost and pairs of applications, beside the thesis's
    numbers. Oh, "A Job Placement Using Reinforcement Learning in GPU Virtualization Environment", Sookmyung Women's
    University, 2019.
    """
    from berth.cli.files import interruption_explained
    from berth.cli.progress import progress_bar
    from berth.errors import install_command
    from berth.interference import make_interference
    from berth.knowledge import make_knowledge
    from berth.policies.colocation.learned import model_named, shipped_for
    from berth.profiles import WORKLOADS
    from berth.profiles.drawn import DRAWN
    from berth_papers.baselines.deeprm import package_of
    from berth_papers.cli.pages import show_answers, show_chapter, write_chapters
    from berth_papers.colocation.answer import colocation_dict
    from berth_papers.colocation.disagreement import disagreement, pairs
    from berth_papers.colocation.experiment import POLICIES, measure_colocation
    from berth_papers.colocation.matrix import OPPONENTS, worlds_of

    chosen = tuple(WORKLOADS) if workload == "all" else tuple(name.strip() for name in workload.split(","))
    modes, kinds = ([part.strip() for part in given.split(",")] for given in (interference, knowledge))
    worlds = worlds_of(chosen, modes, kinds, gpus, arrivals)
    if len(modes) > 1 or len(kinds) > 1 or gpus != "1x1" or arrivals or DRAWN in chosen:
        own = None if policies is None else tuple(name.strip() for name in policies.split(","))
        _matrix(worlds, own or OPPONENTS, range(first_seed, first_seed + seeds), jobs, out, as_json)
        return
    names = POLICIES if policies is None else tuple(name.strip() for name in policies.split(","))
    what = f"{len(chosen)} × {len(names)} × {seeds} runs"
    with interruption_explained(out, "kept"), progress_bar(what, long=True) as progress:
        result = measure_colocation(
            chosen,
            interference=interference,
            knowledge=knowledge,
            policies=names,
            seeds=tuple(range(first_seed, first_seed + seeds)),
            processes=jobs,
            keep=None if out is None else out / "kept",
            progress=progress,
        )
    if not result.bounds:
        print(
            "berth: lower bounds are left out; they need the extra 'optimum':"
            f" {install_command('optimum', 'berth-papers')}",
            file=sys.stderr,
        )
    model = make_interference(interference)
    disagreements = []
    if "learned" in names:
        replayed_seeds = tuple(range(first_seed, first_seed + min(seeds, LOOKED_AT)))
        with progress_bar("learned beside greedy", long=True) as progress:
            for number, name in enumerate(chosen):
                disagreements.append(disagreement(name, model, replayed_seeds, knowledge))
                if progress:
                    progress(number + 1, len(chosen))
    pair_maps = pairs(model)  # type: ignore[arg-type]  # measure_colocation has refused what has no profiles
    trained = ("learned", "deeprm-max", "deeprm-mean")
    speeds = make_knowledge(knowledge, (), model).speeds
    training_s = {
        name: figures["seconds"]
        for name, package in ((one, package_of(one)) for one in trained)
        if name in names
        and "seconds" in (figures := model_named(shipped_for(name, speeds, package), package=package).figures)
    }
    answer = colocation_dict(result, disagreements, pair_maps, training_s)
    table = as_json is None
    written: list[Path] = []
    if out is not None or table:
        from berth_papers.colocation.chapters import colocation_answers, colocation_chapters

        answers = colocation_answers(result)
        chapters = colocation_chapters(result, disagreements, pair_maps, training_s)
        if out is not None:
            what = (
                f"sets of 30 jobs of {', '.join(chosen)}, seeds {first_seed}…{first_seed + seeds - 1};"
                f" interference: {interference}; knowledge: {knowledge}"
            )
            gpu = "one Titan Xp of the thesis: 12 GiB, 3,840 cores, PCIe 32 GB/s"
            written = write_chapters(
                out, "Learned co-location on one GPU", what, gpu, chapters, answer, answers
            )
        if table:
            show_answers(answers)
            for chapter in chapters:
                if chapter.rows:
                    show_chapter(chapter, ())
            for path in written:
                print(f"wrote {path}")
    printed(as_json, answer["summary"], answer)


def _matrix(
    worlds: Sequence[World],
    policies: Sequence[str],
    seeds: range,
    processes: int,
    out: Path | None,
    as_json: bool | None,
) -> None:
    """Measure many worlds, and print or write what came of it."""
    from berth.cli.files import interruption_explained
    from berth.cli.progress import progress_bar
    from berth_papers.cli.pages import show_chapter, write_chapters
    from berth_papers.colocation.matrix import measure_matrix
    from berth_papers.colocation.matrix_chapters import matrix_chapter, matrix_dict

    what = f"{len(worlds)} × {len(policies)} × {len(seeds)} runs"
    with interruption_explained(out, "kept"), progress_bar(what, long=True) as progress:
        found = measure_matrix(
            worlds,
            policies=policies,
            seeds=seeds,
            processes=processes,
            keep=None if out is None else out / "kept",
            progress=progress,
        )
    answer, chapter = matrix_dict(found), matrix_chapter(found)
    written: list[Path] = []
    if out is not None:
        what = f"{len(worlds)} worlds, sets of seeds {seeds[0]}…{seeds[-1]}"
        where = (
            "one Titan Xp of the thesis"
            if worlds[0].gpus == "1x1"
            else f"{worlds[0].gpus} GPUs of five models"
        )
        written = write_chapters(
            out, "Co-location in many worlds", what, where, [chapter], answer, [str(answer["adds"])]
        )
    rows = [
        {name: value for name, value in world.items() if name != "policies"} | row
        for world in answer["worlds"]
        for row in world["policies"]
    ]
    if printed(as_json, rows, answer):
        return
    print(answer["adds"])
    show_chapter(chapter, ())
    for path in written:
        print(f"wrote {path}")
