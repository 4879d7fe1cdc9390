"""`berth experiment …`: the experiments of the literature, one command each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.output import JsonOrCsv, printed
from berth.cli.run_options import Knowledge
from berth_papers.cli import colocation, genetic
from berth_papers.cli.pages import show_answers, show_table, write_chapters

if TYPE_CHECKING:
    from berth_papers.inflate import Inflation

app = typer.Typer(help="Run an experiment of the literature.", no_args_is_help=True)
app.command()(colocation.colocation)
app.command()(genetic.optimality)
app.command()(genetic.utilisation)


@app.callback()
def _experiment() -> None:
    pass


@app.command()
def inflate(
    nodes: Annotated[str, typer.Option(metavar="FILE|SPEC", help="A node list, or 10x8:V100.")],
    pods: Annotated[str, typer.Option(metavar="TRACE", help="The workload that arrives.")],
    policy: Annotated[
        str, typer.Option(metavar="A,B,…", help="One policy, or several for a report.")
    ] = "fgd",
    order: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="File with arrival orders and ranks by seed; by default drawn from the seed.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order and of random numbers.")] = 42,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, counted from --seed.")] = 1,
    batch: Annotated[
        int,
        typer.Option(
            min=1, max=500, help="Number of jobs that arrive and are placed together; placements are final."
        ),
    ] = 1,
    knowledge: Knowledge = "oracle",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write report.html and result.json to this folder.")
    ] = None,
    as_json: JsonOrCsv = None,
) -> None:
    """Let jobs arrive, with none leaving, up to 130 % of the cluster's GPUs.

    GPU allocation and fragmentation ratio at each whole per cent of arrived load, after Weng et al., "Beware of
    Fragmentation", USENIX ATC 2023.
    """
    from berth.cli.progress import progress_bar
    from berth.traces import read, read_nodes
    from berth_papers.inflate import inflate as run
    from berth_papers.inflate import inflation_dict, read_arrivals

    cluster = read_nodes(nodes)
    workload = list(read(pods, nodes=cluster, file_order=True))
    names = [name.strip() for name in policy.split(",")]
    results: list[Inflation] = []
    with progress_bar("inflation") as progress:
        for name in names:
            for number in range(seed, seed + seeds):
                arrivals = None if order is None else read_arrivals(order, number)
                results.append(
                    run(
                        cluster,
                        workload,
                        name,
                        seed=number,
                        arrivals=arrivals,
                        name=pods,
                        batch=batch,
                        knowledge=knowledge,
                    )
                )
                if progress:
                    progress(len(results), len(names) * seeds)
    dicts = [inflation_dict(result) for result in results]
    answer = dicts[0] if len(dicts) == 1 else dicts
    written = [] if out is None else _write(results, out, answer)
    if printed(as_json, [_row(result) for result in results], answer):
        return
    _show(results, written)


def _row(result: Inflation) -> dict[str, object]:
    """What the table says of a run."""
    curve = result.curve
    return {
        "policy": curve.policy,
        "seed": curve.seed,
        "arrivals": result.arrivals,
        "placed": result.placed,
        "allocation_at_100_pct": float(curve.allocation_pct[100]),
        "allocation_at_130_pct": float(curve.allocation_pct[130]),
        "fragmentation_at_100_pct": float(curve.fragmentation_ratio_pct[100]),
        "seconds": result.seconds,
    }


def _write(results: list[Inflation], out: Path, answer: object) -> list[Path]:
    from berth.experiments.compare.page import cluster_in_words
    from berth_papers.inflate.chapters import inflation_answers, inflation_chapter
    from berth_papers.inflate.inflation import UP_TO_PCT

    first, curves = results[0], [result.curve for result in results]
    what = (
        f"{first.workload}: jobs arrive until {UP_TO_PCT} % of the GPUs is asked for; none leaves;"
        f" knowledge: {first.knowledge}"
    )
    title, where = f"Inflation of {Path(first.workload).name}", cluster_in_words(first.nodes)
    chapters, answers = [inflation_chapter(curves)], inflation_answers(curves)
    return write_chapters(out, title, what, where, chapters, answer, answers)


def _show(results: list[Inflation], written: list[Path]) -> None:
    from berth_papers.inflate.chapters import inflation_answers

    show_answers(inflation_answers([result.curve for result in results]))
    columns = {
        "policy": "{policy}",
        "seed": "{seed}",
        "arrivals": "{arrivals:,}",
        "placed": "{placed:,}",
        "allocation at 100 %": "{allocation_at_100_pct:.2f} %",
        "at 130 %": "{allocation_at_130_pct:.2f} %",
        "fragmentation at 100 %": "{fragmentation_at_100_pct:.2f} %",
        "seconds": "{seconds:.3f}",
    }
    rows = [[form.format_map(_row(result)) for form in columns.values()] for result in results]
    show_table(tuple(columns), rows, written=written)


@app.command()
def pai(
    jobs_file: Annotated[
        str, typer.Argument(metavar="FILE", help="PAI's job sample, as its publisher has it.")
    ],
    jobs: Annotated[int, typer.Option("-n", min=1, help="Number of jobs to draw.")] = 20_000,
    gpus: Annotated[int, typer.Option("-g", min=1, help="Number of GPUs in the pool.")] = 6500,
    rate: Annotated[int, typer.Option("-r", help="Jobs that arrive per minute; -1: as submitted.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed for drawing the jobs.")] = 42,
    knowledge: Knowledge = "oracle",
    as_json: JsonOrCsv = None,
) -> None:
    """Run the experiment of PAI's own simulator: SJF, estimates and FIFO on one pool of GPUs.

    After Weng et al., "MLaaS in the Wild", NSDI 2022. Published for `pai_job_duration_estimate_100K.csv` and the
    defaults: 5,988.61 s for SJF and 7,918.47 s for FIFO. SJF goes by the run times that `--knowledge` believes, the
    others by the file's estimates and by arrival.
    """
    from berth_papers.pai import PUBLISHED, pai_dict
    from berth_papers.pai import pai as run

    results = run(jobs_file, jobs=jobs, gpus=gpus, rate=rate, seed=seed, knowledge=knowledge)
    same = (jobs, gpus, rate, seed) == (20_000, 6500, 1000, 42) and len(results) == len(PUBLISHED)
    same = same and knowledge == "oracle" and all(result.jobs == jobs for result in results)
    if printed(as_json, [pai_dict(result, same) for result in results]):
        return
    show_table(
        ("order", "mean completion", "published", "mean wait", "makespan", "jobs", "seconds"),
        [
            (
                result.order,
                f"{result.completion_s:,.2f} s",
                f"{PUBLISHED[result.order]:,.2f} s" if same else "–",
                f"{result.wait_s:,.2f} s",
                f"{result.makespan_s:,.0f} s",
                f"{result.jobs:,}",
                f"{result.seconds:.2f}",
            )
            for result in results
        ],
        None if knowledge == "oracle" else f"knowledge: {knowledge}",
    )
