"""`berth simulate` and `berth compare`: a trace through one policy or several."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from berth.experiments.compare import Comparison
    from berth.interference import Interference
    from berth.model import Node

Trace = Annotated[str, typer.Argument(metavar="TRACE", help="A trace file, or synthetic:NAME?jobs=…&seed=….")]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="FILE|SPEC", help="A node list, or 10x8:V100; by default the trace's own cluster."),
]
Compress = Annotated[float, typer.Option(metavar="FACTOR", help="Divide the times of submission by this.")]
Events = Annotated[Path | None, typer.Option(metavar="FILE.parquet", help="Write every event here.")]
Records = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.parquet", help="Write a record of every try here, as a history has them: a trace again."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write report.html, result.json and cluster.csv here, and each run as it is done.",
    ),
]
MapAt = Annotated[
    list[float] | None,
    typer.Option(
        "--map-at",
        metavar="HOURS",
        help="Show the cluster so long after the trace's origin; may be repeated.",
    ),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out bad rows, and count and list them.")]
InterferenceName = Annotated[
    str,
    typer.Option(
        "--interference",
        metavar="NAME",
        help="How jobs on one GPU slow each other: none, measured, time-sliced, FILE.json, or my.module:thing.",
    ),
]
ProfilesFolder = Annotated[
    Path | None,
    typer.Option(
        "--profiles", metavar="DIR", help="Profiles to look applications up in, before the thesis's."
    ),
]
Outages = Annotated[
    Path | None, typer.Option(metavar="FILE.csv", help="Nodes that are lost: columns node, down_s, up_s.")
]
Mtbf = Annotated[
    float | None, typer.Option(metavar="HOURS", help="Nodes fail by themselves, after so long in the mean.")
]
Mttr = Annotated[
    float | None,
    typer.Option(metavar="HOURS", help="How long the repair of such a node takes in the mean; 1 by default."),
]
Checkpoint = Annotated[
    float | None,
    typer.Option(
        metavar="MINUTES", help="Every job keeps its work, up to the last checkpoint; one every so often."
    ),
]
Restart = Annotated[
    float, typer.Option(metavar="SECONDS", help="Every try but a job's first takes so much longer.")
]
Quota = Annotated[
    str | None,
    typer.Option(metavar="VC=GPUS,…", help="GPUs of each virtual cluster; who is not named has none."),
]
Round = Annotated[
    float | None,
    typer.Option("--round", metavar="SECONDS", help="Policies decide at whole multiples of this only."),
]
Borrow = Annotated[bool, typer.Option("--borrow", help="Lend idle GPUs beyond the quotas.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else.")]


def simulate(
    trace: Trace,
    policy: Annotated[
        str, typer.Option(help="A name that `berth policies` lists, or my.module:thing.")
    ] = "fifo+first-fit",
    cluster: Cluster = None,
    seed: Annotated[int, typer.Option(help="Where random numbers start.")] = 0,
    compress: Compress = 1.0,
    interference: InterferenceName = "none",
    profiles: ProfilesFolder = None,
    outages: Outages = None,
    mtbf: Mtbf = None,
    mttr: Mttr = None,
    checkpoint: Checkpoint = None,
    restart: Restart = 0.0,
    quota: Quota = None,
    borrow: Borrow = False,
    every: Round = None,
    events: Events = None,
    records: Records = None,
    out: Out = None,
    map_at: MapAt = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Replay a trace through one policy."""
    under = _conditions(outages, mtbf, mttr, checkpoint, restart, quota, borrow, every)
    _run(
        trace,
        [policy],
        cluster,
        [seed],
        compress,
        _interference(interference, profiles),
        under,
        events,
        out,
        map_at,
        1,
        None,
        skip_bad,
        as_json,
        records,
    )


