"""The options that `simulate`, `compare` and `size` share, declared once, and what they ask of the runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from berth.card_speeds import ALL_ALIKE
from berth.cli.output import JsonOrCsv
from berth.cli.profile import read_profiles
from berth.errors import SettingError, TraceError
from berth.history.values.durations import since_ms
from berth.model import FOREVER_MS, Node
from berth.traces import read_nodes


def _checked(name: str) -> str:
    """The name of a knowledge that there is; refused before the command reads anything."""
    from berth.knowledge import check_knowledge

    check_knowledge(name)
    return name


Knowledge = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        callback=_checked,
        help="What policies believe of jobs: oracle (the truth), user, history?begin=FOLDER, noisy?run=0.3, or"
        " my.module:thing.",
    ),
]
"""The option of every command that runs policies."""
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="FIELD=COLUMN,…",
        help="The columns of your own table: id=…,submit=…,run=… (or start=…,end=…),gpus=…,user=…; repeatable.",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|SPEC", help="A node list, or 10x8:V100; by default that of the trace or the history."
    ),
]
Processes = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of runs at the same time.")]
Ray = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster: HOST:PORT, or local.")
]
FromHistory = Annotated[
    bool,
    typer.Option(
        "--from-history",
        help="Replay what ran on this machine, and say how far the replay is from what happened.",
    ),
]
Since = Annotated[
    str,
    typer.Option(metavar="TIME", help="Only the history's jobs of the last 28d or 12h, or since a date."),
]
Until = Annotated[
    str,
    typer.Option(
        metavar="TIME", help="Only the history's jobs submitted before a date, or 1d for a day ago."
    ),
]
NodeColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--map-nodes",
        metavar="FIELD=COLUMN,…",
        help="The columns of your own node list in --cluster: name=…,gpus=…,model=…,cpus=…,mem_gib=…; repeatable.",
    ),
]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options that all commands with simulated runs share."""

    map: Columns = None
    cluster: ClusterOption = None
    map_nodes: NodeColumns = None
    compress: Annotated[
        float, typer.Option(min=0.001, metavar="FACTOR", help="Divide submission times by this factor.")
    ] = 1.0
    interference: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How jobs on one GPU slow each other: none, time-sliced, mps, mig, FILE.json, or my.module:thing.",
        ),
    ] = "none"
    when_full: Annotated[
        str | None,
        typer.Option(
            metavar="kill|relaunch|grow|suspend",
            help="For a job that needs more GPU memory than it was given: kill it, relaunch it alone on a card, let"
            " its limit grow, or suspend others for it too.",
        ),
    ] = None
    profiles: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of application profiles, searched before the built-in ones."
        ),
    ] = None
    knowledge: Knowledge = "oracle"
    outages: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Node outages: columns node, down_s, up_s; drain_s before maintenance.",
        ),
    ] = None
    reservations: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Nodes reserved for users: columns users, start_s, end_s, and nodes or gpus; drain_s.",
        ),
    ] = None
    mtbf: Annotated[
        float | None,
        typer.Option(
            min=0.001, metavar="HOURS", help="Mean time between a node's failures; by default none."
        ),
    ] = None
    mttr: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="HOURS", help="Mean time to repair a failed node; 1 by default."),
    ] = None
    checkpoint: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="MINUTES",
            help="Time between checkpoints, from which a restarted job continues; by default none.",
        ),
    ] = None
    checkpoint_write: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Time for which a job stops to write a checkpoint."),
    ] = 0.0
    restart: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Extra time of every attempt after a job's first."),
    ] = 0.0
    speeds: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.csv|gavel",
            help="Speed of applications by GPU model: columns application, gpu_model, speed.",
        ),
    ] = None
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Price list of GPUs and energy: adds cost, energy and CO₂ to the metrics.",
        ),
    ] = None
    quota: Annotated[
        str | None,
        typer.Option(metavar="VC=GPUS,…", help="GPU quota per virtual cluster; unlisted clusters get 0."),
    ] = None
    limits: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Limits of users, virtual clusters and groups (docs/policies.md).",
        ),
    ] = None
    borrow: Annotated[bool, typer.Option("--borrow", help="Lend idle GPUs beyond the quotas.")] = False
    every: Annotated[
        float | None,
        typer.Option(
            "--round",
            min=0.001,
            metavar="SECONDS",
            help="Decide only at multiples of this interval.",
        ),
    ] = None
    events: Annotated[
        Path | None, typer.Option(metavar="FILE.parquet", help="Write all events to this file.")
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write report.html, result.json, cluster.csv and finished runs to this folder.",
        ),
    ] = None
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip bad rows; they are counted and listed.")
    ] = False
    as_json: JsonOrCsv = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The cluster that was named; empty for the trace's own."""
        return cluster_named(self.cluster, self.map_nodes)


