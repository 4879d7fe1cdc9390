"""`berth experiment colocation`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from berth.cli.run_options import Knowledge

__all__ = ["colocation"]

LOOKED_AT = 5
"""So many sets of each workload are gone through again to count where the network differs from greedy."""


def colocation(
    workload: Annotated[
        str, typer.Option(metavar="A,B,…|all", help="Workloads of the thesis: GPU_heavy, …, random.")
    ] = "all",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="How many sets of 30 jobs: 0, 1, ….")] = 30,
    interference: Annotated[str, typer.Option(help="time-sliced, mps or mig.")] = "mps",
    knowledge: Knowledge = "oracle",
    policies: Annotated[str | None, typer.Option(metavar="A,B,…", help="Policies to compare.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="How many runs at the same time.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write report.html and result.json here, and keep finished runs to continue from.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on standard output, and nothing else.")
    ] = False,
) -> None:
    """Which waiting jobs to start together on one GPU: chapter V of the thesis.

    Total time, use of GPU and memory, slowdowns, training, cost and pairs of applications, with the thesis's numbers
    beside ours. Oh, "A Job Placement Using Reinforcement Learning in GPU Virtualization Environment", Sookmyung Women's
    University, 2019.
    """
    from berth.cli.files import told_what_is_kept
    from berth.cli.genetic import show_chapter, write_chapters
    from berth.cli.progress import progress_bar
    from berth.errors import install_command
    from berth.experiments.colocation.answer import colocation_dict
    from berth.experiments.colocation.experiment import POLICIES, measure_colocation
    from berth.experiments.colocation.looks import disagreement, pairs
    from berth.interference import make_interference
    from berth.knowledge import make_knowledge
    from berth.policies.colocation.learned import model_named, shipped_for
    from berth.profiles import WORKLOADS

    chosen = tuple(WORKLOADS) if workload == "all" else tuple(name.strip() for name in workload.split(","))
    names = POLICIES if policies is None else tuple(name.strip() for name in policies.split(","))
    what = f"{len(chosen)} × {len(names)} × {seeds} runs"
    with told_what_is_kept(out, "kept"), progress_bar(what, long=True) as progress:
        result = measure_colocation(
            chosen,
            interference=interference,
            knowledge=knowledge,
            policies=names,
            seeds=tuple(range(seeds)),
            processes=jobs,
            keep=None if out is None else out / "kept",
            progress=progress,
        )
    if not result.bounds:
        print(
            f"berth: lower bounds are left out; they need the extra 'optimum': {install_command('optimum')}",
            file=sys.stderr,
        )
    model = make_interference(interference)
    looks = []
    if "learned" in names:
        with progress_bar("learned beside greedy", long=True) as progress:
            for number, name in enumerate(chosen):
                looks.append(disagreement(name, model, tuple(range(min(seeds, LOOKED_AT))), knowledge))
                if progress:
                    progress(number + 1, len(chosen))
    pair_maps = pairs(model)  # type: ignore[arg-type]  # measure_colocation has refused what has no profiles
    trained = ("learned", "deeprm-max", "deeprm-mean")
    speeds = make_knowledge(knowledge, (), model).speeds
    training_s = {
        name: figures["seconds"]
        for name in trained
        if name in names and "seconds" in (figures := model_named(shipped_for(name, speeds)).figures)
    }
    answer = colocation_dict(result, looks, pair_maps, training_s)
    written: list[Path] = []
    if out is not None or not as_json:
        from berth.experiments.colocation.chapters import colocation_chapters

        chapters = colocation_chapters(result, looks, pair_maps, training_s)
        if out is not None:
            what = (
                f"sets of 30 jobs of {', '.join(chosen)}, seeds 0…{seeds - 1}; interference: {interference};"
                f" knowledge: {knowledge}"
            )
            gpu = "one Titan Xp of the thesis: 12 GiB, 3,840 cores, PCIe 32 GB/s"
            written = write_chapters(out, "Learned co-location on one GPU", what, gpu, chapters, answer)
        if not as_json:
            for chapter in chapters:
                if chapter.rows:
                    show_chapter(chapter, ())
            for path in written:
                print(f"wrote {path}")
    if as_json:
        print(json.dumps(answer, allow_nan=False))
