"""`berth advise`: which limits to set, by replaying the history under each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import completing
from berth.cli.importing import HistoryFolder
from berth.cli.output import AsJson, Form, Format, console, plain_table, printed
from berth.cli.run_options import Knowledge, NodeColumns, cluster_named
from berth.cli.stats import From, To
from berth.counts import counted
from berth.history.values.moments import moment_ms

if TYPE_CHECKING:
    from berth.advice.advise import Advice, Tried
    from berth.advice.replay import Outcome
    from berth.advice.workload import Workload
    from berth.model import Node


def advise(
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How the cluster places jobs today: SCHEME+ORDER+PLACEMENT.",
            autocompletion=completing.policy,
        ),
    ] = "easy+fifo+best-fit",
    cluster: Annotated[
        str,
        typer.Option(
            metavar="FILE|SPEC",
            help="The nodes; by default those in slurmdbd, with the GPUs that jobs held on each.",
        ),
    ] = "",
    map_nodes: NodeColumns = "",
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Replay at most this many of the period's last jobs.")
    ] = 10_000,
    share: Annotated[
        list[str] | None,
        typer.Option(
            metavar="APP=N",
            help="Also try N jobs of an application on one GPU, although this was never measured; repeatable.",
        ),
    ] = None,
    begin: From = "",
    end: To = "",
    knowledge: Knowledge = "oracle",
    history: HistoryFolder = Path("history"),
    as_json: AsJson = False,
    form: Format = Form.TABLE,
) -> None:
    """Propose limits on jobs, GPUs and nodes, and jobs to share a GPU, by replaying the history under each.

    Prints the Slurm commands that would set the best of them; changes nothing.
    """
    from berth.advice.advise import advise as ask
    from berth.cli.progress import progress_bar

    workload = _workload(history, cluster_named(cluster, map_nodes), begin, end, jobs)
    with progress_bar("replaying the history") as progress:
        advice = ask(workload, policy, share=_shares(share), knowledge=knowledge, progress=progress)
    answer = _answer(workload, advice)
    rows = [{"proposal": "as things are", **answer["now"]}, *answer["proposals"]]
    if printed(form, as_json, rows, answer):
        return
    _show(workload, advice)


def _workload(history: Path, nodes: tuple[Node, ...], begin: str, end: str, jobs: int) -> Workload:
    from berth.advice.workload import workload_of
    from berth.history.store.folder import open_history

    conditions, values = ["true"], []
    for text, option, comparison in ((begin, "--from", ">="), (end, "--to", "<")):
        if text:
            conditions.append(f"end_ms {comparison} ?")
            values.append(moment_ms(text, option))
    store = open_history(history, must_exist=True)
    records = store.records(" AND ".join(conditions), values)
    return workload_of(records, nodes, most_jobs=jobs, capacities=store.index().capacities)


def _shares(texts: list[str] | None) -> dict[str, int]:
    from berth.errors import SettingError

    found = {}
    for text in texts or []:
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal() or not 2 <= int(number) <= 100:
            raise SettingError(
                f"--share {text}: expected APPLICATION=N with N from 2 to 100, such as python=2"
            )
        found[name] = int(number)
    return found


# --- what is printed -------------------------------------------------------------------------------


def _numbers(outcome: Outcome) -> dict[str, Any]:
    waits = ("wait_median_s", "wait_p90_s", "wait_mean_s", "typical_user_wait_s")
    return {name: getattr(outcome, name) for name in (*waits, "utilisation_pct", "never", "slowed_pct")}


def _answer(workload: Workload, advice: Advice) -> dict[str, Any]:
    from berth.advice.advise import NOTICED_S, NOTICED_SHARE

    return {
        "policy": advice.policy,
        "knowledge": advice.knowledge,
        "jobs": len(workload.measured),
        "users": advice.users,
        "gpus": workload.gpus,
        "beside_without_gpu": workload.replayed_cpu_jobs,
        "left_out": {
            "without_gpu": workload.without_gpu,
            "never_started": workload.never_started,
            "too_large": workload.too_large,
        },
        "far_from_the_record": advice.far,
        "missing_in_the_replay": list(_missing(workload)) if advice.far else [],
        "recorded": {"wait_median_s": advice.recorded_median_s, "wait_p90_s": advice.recorded_p90_s},
        "now": _numbers(advice.now),
        "users_counted_from": {"change_s": NOTICED_S, "change_share": NOTICED_SHARE},
        "proposals": [
            {
                "proposal": each.proposal.words,
                "limit": None
                if each.proposal.limit is None
                else {key: value for key, value in asdict(each.proposal.limit).items() if value is not None},
                "share": None
                if each.proposal.limit
                else {
                    "application": each.proposal.application,
                    "jobs_per_gpu": each.proposal.sharers,
                    "placement": each.proposal.placement,
                },
                **_numbers(each.outcome),
                "users_waiting_less": each.less,
                "users_waiting_more": each.more,
                "change_of_users_s": dict(
                    zip(("min", "p10", "median", "p90", "max"), each.change_s, strict=True)
                ),
                "worth_having": each.worth_having,
                "commands": list(_commands(workload, each)),
            }
            for each in advice.tried
        ],
        "advised": [each.proposal.words for each in (advice.limit, advice.sharing) if each],
    }


def _commands(workload: Workload, tried: Tried) -> tuple[str, ...]:
    from berth.advice.commands import commands_of

    judged = [job for job in workload.jobs if job.id in workload.measured]
    return commands_of(
        tried.proposal, {job.virtual_cluster for job in workload.jobs}, {job.user for job in judged}
    )


def _show(workload: Workload, advice: Advice) -> None:
    from berth.advice.advise import NOTICED_S, NOTICED_SHARE

    screen = console()
    if advice.far:
        screen.print(
            "The replay of what happened is far from the record (next line): treat what follows only as a hint. "
            f"The replay lacks {'; '.join(_missing(workload))}.",
            style="bold",
        )
    beside = (
        f", beside {counted(workload.replayed_cpu_jobs, 'job')} without a GPU on the same nodes"
        if workload.replayed_cpu_jobs
        else ""
    )
    screen.print(
        f"{counted(len(workload.measured), 'job')} of {counted(advice.users, 'user')} on"
        f" {counted(workload.gpus, 'GPU')}{beside}. They really waited"
        f" {advice.recorded_median_s:,.0f} s (median), {advice.recorded_p90_s:,.0f} s (90 %); replayed by "
        f"{advice.policy} (knowledge: {advice.knowledge}), {advice.now.wait_median_s:,.0f} and "
        f"{advice.now.wait_p90_s:,.0f} s.",
    )
    rows = [("as things are", *_cells(advice.now), "")]
    for each in advice.tried:
        never = f", {each.outcome.never} never" if each.outcome.never else ""
        name = f"{'* ' if each.worth_having else ''}{each.proposal.words}"
        rows.append((name, *_cells(each.outcome), f"{each.less}/{each.more}{never}"))
    screen.print(plain_table(("proposal", "median", "90 %", "user", "held %", "−/+"), rows))
    screen.print(
        "* worth having. Waits: median and 90 % of jobs, and the typical user's; how much of the GPUs is held; how "
        f"many users would have waited less, and more (−/+), by over {NOTICED_S:.0f} s and {NOTICED_SHARE * 100:.0f} % "
        "of their mean wait.",
    )
    chosen = [each for each in (advice.limit, advice.sharing) if each]
    if not chosen:
        screen.print("No proposal is worth having.")
    for each in chosen:
        least, low, middle, high, most = each.change_s
        screen.print(
            f"\nAdvised: {each.proposal.words}. Users' mean waits change by {least:+,.0f} s at the least, "
            f"{low:+,.0f} (10 %), {middle:+,.0f} (median), {high:+,.0f} (90 %), {most:+,.0f} at the most. "
            "berth does not run these commands:",
        )
        for line in _commands(workload, each):
            print(line)
    for number, what in (
        (workload.without_gpu, "attempts without a GPU"),
        (workload.never_started, "attempts that never started"),
        (workload.too_large, "jobs larger than any node"),
    ):
        if number:
            print(f"left out: {number:,} {what}", file=sys.stderr)


def _missing(workload: Workload) -> Iterator[str]:
    """What keeps a replay from being what happened, as far as it is known."""
    if any(node.cpu_milli is None or node.mem_mib is None for node in workload.nodes):
        yield "CPU or memory, which jobs may have waited for: how much nodes have is not known"
    if workload.without_gpu:
        yield f"{counted(workload.without_gpu, 'job')} without a GPU"
    if workload.too_large:
        yield f"{counted(workload.too_large, 'job')} larger than any node"
    yield "limits, priorities, reservations and nodes that were down at the time"


def _cells(outcome: Outcome) -> tuple[str, ...]:
    from berth.history.values.durations import duration_text

    waits = (outcome.wait_median_s, outcome.wait_p90_s, outcome.typical_user_wait_s)
    return (*map(duration_text, waits), f"{outcome.utilisation_pct:.1f}")
