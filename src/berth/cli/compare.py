"""`berth simulate` and `berth compare`: a trace through one policy or several."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli import completing
from berth.cli.comma_separated import policies_of
from berth.cli.files import checked_place, command_line, interruption_explained, write_results
from berth.cli.history_folder import HistoryFolder
from berth.cli.output import console, printed
from berth.cli.progress import compiling_shown, progress_bar
from berth.cli.run_options import (
    FromHistory,
    Processes,
    Ray,
    RunOptions,
    Since,
    Until,
    conditions_asked,
    joined,
    one_source,
    period_asked,
    tell_skipped,
)
from berth.cli.shared_options import with_options
from berth.counts import counted
from berth.errors import SettingError
from berth.model import Reason
from berth.traces import read_trace, write_nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from berth.experiments.compare import Comparison
    from berth.interference import Interference
    from berth.model import Node

Trace = Annotated[str, typer.Argument(metavar="TRACE", help="A trace file, or synthetic:NAME?jobs=…&seed=….")]
SHORT_MS = 10_000
"""Jobs that ran for less are told of: a replay of them is not within 2 % of what happened."""
SINCE = "7d"


@with_options(RunOptions)
def simulate(
    trace: Trace,
    policy: Annotated[
        str,
        typer.Option(
            help="A name that `berth policies` lists, or my.module:thing.", autocompletion=completing.policy
        ),
    ] = "fifo+first-fit",
    seed: Annotated[int, typer.Option(help="Seed of random numbers.")] = 0,
    records: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.parquet",
            help="Write a record of every attempt to this file, which is a trace again.",
        ),
    ] = None,
    *,
    options: RunOptions,
) -> None:
    """Replay a trace through one policy."""
    _run(trace, [policy], [seed], options, records=records)


@with_options(RunOptions)
def compare(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="[TRACE]",
            help="A trace file, or synthetic:NAME?jobs=…&seed=…; none with --from-history.",
        ),
    ] = "",
    policies: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Names that `berth policies` lists, or my.module:thing.",
            autocompletion=completing.policies,
        ),
    ] = "fifo+first-fit,sjf+best-fit,fgd",
    seeds: Annotated[int, typer.Option(min=1, max=100_000, help="Number of seeds; they are 0, 1, ….")] = 1,
    jobs: Processes = 1,
    ray: Ray = None,
    from_history: FromHistory = False,
    since: Since = SINCE,
    until: Until = "",
    whole_gpus: Annotated[
        bool,
        typer.Option(
            "--whole-gpus", help="With --from-history: give each job whole GPUs, as if none were shared."
        ),
    ] = False,
    history: HistoryFolder = Path("history"),
    *,
    options: RunOptions,
) -> None:
    """Replay a trace through several policies and put the results side by side."""
    one_source("compare replays", trace, from_history)
    of_history = {"--since": since != SINCE, "--until": bool(until), "--whole-gpus": whole_gpus}
    of_trace = {
        "--seeds": seeds > 1,
        "--ray": bool(ray),
        "--events": options.events is not None,
        "--map": bool(options.map),
        "--compress": options.compress != 1,
    }
    wrong = [name for name, given in (of_trace if from_history else of_history).items() if given]
    if wrong:
        what = "a TRACE, not with --from-history" if from_history else "--from-history, not with a TRACE"
        raise SettingError(f"{', '.join(wrong)}: only with {what}; leave it out")
    if from_history:
        _from_history(history, since, until, policies_of(policies), whole_gpus, options, jobs)
        return
    if seeds == 2:
        print(
            "berth: two seeds give wide intervals that hardly tell policies apart; use --seeds 5 or more",
            file=sys.stderr,
        )
    _run(trace, policies_of(policies), list(range(seeds)), options, jobs, ray)


def _from_history(
    folder: Path,
    since: str,
    until: str,
    policies: list[str],
    whole_gpus: bool,
    options: RunOptions,
    processes: int,
) -> None:
    """Replay the live history, and say how far each replay is from what happened."""
    from berth.experiments.what_if import what_if
    from berth.history.store.folder import open_history

    begin_ms, end_ms = period_asked(since, until)
    with progress_bar(counted(len(policies), "run")) as progress:
        found = what_if(
            open_history(folder, must_exist=True),
            policies,
            since_ms=begin_ms,
            until_ms=end_ms,
            nodes=options.nodes,
            whole_gpus=whole_gpus,
            processes=processes,
            progress=progress,
            **conditions_asked(options),
        )
    real, result, apart = found.real, found.result, found.apart
    written = [] if options.out is None else _write(result, options.out, found.trust.sentence)
    short = sum((job.work_ms or 0) < SHORT_MS for job in real.jobs)
    if options.as_json is not None:
        answer = {
            "makespan_s": real.makespan_s,
            "wait_mean_s": real.wait_mean_s,
            "policy": real.policy,
            "left_out": real.left_out,
            "gave_up": real.gave_up,
            "weekly_p90_errors_pct": found.trust.weekly_errors_pct,
            "believable": found.trust.is_believable if found.trust.weekly_errors_pct else None,
            "elsewhere": real.elsewhere,
            "jobs": len(real.jobs),
            "jobs_under_10_s": short,
            "apart": [{"policy": name, "makespan_pct": span, "wait_pct": wait} for name, span, wait in apart],
        }
        printed(options.as_json, result.rows(), {**result.to_dict(), "real": answer})
        return
    if not found.trust.is_believable:
        print(found.trust.sentence)
    _show(result, written)
    if found.trust.is_believable:
        print(found.trust.sentence)
    by = f" under {real.policy}" if real.policy else ""
    print(
        f"What really happened{by}: makespan {real.makespan_s:,.1f} s, mean wait {real.wait_mean_s:,.1f} s."
    )
    for run, (name, span, _) in zip(result.runs, apart, strict=True):
        mark = " (the policy that ran)" if name == real.policy else ""
        wait_s = run.summary.waiting_time_s.mean
        print(
            f"  replay of {name}{mark}: makespan {run.summary.makespan_s:,.1f} s ({_signed(span, '%')}), mean wait"
            f" {wait_s:,.1f} s ({_signed(wait_s - real.wait_mean_s, 's')})"
        )
    if found.error is not None and found.as_it_was not in result.runs:
        name, span, wait = found.error
        print(
            f"As it was, a replay of {name} is {_signed(span, '%')} from the real makespan and {_signed(wait, '%')}"
            " from the real mean wait."
        )
    if short:
        print(
            f"{short:,} of {len(real.jobs):,} jobs ran for less than {SHORT_MS // 1000} s: a large part of their time"
            " is the start itself, which no replay knows.",
            file=sys.stderr,
        )
    if real.gave_up:
        print(
            f"{counted(real.gave_up, 'job')} left the queue before running, and in the replay after the same wait.",
            file=sys.stderr,
        )
    if real.left_out:
        never = counted(real.left_out, "job never ran, and is", "jobs never ran, and are")
        print(f"{never} left out.", file=sys.stderr)
    if real.elsewhere:
        others = counted(real.elsewhere, "job of another cluster is", "jobs of other clusters are")
        print(f"{others} left out: only jobs of this machine are replayed.", file=sys.stderr)


def _signed(value: float, unit: str) -> str:
    """A difference that says +0.0 where it is nothing, not -0.0."""
    return f"{round(value, 1) + 0.0:+.1f} {unit}"


def _run(
    trace: str,
    policies: list[str],
    seeds: list[int],
    options: RunOptions,
    jobs: int = 1,
    ray: str | None = None,
    records: Path | None = None,
) -> None:
    from berth.experiments.compare import compare as compare_policies

    for path in filter(None, (options.events, records)):
        checked_place(path, ".parquet")
    conditions = conditions_asked(options)
    source = read_trace(trace, columns=joined(options.map))
    runs = f"{len(policies)} × {len(seeds)} runs"
    with progress_bar(runs) as progress, compiling_shown(), interruption_explained(options.out):
        result = compare_policies(
            source,
            policies,
            cluster=options.nodes or None,
            seeds=seeds,
            events=options.events,
            records=records,
            processes=jobs,
            ray=ray,
            keep=options.out,
            progress=progress,
            **conditions,
        )
    _say_unknown_cards(result.conditions.interference, result.nodes)
    written = [path for path in (options.events, records) if path is not None]
    if options.out is not None:
        written += _write(result, options.out)
    if options.as_json is not None:
        printed(options.as_json, result.rows(), result.to_dict())
    else:
        _show(result, written)
    _warn_of_models(result, options.cluster)
    _warn_of_idle(result)


def _warn_of_models(result: Comparison, cluster: object) -> None:
    """End with status 1 if jobs ask for GPU models that the cluster that was named does not have."""
    if cluster is None or not any("GPU model" in str(shortage) for shortage in result.never_fitting):
        return
    models = sorted({node.gpu_model.name for node in result.nodes if node.gpu_model})
    print(
        f"berth: warning: jobs ask for GPU models that --cluster {cluster} does not have: its GPUs are"
        f" {', '.join(models) or 'none'}; name those that the trace asks for",
        file=sys.stderr,
    )
    raise typer.Exit(1)


def _warn_of_idle(result: Comparison) -> None:
    """End with status 1 if a policy finished nothing of what the cluster can hold."""
    idle = [
        run
        for run in result.runs
        if not run.summary.finished and run.summary.rejections.get(Reason.NEVER_FITS, 0) < run.summary.jobs
    ]
    for run in idle:
        print(
            f"berth: warning: {run.policy}, seed {run.seed}, finished none of {counted(run.summary.jobs, 'job')};"
            " does the policy yield placements?",
            file=sys.stderr,
        )
    if idle:
        raise typer.Exit(1)


def _say_unknown_cards(interference: Interference, nodes: Sequence[Node]) -> None:
    """Say for which cards the memory is unknown, if the model of interference would go by it."""
    from berth.interference.profiled import ProfiledInterference

    if not isinstance(interference, ProfiledInterference):
        return
    cards = {node.gpu_model for node in nodes if node.gpus}
    unknown = sorted(
        card.name if card else "(no model named)" for card in cards if not (card and card.mem_mib)
    )
    if unknown:
        print(
            f"berth: the memory of these GPUs is unknown, so it never runs out there: {', '.join(unknown)};"
            " name a known model, such as T4 or V100",
            file=sys.stderr,
        )


def _write(result: Comparison, out: Path, first: str = "") -> list[Path]:
    """Write what there is to keep into a folder; each file aside first, then renamed. The page begins with `first`."""
    from berth.experiments.compare.page import comparison_report

    report, nodes = comparison_report(result, command_line(), first), out / "cluster.csv"
    written = write_results(out, report, result.to_dict())
    write_nodes(result.nodes, nodes)
    return [*written, nodes]


def _show(result: Comparison, written: list[Path]) -> None:
    from berth.experiments.compare.table import rich_tables
    from berth.policies.genetic.batch import grouped

    screen = console(soft_wrap=True)
    jobs = result.runs[0].summary.jobs
    gpus = sum(node.gpus for node in result.nodes)
    seeds = counted(len(result.seeds), "seed")
    knowledge = (
        "" if result.conditions.knowledge == "oracle" else f", knowledge {result.conditions.knowledge}"
    )
    screen.print(
        f"{result.trace}: {counted(jobs, 'job')} on {counted(len(result.nodes), 'node')} with {counted(gpus, 'GPU')},"
        f" {seeds}{knowledge}",
    )
    for sentence in result.answers:
        screen.print(sentence, style="bold")
    for table in rich_tables(result.runs, screen):
        screen.print(table)
    never = max(run.summary.rejections.get(Reason.NEVER_FITS, 0) for run in result.runs)
    if never:
        print(
            f"{counted(never, 'job asks', 'jobs ask')} for what no node of this cluster has, even empty: rejected",
            file=sys.stderr,
        )
        for line in grouped(result.never_fitting):
            print(f"  {line}", file=sys.stderr)
        if never > len(result.never_fitting):
            print(f"  and {never - len(result.never_fitting):,} more", file=sys.stderr)
    for run in result.runs:
        if lost := run.summary.failures.get(Reason.LOST_TOO_OFTEN, 0):
            named = ", ".join(f"'{name}'" for name in run.summary.given_up)
            print(
                f"{run.policy}, seed {run.seed}: {lost:,} jobs are given up, as"
                f" {result.conditions.recovery.most_lost} attempts of each were lost with their nodes and kept nothing:"
                f" {named}{', …' if lost > len(run.summary.given_up) else ''}; --checkpoint lets jobs keep their work",
                file=sys.stderr,
            )
    tell_skipped(result.skipped)
    for path in written:
        screen.print(f"wrote {path}", soft_wrap=True)