def compare(
    trace: Trace,
    policies: Annotated[
        str, typer.Option(metavar="A,B,…", help="Names that `berth policies` lists, or my.module:thing.")
    ] = "fifo+first-fit,sjf+best-fit,fgd",
    cluster: Cluster = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds: 0, 1, ….")] = 1,
    compress: Compress = 1.0,
    interference: InterferenceName = "none",
    profiles: ProfilesFolder = None,
    outages: Outages = None,
    mtbf: Mtbf = None,
    mttr: Mttr = None,
    checkpoint: Checkpoint = None,
    restart: Restart = 0.0,
    quota: Quota = None,
    borrow: Borrow = False,
    every: Round = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="How many runs at the same time.")] = 1,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster: HOST:PORT, or local.")
    ] = None,
    events: Events = None,
    out: Out = None,
    map_at: MapAt = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Replay a trace through several policies and put the results side by side."""
    names = [name.strip() for name in policies.split(",")]
    numbers = list(range(seeds))
    under = _conditions(outages, mtbf, mttr, checkpoint, restart, quota, borrow, every)
    _run(
        *(trace, names, cluster, numbers, compress, _interference(interference, profiles), under),
        *(events, out, map_at, jobs, ray, skip_bad, as_json),
    )


def _interference(name: str, folder: Path | None) -> Interference:
    from berth.interference import make_interference

    if folder is None:
        return make_interference(name)
    if name == "none":
        raise typer.BadParameter(
            "profiles say what jobs on one GPU do to each other, and without --interference they do nothing;"
            " add --interference measured, or leave --profiles out",
            param_hint="--profiles",
        )
    from berth.cli.profile import read_profiles
    from berth.profiles import thesis_profiles

    return make_interference(name, thesis_profiles() | read_profiles(folder))


def _conditions(
    outages: Path | None,
    mtbf: float | None,
    mttr: float | None,
    checkpoint: float | None,
    restart: float,
    quota: str | None,
    borrow: bool,
    every: float | None,
) -> dict[str, Any]:
    """What every run is under, as `berth.compare` takes it."""
    from berth.cluster.outages import FailureRate, Recovery
    from berth.errors import SettingError

    failures = None
    if mtbf is not None:
        up_ms = _whole_ms(mtbf, 3_600_000, "--mtbf")
        failures = FailureRate(up_ms, _whole_ms(1.0 if mttr is None else mttr, 3_600_000, "--mttr"))
    elif mttr is not None:
        raise SettingError("--mttr tells how long repairs take of nodes that fail by --mtbf; give both")
    return {
        "outages": () if outages is None else outages,
        "failures": failures,
        "recovery": Recovery(
            None if checkpoint is None else _whole_ms(checkpoint, 60_000, "--checkpoint"),
            _whole_ms(restart, 1000, "--restart"),
        ),
        "quotas": None if quota is None else _quotas(quota),
        "borrow": borrow,
        "round_ms": None if every is None else _whole_ms(every, 1000, "--round"),
    }


def _whole_ms(value: float, unit_ms: int, option: str) -> int:
    """A time as whole milliseconds; SettingError for one that is no number or without end."""
    from berth.errors import SettingError

    if not math.isfinite(value):
        raise SettingError(f"{option} is {value}; expected a number")
    return round(value * unit_ms)


def _quotas(text: str) -> dict[str, int]:
    from berth.errors import SettingError

    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, gpus = part.strip().rpartition("=")
        if not name or not gpus.isascii() or not gpus.isdigit():
            raise SettingError(f"quota '{part}' is not VC=GPUS, such as vcA=64")
        found[name] = int(gpus)
    return found


def _run(
    trace: str,
    policies: list[str],
    cluster: str | None,
    seeds: list[int],
    compress: float,
    interference: Interference,
    under: dict[str, Any],
    events: Path | None,
    out: Path | None,
    map_at: list[float] | None,
    jobs: int,
    ray: str | None,
    skip_bad: bool,
    as_json: bool,
    records: Path | None = None,
) -> None:
    from berth.cli.files import told_what_is_kept
    from berth.cli.progress import progress_bar
    from berth.experiments.compare import compare as compare_policies

    at_ms = None if map_at is None else [_map_time_ms(hours) for hours in map_at]
    with progress_bar(f"{len(policies)} × {len(seeds)} runs") as progress, told_what_is_kept(out):
        result = compare_policies(
            trace,
            policies,
            cluster=cluster,
            seeds=seeds,
            compress=compress,
            interference=interference,
            at_ms=at_ms,
            events=events,
            records=records,
            processes=jobs,
            ray=ray,
            keep=out,
            **under,
            skip_bad=skip_bad,
            progress=progress,
        )
    _say_unknown_cards(interference, result.nodes)
    written = [path for path in (events, records) if path is not None]
    if out is not None:
        written += _write(result, out)
    if as_json:
        print(json.dumps(result.to_dict(), allow_nan=False))
        return
    _show(result, written)


def _say_unknown_cards(interference: Interference, nodes: Sequence[Node]) -> None:
    """Say of which cards nobody knows the memory, where a model of interference would go by it."""
    from berth.interference.profiled import ProfiledInterference

    if not isinstance(interference, ProfiledInterference):
        return
    cards = {node.gpu_model for node in nodes if node.gpus}
    unknown = sorted(
        card.name if card else "(no model named)" for card in cards if not (card and card.mem_mib)
    )
    if unknown:
        print(
            f"berth: nobody knows how much memory these GPUs have, so it never runs out there: {', '.join(unknown)};"
            " name a card that is known, such as T4 or V100",
            file=sys.stderr,
        )


def _map_time_ms(hours: float) -> int:
    from berth.errors import SettingError

    if not (math.isfinite(hours) and hours >= 0):
        raise SettingError(
            f"the cluster can be shown 0 or more hours after the first submission, not {hours}"
        )
    return round(hours * 3_600_000)


def _write(result: Comparison, out: Path) -> list[Path]:
    """Write what there is to keep into a folder; each file aside first, then renamed."""
    from berth.cli.files import command_line, write_aside
    from berth.experiments.pages import write_report
    from berth.traces import write_nodes

    report = write_report(result, out / "report.html", command=command_line())
    numbers = out / "result.json"
    write_aside(numbers, json.dumps(result.to_dict(), allow_nan=False, indent=1) + "\n")
    nodes = out / "cluster.csv"
    write_nodes(result.nodes, nodes)
    return [report, numbers, nodes]


def _show(result: Comparison, written: list[Path]) -> None:
    from rich.console import Console

    from berth.experiments.compare.table import rich_tables
    from berth.model import Reason

    tty = sys.stdout.isatty()
    console = Console(soft_wrap=not tty, width=None if tty else 400)
    jobs = result.runs[0].summary.jobs
    gpus = sum(node.gpus for node in result.nodes)
    seeds = f"{len(result.seeds)} seed{'s' if len(result.seeds) > 1 else ''}"
    console.print(
        f"{result.trace}: {jobs:,} jobs on {len(result.nodes):,} nodes with {gpus:,} GPUs, {seeds}",
        highlight=False,
        markup=False,
    )
    for table in rich_tables(result.runs, console):
        console.print(table)
    never = max(run.summary.rejections.get(Reason.NEVER_FITS, 0) for run in result.runs)
    if never:
        print(
            f"{never:,} jobs ask for what no node of this cluster has, even empty: rejected", file=sys.stderr
        )
        for shortage in result.never_fitting:
            print(f"  {shortage}", file=sys.stderr)
        if never > len(result.never_fitting):
            print(f"  and {never - len(result.never_fitting):,} more", file=sys.stderr)
    for ratio in result.ratios():
        console.print(
            f"{ratio.fifo} / {ratio.sjf}: mean completion {ratio.completion:.2f}, mean wait {ratio.waiting:.2f}",
            highlight=False,
            markup=False,
        )
    if result.ratios():
        from berth.experiments.compare.ratio import DEFINITION

        console.print(f"  {DEFINITION}", highlight=False, markup=False)
    for error in result.skipped[:20]:
        print(f"left out: {error}", file=sys.stderr)
    if result.skipped:
        print(f"{len(result.skipped):,} bad rows left out", file=sys.stderr)
    for path in written:
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