def one_source(takes: str, trace: str | None, from_history: bool) -> None:
    """SettingError where both a TRACE and --from-history are given, or neither."""
    if from_history == bool(trace):
        raise SettingError(
            f"{takes} either a TRACE or, with --from-history, what ran on this machine; got"
            f" {'both' if trace else 'neither'}"
        )


def tell_skipped(skipped: Sequence[TraceError]) -> None:
    """The bad rows that --skip-bad left out, on standard error."""
    for error in skipped[:20]:
        print(f"left out: {error}", file=sys.stderr)
    if skipped:
        print(f"{len(skipped):,} bad rows left out", file=sys.stderr)


def period_asked(since: str, until: str) -> tuple[int, int | None]:
    """Return when the period of --since and --until begins and ends, in ms since 1970; None: it goes on until now.

    Raises SettingError for what is no time, and for a period that ends before it begins.
    """
    now_ms = time.time_ns() // 1_000_000
    begin_ms = since_ms(since, now_ms, "--since") if since else 0
    end_ms = since_ms(until, now_ms, "--until") if until else None
    if end_ms is not None and end_ms <= begin_ms:
        raise SettingError(f"--since {since} is not before --until {until}; choose an earlier --since")
    return begin_ms, end_ms


def joined(columns: list[str] | None) -> str:
    """What an option such as --map says, given once or several times."""
    return ",".join(columns or ())


def cluster_named(cluster: str | None, columns: list[str] | None) -> tuple[Node, ...]:
    """The nodes of --cluster and --map-nodes; none where no cluster was named."""
    if cluster and columns and not Path(cluster).exists():
        raise SettingError(
            f"--map-nodes names the columns of a file, but there is no file '{cluster}'; a --cluster such as"
            " 10x8:V100 goes without --map-nodes"
        )
    if cluster:
        return read_nodes(cluster, joined(columns))
    if columns:
        raise SettingError(
            "--map-nodes says what the columns of a node list are; name the list with --cluster FILE"
        )
    return ()


def conditions_asked(options: RunOptions) -> dict[str, Any]:
    """What every run is under, as `berth.compare` takes it."""
    from berth.cluster.outages import FailureRate, Recovery
    from berth.policies.schemes.quotas import quotas_of

    failures = None
    if options.mtbf is not None:
        up_ms = _whole_ms(options.mtbf, 3_600_000, "--mtbf")
        down_h = 1.0 if options.mttr is None else options.mttr
        failures = FailureRate(up_ms, _whole_ms(down_h, 3_600_000, "--mttr"))
    elif options.mttr is not None:
        raise SettingError("--mttr is the repair time of nodes that fail by --mtbf; give both")
    every, checkpoint = options.every, options.checkpoint
    if options.checkpoint_write and checkpoint is None:
        raise SettingError(
            "--checkpoint-write is the time to write a checkpoint; say how often with --checkpoint"
        )
    return {
        "compress": options.compress,
        "skip_bad": options.skip_bad,
        **_interference(options.interference, options.profiles, options.when_full),
        "when_full": options.when_full,
        "outages": () if options.outages is None else options.outages,
        "reservations": () if options.reservations is None else options.reservations,
        "failures": failures,
        "speeds": ALL_ALIKE if options.speeds is None else options.speeds,
        "prices": options.prices,
        "recovery": Recovery(
            None if checkpoint is None else _whole_ms(checkpoint, 60_000, "--checkpoint"),
            _whole_ms(options.restart, 1000, "--restart"),
            write_ms=_whole_ms(options.checkpoint_write, 1000, "--checkpoint-write"),
        ),
        "quotas": None if options.quota is None else quotas_of(options.quota),
        "limits": () if options.limits is None else options.limits,
        "borrow": options.borrow,
        "round_ms": None if every is None else _whole_ms(every, 1000, "--round"),
        "knowledge": options.knowledge,
    }


def _interference(name: str, folder: Path | None, when_full: str | None) -> dict[str, Any]:
    if folder is None:
        return {"interference": name}
    if name == "none" and when_full is None:
        raise typer.BadParameter(
            "without --interference jobs on one GPU do not slow each other, so profiles have no effect;"
            " add --interference mps or --when-full grow, or leave --profiles out",
            param_hint="--profiles",
        )
    from berth.interference import make_interference
    from berth.interference.profiled import thesis_unhindered
    from berth.profiles import thesis_profiles

    profiles = thesis_profiles() | read_profiles(folder)
    if name == "none":
        return {"interference": thesis_unhindered().with_profiles(profiles), "interference_name": name}
    model = make_interference(name, profiles)
    return {"interference": model, "interference_name": name}


def _whole_ms(value: float, unit_ms: int, option: str) -> int:
    """A time as whole milliseconds; SettingError for one that is no number or too large."""
    if not value * unit_ms < FOREVER_MS:
        raise SettingError(f"{option} is {value}; expected a number, at most {FOREVER_MS // unit_ms:,}")
    return round(value * unit_ms)
