"""`berth advise`: which limit to set on each user, by replaying the history under several."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import completing
from berth.cli.history_folder import HistoryFolder
from berth.cli.output import console, plain_table, printed
from berth.cli.progress import progress_bar
from berth.cli.run_options import Processes, RunOptions, Since, Until, conditions_asked, period_asked
from berth.cli.shared_options import with_options
from berth.counts import counted
from berth.history.values.durations import duration_text

if TYPE_CHECKING:
    from berth.experiments.limit_advice import LimitAdvice, Outcome, Tried

USED = ("cluster", "map_nodes", "knowledge", "as_json")
DEFAULT_POLICY = "easy+fifo+best-fit"


@with_options(RunOptions, *USED)
def advise(
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How jobs are placed today; by default as the history knows, else easy+fifo+best-fit.",
            autocompletion=completing.policy,
        ),
    ] = "",
    since: Since = "28d",
    until: Until = "",
    jobs: Processes = 1,
    history: HistoryFolder = Path("history"),
    *,
    options: RunOptions,
) -> None:
    """Propose a limit on the running jobs or GPUs of each user, by replaying the history under several limits.

    Prints the command that would set it; changes nothing.
    """
    from berth.experiments.limit_advice import advise_limits
    from berth.experiments.returnable import run_and_trust
    from berth.experiments.what_if import nodes_and_conditions
    from berth.history.store.folder import open_history

    begin_ms, end_ms = period_asked(since, until)
    store = open_history(history, must_exist=True)
    real, trust = run_and_trust(store, since_ms=begin_ms, until_ms=end_ms, nodes=options.nodes)
    nodes, under = nodes_and_conditions(real, options.nodes, conditions_asked(options))
    with progress_bar("replaying the history") as progress:
        found = advise_limits(
            real.jobs,
            nodes,
            policy or real.policy or DEFAULT_POLICY,
            under,
            processes=jobs,
            progress=progress,
        )
    rows = [{"limit": "", "policy": found.policy, **_numbers(found.now)}, *map(_row, found.tried)]
    answer = {
        "policy": found.policy,
        "replay": trust.sentence,
        "believable": trust.is_believable if trust.weekly_errors_pct else None,
        "runs": rows,
    }
    if not printed(options.as_json, rows, answer):
        print(trust.sentence)
        of = f"{counted(len(real.jobs), 'job')} of {counted(len(found.now.users), 'user')} (--since {since})"
        _show(
            found,
            f"{of}, replayed under {found.policy} (knowledge: {options.knowledge}).",
            bool(store.index().key_mark),
        )


def _numbers(outcome: Outcome) -> dict[str, Any]:
    return {
        "wait_p50_s": outcome.wait_p50_s,
        "wait_p90_s": outcome.wait_p90_s,
        "typical_user_wait_s": outcome.typical_wait_s,
        "gpus_held_pct": outcome.held_pct,
        "never_finished": outcome.never,
    }


def _row(tried: Tried) -> dict[str, Any]:
    return {
        "limit": tried.setting,
        "policy": tried.policy,
        **_numbers(tried.outcome),
        "users_waiting_less": tried.less,
        "users_waiting_more": tried.more,
        "advised": tried.advised,
        "slurm": tried.slurm_command,
    }


def _show(found: LimitAdvice, head: str, has_pseudonyms: bool) -> None:
    from berth.experiments.limit_advice import NOTICED_S

    def cells(name: str, outcome: Outcome, change: str) -> tuple[str, ...]:
        waits = (outcome.wait_p50_s, outcome.wait_p90_s, outcome.typical_wait_s)
        return (name, *map(duration_text, waits), f"{outcome.held_pct:.1f}", str(outcome.never or ""), change)

    rows = [cells("without a limit", found.now, "")]
    for each in found.tried:
        star = "* " if each.advised else ""
        rows.append(cells(star + each.words, each.outcome, f"{each.less}/{each.more}"))
    heads = ("limit", "median wait", "90 %", "typical user", "GPUs held %", "unfinished", "less/more")
    screen = console(soft_wrap=True)
    screen.print(head)
    screen.print(plain_table(heads, rows))
    screen.print(
        "* advised. Median and 90 % are of jobs; for the typical user each user counts once. less/more: users whose"
        f" mean wait falls or rises by over {NOTICED_S:.0f} s and 1 %."
    )
    if not found.tried or not found.tried[0].advised:
        screen.print("No limit is advised: none shortens the typical user's wait by a tenth without harm.")
        return
    best = found.tried[0]
    screen.print(f"Advised: {best.words}. Run one of these yourself; berth changes nothing:")
    print(f"  {best.slurm_command}")
    print(f"  berth up --policy {shlex.quote(best.policy)}")
    if has_pseudonyms:
        screen.print("Names in this history are pseudonyms: put your users' names in the first command.")
