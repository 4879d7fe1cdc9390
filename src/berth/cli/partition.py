"""`berth run` and `berth partition`: programs and containers under limits of GPU memory and time."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from berth import partition as partitions
from berth.errors import BerthError, PartitionError, SettingError
from berth.partition import oci
from berth.partition.cdi import specification
from berth.partition.gpus import gpu_named, gpus
from berth.partition.sizes import size_text

__all__ = ["app", "run"]

app = typer.Typer(
    help="Named partitions of this machine's GPUs, which processes and containers join.", no_args_is_help=True
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
CorePct = Annotated[
    int, typer.Option("--core-pct", min=0, max=100, help="Per cent of the GPU's time; 0: not limited.")
]
Burst = Annotated[bool, typer.Option("--burst", help="May use time that no other partition wants.")]
Priority = Annotated[
    str | None,
    typer.Option(
        "--priority",
        help="high, normal or low: high gives no time up to others, low takes what they leave, at least 5 %.",
    ),
]
Fake = Annotated[
    bool, typer.Option("--fake-gpu", help="Over the fake driver: for tests on a machine without a GPU.")
]
Oversubscribe = Annotated[
    str | None,
    typer.Option(
        "--oversubscribe", help="Memory of the host beyond --mem, which the GPU reaches more slowly."
    ),
]
Overcommit = Annotated[bool, typer.Option("--overcommit", help="Promise more than the card has.")]
Name = Annotated[str, typer.Argument(help="The partition's name.")]


def _swap_mib(text: str) -> int:
    return 0 if text == "0" else partitions.mem_mib(text)


def _plain(value: partitions.Partition) -> dict[str, Any]:
    return asdict(value) | {"folder": str(value.folder)}


def _print_json(values: object) -> None:
    typer.echo(json.dumps(values, indent=2, default=str))


def run(
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    mem: Annotated[str | None, typer.Option("--mem", help="GPU memory, such as 512M, 4G or 1.5G.")] = None,
    core_pct: Annotated[
        int | None, typer.Option("--core-pct", min=1, max=100, help="Per cent of the GPU's time.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Index or UUID of the GPU; default: all that are there.")
    ] = None,
    burst: Burst = False,
    oversubscribe: Oversubscribe = None,
    priority: Priority = None,
    fake_gpu: Fake = False,
    as_json: AsJson = False,
) -> None:
    """Run a command and all that it starts under limits: berth run --mem 4G -- python train.py"""
    mem_mib = None if mem is None else partitions.mem_mib(mem)
    if mem_mib is not None and not fake_gpu:
        _check_card(mem_mib, gpu)
    _end(
        partitions.run(
            command,
            mem_mib=mem_mib,
            core_pct=core_pct,
            gpu=gpu,
            burst=burst,
            priority=priority,
            swap_mib=None if oversubscribe is None else partitions.mem_mib(oversubscribe),
            fake_gpu=fake_gpu,
        ),
        as_json,
    )


@app.command("exec")
def execute(
    name: Name,
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    fake_gpu: Fake = False,
    as_json: AsJson = False,
) -> None:
    """Run a command and all that it starts in a partition: berth partition exec blue -- python train.py"""
    _end(partitions.run(command, partition=name, fake_gpu=fake_gpu), as_json)


def _end(summary: partitions.Summary, as_json: bool) -> None:
    """Sum up on standard error and end as the command ended."""
    if as_json:
        typer.echo(json.dumps(asdict(summary)), err=True)
    else:
        for message in summary.messages:
            if "no GPU:" in message or "above the card" in message:
                typer.echo(message, err=True)
        typer.echo(str(summary), err=True)
    raise typer.Exit(summary.exit_status)


def _check_card(mem_mib: int, gpu: str | None) -> None:
    """Refuse more than the card has where the card can be asked."""
    try:
        known = gpus()
    except BerthError:
        return  # no driver here: the command will find out itself
    chosen = [gpu_named(gpu, known)] if gpu is not None else known
    if chosen and mem_mib > min(card.mem_mib for card in chosen):
        least = min(card.mem_mib for card in chosen)
        raise PartitionError(f"a limit of {mem_mib} MiB, but the GPU has {least} MiB; ask for that or less")


def _known_gpus(fake_gpu: bool) -> list[Any]:
    return gpus(_driver(fake_gpu))


def _driver(fake_gpu: bool) -> Path | None:
    return partitions.fake_driver_folder() if fake_gpu else None


@app.command()
def create(
    name: Name,
    mem: Annotated[str | None, typer.Option("--mem", help="GPU memory, such as 512M, 4G or 1.5G.")] = None,
    core_pct: CorePct = 0,
    gpu: Annotated[str, typer.Option("--gpu", help="Index or UUID of the GPU.")] = "0",
    burst: Burst = False,
    oversubscribe: Oversubscribe = None,
    mig: Annotated[
        str | None,
        typer.Option("--mig", metavar="PROFILE", help="Be an instance of MIG, such as 2g.10gb."),
    ] = None,
    mps: Annotated[
        bool, typer.Option("--mps", help="Run as clients of MPS, which keeps --mem and --core-pct for each.")
    ] = False,
    owner: Annotated[
        str | None, typer.Option("--owner", help="The user who may join, by name or number.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="The group whose members may join, by name or number.")
    ] = None,
    priority: Priority = None,
    overcommit: Overcommit = False,
    fake_gpu: Fake = False,
    as_json: AsJson = False,
) -> None:
    """Make a partition of a GPU, for this user and the containers that get it, or for a user or group."""
    if mig is not None and (
        mem is not None
        or core_pct
        or burst
        or mps
        or overcommit
        or oversubscribe is not None
        or priority is not None
    ):
        raise SettingError(
            f"--mig {mig} has the memory and the cores of its profile; "
            "leave --mem, --core-pct, --burst, --priority, --mps, --oversubscribe and --overcommit out"
        )
    if mig is None and mem is None:
        raise SettingError("no size for the partition; give --mem, or an instance of MIG with --mig")
    if mps and burst:
        raise SettingError("MPS has no --burst; leave it out, or leave --core-pct out to have all cores")
    if mps and priority is not None:
        raise SettingError("MPS has no --priority; leave it out")
    access = partitions.access_of(owner, group)
    card = gpu_named(gpu, _known_gpus(fake_gpu))
    if mig is not None:
        made = partitions.create_mig(name, card, mig, access=access, driver_folder=_driver(fake_gpu))
    else:
        make = partitions.create_mps if mps else partitions.create
        swap_mib = 0 if oversubscribe is None else partitions.mem_mib(oversubscribe)
        limit = partitions.Limit(
            partitions.mem_mib(mem or ""), core_pct, burst, swap_mib=swap_mib, priority=priority or "normal"
        )
        made = make(name, card, limit, access=access, overcommit=overcommit)
    _print_json(_plain(made)) if as_json else typer.echo(
        f"{name}: {size_text(made.limit_bytes)} of GPU {made.uuid} in {made.folder}"
    )


@app.command("list")
def list_partitions(as_json: AsJson = False) -> None:
    """Show every partition: limit, use, peak, share of time, refused calls."""
    regions = partitions.regions()
    found = [one for one in regions if isinstance(one, partitions.Partition)]
    if as_json:
        _print_json([_plain(one) for one in found])
    else:
        console = Console()
        console.print(_table(found, {}, console.width))
    unreadable = [one for one in regions if isinstance(one, partitions.Unreadable)]
    for region in unreadable:
        typer.echo(f"berth: {_unreadable_text(region)}", err=True)
    if unreadable:
        raise typer.Exit(1)


@app.command()
def watch(
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between looks.")] = 1.0,
    times: Annotated[int, typer.Option("--times", min=0, help="End after so many looks; 0: at Ctrl-C.")] = 0,
    as_json: AsJson = False,
) -> None:
    """The same, live."""
    before: dict[str, tuple[float, int]] = {}
    looks = 0
    with Live(console=Console(), auto_refresh=False, transient=False) as live:
        while True:
            regions, now = partitions.regions(), time.monotonic()
            found = [one for one in regions if isinstance(one, partitions.Partition)]
            lost = [_unreadable_text(one) for one in regions if isinstance(one, partitions.Unreadable)]
            used = {
                one.name + one.uuid: (one.gpu_ns - before[one.name + one.uuid][1])
                / 1e7
                / (now - before[one.name + one.uuid][0])
                for one in found
                if one.name + one.uuid in before
            }
            before = {one.name + one.uuid: (now, one.gpu_ns) for one in found}
            if as_json:
                typer.echo(json.dumps([_plain(one) for one in found]))
                for text in lost:
                    typer.echo(f"berth: {text}", err=True)
            else:
                table = _table(found, used, live.console.width)
                live.update(Group(table, *map(Text, lost)), refresh=True)
            looks += 1
            if looks == times:
                break
            try:
                time.sleep(every_s)
            except KeyboardInterrupt:
                break
    if not as_json and not live.console.is_terminal:
        typer.echo()  # in a terminal the table ends its line itself


def _unreadable_text(region: partitions.Unreadable) -> str:
    return f"the partition '{region.name}' cannot be read: {region.why}"


_WIDE = 120
"""Columns of a terminal that has room for all of the table."""


def _table(found: list[partitions.Partition], used_pct: dict[str, float], columns: int) -> Table:
    """A narrow terminal gets what fits; `--json` has all."""
    wide = columns >= _WIDE
    rest = ("peak", "processes", "refused", "last refused") if wide else ("refused",)
    table = Table("partition", "GPU", "limit", "in use", "share", "GPU time", *rest)
    for one in found:
        share = f"{one.core_pct} %{' +' if one.burst else ''}" if one.core_pct else "-"
        if one.hardware is not None:
            share = one.hardware.text
        key = one.name + one.uuid
        time_used = f"{used_pct[key]:.0f} %" if key in used_pct else f"{one.gpu_ns / 1e9:.1f} s"
        limit = size_text(one.limit_bytes)
        if one.swap_limit_bytes:
            limit += f" + {size_text(one.swap_limit_bytes)}"
        used = size_text(one.used_bytes)
        if one.swapped_bytes:
            used += f" + {size_text(one.swapped_bytes)} swapped"
        cells = [one.name, one.uuid[:8], limit, used, share]
        cells.append(time_used if one.core_pct else "-")
        if wide:
            cells += [
                size_text(one.peak_bytes),
                str(len(one.processes)),
                str(one.refused),
                _last_refused(one),
            ]
        else:
            cells.append(str(one.refused))
        table.add_row(*cells)
    return table


def _last_refused(one: partitions.Partition) -> str:
    if not one.refusals:
        return ""
    last = one.refusals[-1]
    return f"{last.command} {last.call} {size_text(last.asked_bytes)}, {size_text(last.left_bytes)} left"


@app.command()
def resize(
    name: Name,
    mem: Annotated[str | None, typer.Option("--mem", help="GPU memory; default: as it is.")] = None,
    core_pct: Annotated[
        int | None, typer.Option("--core-pct", min=0, max=100, help="Per cent of time; default: as it is.")
    ] = None,
    burst: Annotated[bool | None, typer.Option("--burst/--no-burst", help="Default: as it is.")] = None,
    oversubscribe: Annotated[
        str | None, typer.Option("--oversubscribe", help="Memory of the host, 0 for none; default: as it is.")
    ] = None,
    priority: Priority = None,
    overcommit: Overcommit = False,
    fake_gpu: Fake = False,
    as_json: AsJson = False,
) -> None:
    """Change a partition's limits while it is in use; downwards, new allocations are refused."""
    try:
        known = _known_gpus(fake_gpu)
    except BerthError as error:
        known = []
        typer.echo(f"berth: not checked against the GPU's size: {error}", err=True)
    changed = partitions.resize(
        name,
        mem_mib=None if mem is None else partitions.mem_mib(mem),
        core_pct=core_pct,
        burst=burst,
        swap_mib=None if oversubscribe is None else _swap_mib(oversubscribe),
        priority=priority,
        gpus=known,
        overcommit=overcommit,
    )
    listed = {gpu.uuid.removeprefix("GPU-") for gpu in known}
    for one in changed:
        if mem is not None and known and one.uuid not in listed:
            typer.echo(
                f"berth: not checked against the size of GPU {one.uuid}: NVML does not list it", err=True
            )
    if as_json:
        _print_json([_plain(one) for one in changed])
    else:
        for one in changed:
            where = f" of GPU {one.uuid}" if len(changed) > 1 else ""
            typer.echo(f"{name}: {size_text(one.limit_bytes)}{where}, {size_text(one.used_bytes)} in use")


