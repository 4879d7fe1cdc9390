"""`berth backtest`: how far predictions of a history's next week were from what happened."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli import completing
from berth.cli.comma_separated import policies_of
from berth.cli.history_folder import HistoryFolder
from berth.cli.output import JsonOrCsv, console, plain_table, printed
from berth.cli.run_options import (
    ClusterOption,
    Columns,
    Knowledge,
    NodeColumns,
    Since,
    Until,
    cluster_named,
    joined,
    period_asked,
)
from berth.errors import SettingError
from berth.history.values.durations import duration_text
from berth.traces import read_trace

if TYPE_CHECKING:
    from berth.experiments.backtest import Backtest
    from berth.experiments.weeks import Waits
    from berth.model import Node

HEADINGS = ("Week", "Jobs", "Wait", "Predicted by", "Real", "Predicted", "80 % interval", "Last week")


def backtest(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="[TRACE]", help="A trace whose simulation under the first policy counts as what happened."
        ),
    ] = "",
    policies: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Candidates for the policy that ran, if the history does not record it.",
            autocompletion=completing.policies,
        ),
    ] = "fifo+first-fit,easy+fifo+best-fit,passing+fifo+best-fit",
    knowledge: Knowledge = "oracle",
    first: Annotated[
        int, typer.Option(min=1, metavar="WEEKS", help="Weeks to learn from before the first prediction.")
    ] = 2,
    cluster: ClusterOption = None,
    map_nodes: NodeColumns = None,
    columns: Columns = None,
    since: Since = "",
    until: Until = "",
    history: HistoryFolder = Path("history"),
    as_json: JsonOrCsv = None,
) -> None:
    """Predict each week's waits from the weeks before, and say how far off the predictions were."""
    from berth.experiments.backtest import backtest as test
    from berth.policies import make_policy

    if trace and (since or until):
        raise SettingError("--since and --until choose jobs of the history; a TRACE is taken as a whole")
    names = policies_of(policies)
    for name in names:
        make_policy(name)
    nodes = cluster_named(cluster, map_nodes)
    if trace:
        real, replays = _of_trace(trace, joined(columns), nodes, names, knowledge)
    else:
        real, replays = _of_history(history, since, until, nodes, names, knowledge)
    found = test(real, replays, first)
    rows = [
        {
            **asdict(each),
            "error_pct": each.error_pct,
            "last_week_error_pct": each.last_week_error_pct,
            "held": each.held,
        }
        for each in found.predicted
    ]
    answer = {
        "answers": list(found.sentences),
        "caution": found.caution,
        "coverage_pct": {measure: found.coverage_pct(measure) for measure in ("mean", "p90")},
        "weeks": rows,
    }
    if not printed(as_json, rows, answer):
        _show(found)


def _of_trace(
    trace: str, columns: str, named: tuple[Node, ...], names: list[str], knowledge: str
) -> tuple[Waits, dict[str, Waits]]:
    from berth.experiments.compare.conditions import AS_THE_TRACE_SAYS, conditions_of
    from berth.experiments.what_if import replayed_waits

    source = read_trace(trace, columns=columns)
    nodes = named or source.nodes
    if not nodes:
        raise SettingError(
            "the trace brings no cluster; say which with --cluster FILE or --cluster 10x8:V100"
        )
    jobs = tuple(source.jobs(nodes=nodes))
    under = conditions_of({"knowledge": knowledge}, nodes)
    real = replayed_waits(jobs, tuple(nodes), names[0], AS_THE_TRACE_SAYS)
    return real, {name: replayed_waits(jobs, tuple(nodes), name, under) for name in names}


def _of_history(
    folder: Path, since: str, until: str, nodes: tuple[Node, ...], names: list[str], knowledge: str
) -> tuple[Waits, dict[str, Waits]]:
    from berth.experiments.recorded_run import recorded_run
    from berth.experiments.what_if import nodes_and_conditions, replayed_waits
    from berth.history.store.folder import open_history

    begin_ms, end_ms = period_asked(since, until)
    store = open_history(folder, must_exist=True)
    real = recorded_run(store, since_ms=begin_ms, until_ms=end_ms, nodes=nodes)
    there, under = nodes_and_conditions(real, nodes, {"knowledge": knowledge})
    candidates = [real.policy] if real.policy else names
    return real.waits, {name: replayed_waits(real.jobs, there, name, under) for name in candidates}


def _show(found: Backtest) -> None:
    screen = console(soft_wrap=True)
    for sentence in found.sentences:
        screen.print(sentence, style="bold")
    rows = []
    for each in found.predicted:
        interval = "–"
        if each.low_s is not None and each.high_s is not None:
            interval = f"{duration_text(each.low_s)} to {duration_text(each.high_s)}"
        real, predicted, last = map(duration_text, (each.real_s, each.predicted_s, each.last_week_s))
        week, jobs = str(each.week), f"{each.jobs:,}"
        rows.append((week, jobs, each.measure, each.policy, real, predicted, interval, last))
    screen.print(plain_table(HEADINGS, rows, left=4))