@app.command()
def remove(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Even while processes use it.")] = False,
    fake_gpu: Fake = False,
) -> None:
    """Take a partition away; refused while processes use it, unless forced."""
    partitions.remove(name, force=force, driver_folder=_driver(fake_gpu))


@app.command()
def library() -> None:
    """Print the path of libberth.so, for LD_PRELOAD."""
    typer.echo(str(partitions.library_path()))


@app.command()
def cdi(
    name: Name,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", help="A device node to inject; default: NVIDIA's own, where present."),
    ] = None,
) -> None:
    """Print a CDI specification that gives a container this partition: device berth.dev/gpu=NAME."""
    _print_json(specification(name, partitions.find(name), partitions.library_path(), device))


@app.command()
def hook() -> None:
    """Print the file for /etc/containers/oci/hooks.d that has Podman or CRI-O call `berth partition inject`."""
    command = [str(Path(sys.argv[0]).resolve()), "partition", "inject"]
    own = {name: os.environ[name] for name in ("BERTH_ROOT",) if name in os.environ}
    _print_json(oci.definition(command, own))


@app.command()
def inject() -> None:
    """Be the OCI hook: read the container's state from the input and mount the partition that it asks for."""
    state, config, root = oci.read_container(sys.stdin.read())
    name = oci.partition_asked(state, config)
    if name is not None:
        oci.inject(root, partitions.find(name), partitions.library_path())
