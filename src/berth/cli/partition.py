"""`berth run` and `berth partition`: programs and containers under limits of GPU memory and time."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from berth import partition as partitions
from berth.cli.app import load
from berth.cli.output import AsJson, JsonOrCsv, console, printed
from berth.counts import counted
from berth.errors import BerthError, NoCommandError, PartitionError, SettingError
from berth.partition import Partition, Summary, oci, proof
from berth.partition.cdi import specification
from berth.partition.gpus import (
    bytes_of_processes,
    driver_version,
    gpu_named,
    gpus,
    knows_instance,
    plain_uuid,
)
from berth.partition.launch import environment as partition_environment
from berth.partition.launch import run_folder, sweep
from berth.partition.reconciling import Counted, Reconciler
from berth.partition.sizes import size_text

app = typer.Typer(
    help="Named partitions of this machine's GPUs, which processes and containers join.", no_args_is_help=True
)

CorePct = Annotated[
    int, typer.Option("--core-pct", min=0, max=100, help="Per cent of the GPU's time; 0: not limited.")
]
Burst = Annotated[bool, typer.Option("--burst", help="Also use time that no other partition wants.")]
Priority = Annotated[
    str | None,
    typer.Option(
        "--priority",
        help="high, normal or low: high gives no time up to others, low takes what they leave, at least 5 %.",
    ),
]
Fake = Annotated[bool, typer.Option("--fake-gpu", help="Use the fake driver, for tests without a GPU.")]
Overcommit = Annotated[bool, typer.Option("--overcommit", help="Allow promises beyond what the card has.")]
Name = Annotated[str, typer.Argument(help="The partition's name.")]


def _plain(value: Partition) -> dict[str, Any]:
    return asdict(value) | {"folder": str(value.folder)}


def _print_json(values: object) -> None:
    typer.echo(json.dumps(values, indent=2, default=str))


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND…", help="The command, after --.")],
    mem: Annotated[str | None, typer.Option(help="GPU memory, such as 4G; by default no limit.")] = None,
    core_pct: Annotated[
        int | None,
        typer.Option(min=0, max=100, help="Per cent of the GPU's time; 0, the default: no limit."),
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="Index or UUID of the GPU; by default all.")] = None,
    burst: Burst = False,
    priority: Priority = None,
    fake_gpu: Fake = False,
    interactive: Annotated[
        bool,
        typer.Option(
            "--interactive",
            help="Run it as a job of this machine's queue, with this terminal; it frees its GPU while idle if others"
            " wait.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a command and its children under limits: berth run --mem 4G -- python train.py"""
    if interactive:
        others = {"--burst": burst, "--priority": priority, "--fake-gpu": fake_gpu, "--json": as_json}
        if unfit := ", ".join(name for name, given in others.items() if given):
            raise SettingError(f"--interactive runs the command in the queue; leave out {unfit}")
        asked = {"--mem": mem, "--core-pct": core_pct or None, "--gpu": gpu}
        words = [word for name, value in asked.items() if value is not None for word in (name, str(value))]
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise SettingError(
                "berth run --interactive needs a terminal as its input and output; without one, use: berth submit "
                "--interactive COMMAND"
            )
        raise typer.Exit(_submitted(["--interactive", "--pty", *words, "--", *command]))

    mem_mib = None if mem is None else partitions.mem_mib(mem, "--mem")
    if gpu is not None:
        gpu = _visible_gpu(gpu, fake_gpu)
    if mem_mib is not None and not fake_gpu:
        _check_card(mem_mib, gpu)
    with _command_found():
        summary = partitions.run(
            command,
            mem_mib=mem_mib,
            core_pct=core_pct,
            gpu=gpu,
            burst=burst,
            priority=priority,
            fake_gpu=fake_gpu,
        )
    _end(summary, as_json)


@app.command("exec")
def execute(
    name: Name,
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    fake_gpu: Fake = False,
    as_json: AsJson = False,
) -> None:
    """Run a command and its children in a partition: berth partition exec blue -- python train.py"""
    with _command_found():
        summary = partitions.run(command, partition=name, fake_gpu=fake_gpu)
    _end(summary, as_json)


def _submitted(words: list[str]) -> int:
    """What `berth submit` ends with."""
    return int(load("submit").main(words, "berth submit", standalone_mode=False) or 0)


@contextmanager
def _command_found() -> Iterator[None]:
    """End as a shell does where there is no such command."""
    try:
        yield
    except NoCommandError as error:
        typer.echo(f"berth: {error}", err=True)
        raise typer.Exit(error.status) from error


def _end(summary: Summary, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(summary)), err=True)
    else:
        for message in summary.messages:
            if "no GPU:" in message or "above the card" in message:
                typer.echo(message, err=True)
        typer.echo(str(summary), err=True)
    raise typer.Exit(summary.exit_status)


def _visible_gpu(text: str, fake_gpu: bool) -> str:
    """The UUID of the GPU, or instance of MIG, that a user has named."""
    if text.startswith("MIG-") and knows_instance(text, _driver(fake_gpu)):
        return text
    return gpu_named(text, _known_gpus(fake_gpu)).uuid


def _check_card(mem_mib: int, gpu: str | None) -> None:
    """Refuse more than the card has where the card can be asked."""
    try:
        known = gpus()
    except BerthError:
        return  # no driver here: the command will find out itself
    chosen = [card for card in known if gpu in (None, card.uuid)]
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
    mem: Annotated[
        str | None, typer.Option(help="GPU memory, such as 4G; needed unless --mig is given.")
    ] = None,
    core_pct: CorePct = 0,
    gpu: Annotated[str, typer.Option(help="Index or UUID of the GPU.")] = "0",
    burst: Burst = False,
    mig: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="Use a MIG instance, such as 2g.10gb."),
    ] = None,
    mps: Annotated[
        bool, typer.Option("--mps", help="Run processes as MPS clients; MPS enforces --mem and --core-pct.")
    ] = False,
    native: Annotated[
        bool | None,
        typer.Option(
            "--native/--no-native",
            help="Let the driver enforce --mem on cgroups; needs root, driver 615 and cgroup v2. "
            "By default used where possible, unless --owner, --group or --overcommit is given.",
        ),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="The user who may join, by name or number.")] = None,
    group: Annotated[
        str | None, typer.Option(help="The group whose members may join, by name or number.")
    ] = None,
    priority: Priority = None,
    overcommit: Overcommit = False,
    fake_gpu: Fake = False,
    as_json: AsJson = False,
) -> None:
    """Create a partition of a GPU, for your own processes and containers, or for a user or group."""
    if mig is not None and (
        mem is not None or core_pct or burst or mps or overcommit or priority is not None
    ):
        raise SettingError(
            f"--mig {mig} has the memory and the cores of its profile; "
            "leave --mem, --core-pct, --burst, --priority, --mps and --overcommit out"
        )
    if mig is None and mem is None:
        raise SettingError("no size for the partition; give --mem, or an instance of MIG with --mig")
    if native and (mig is not None or mps):
        raise SettingError("--native, --mps and --mig exclude each other; leave all but one out")
    if mps and burst:
        raise SettingError("MPS has no --burst; leave it out, or leave --core-pct out to have all cores")
    if mps and priority is not None:
        raise SettingError("MPS has no --priority; leave it out")
    access = partitions.access_of(owner, group)
    sweep()
    card = gpu_named(gpu, _known_gpus(fake_gpu))
    if mig is not None:
        made = partitions.create_mig(name, card, mig, access=access, driver_folder=_driver(fake_gpu))
    else:
        limit = partitions.Limit(
            partitions.mem_mib(mem or "", "--mem"), core_pct, burst, priority=priority or "normal"
        )
        made = partitions.create(
            name,
            card,
            limit,
            by="mps" if mps else {True: "native", False: "libberth", None: None}[native],
            access=access,
            overcommit=overcommit,
            driver_folder=_driver(fake_gpu),
        )
    _print_json(_plain(made)) if as_json else typer.echo(
        f"{name}: {size_text(made.limit_bytes)} of GPU {made.uuid} in {made.folder}"
    )


@app.command("list")
def list_partitions(as_json: JsonOrCsv = None) -> None:
    """Show every partition: limit, use, peak, share of time, refused calls."""
    from berth.cli.partition_table import partition_table, unreadable_text

    sweep()
    regions = partitions.regions()
    found = [one for one in regions if isinstance(one, partitions.Partition)]
    if not printed(as_json, [_plain(one) for one in found]):
        screen = console()
        screen.print(partition_table(found, {}, screen.width))
    unreadable = [one for one in regions if isinstance(one, partitions.Unreadable)]
    for region in unreadable:
        typer.echo(f"berth: {unreadable_text(region)}", err=True)
    if any(one.open_to is None for one in unreadable):
        raise typer.Exit(1)


@app.command()
def watch(
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between samples.")] = 1.0,
    times: Annotated[
        int, typer.Option(min=0, help="Stop after this many refreshes; 0: run until Ctrl-C.")
    ] = 0,
    fake_gpu: Fake = False,
    as_json: AsJson = False,
) -> None:
    """Show every partition, refreshed until Ctrl-C, and what its processes hold that it did not count."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from berth.cli.partition_table import partition_lines, partition_table, unreadable_text
    from berth.partition import native

    before: dict[str, tuple[float, int]] = {}
    printed: list[str] = []
    samples = 0
    reconciler = Reconciler()
    console = Console()
    lines = as_json or not console.is_terminal
    with nullcontext() if lines else Live(console=console, auto_refresh=False) as live:
        while True:
            with suppress(PartitionError):  # if there is no NVML
                native.sweep(driver_folder=_driver(fake_gpu))
            regions, now = partitions.regions(), time.monotonic()
            found = [one for one in regions if isinstance(one, partitions.Partition)]
            lost = [unreadable_text(one) for one in regions if isinstance(one, partitions.Unreadable)]
            lost += [each.text(each.name) for each in reconciler.look(_counted(found, _driver(fake_gpu)))]
            if not regions:
                lost = ["there is no partition yet; make one with: berth partition create NAME --mem 8G"]
            used = {
                one.name + one.uuid: (one.gpu_ns - before[one.name + one.uuid][1])
                / 1e7
                / (now - before[one.name + one.uuid][0])
                for one in found
                if one.name + one.uuid in before
            }
            before = {one.name + one.uuid: (now, one.gpu_ns) for one in found}
            if live is None:
                if as_json:
                    typer.echo(json.dumps([_plain(one) for one in found]))
                else:
                    for line in partition_lines(found, used, time.strftime("%H:%M:%S")):
                        typer.echo(line)
                for text in lost:
                    if text not in printed:
                        typer.echo(f"berth: {text}", err=True)
                printed = lost
            else:
                table = partition_table(found, used, console.width)
                live.update(Group(table, *map(Text, lost)), refresh=True)
            samples += 1
            if samples == times:
                break
            try:
                time.sleep(every_s)
            except KeyboardInterrupt:
                break


def _counted(found: list[Partition], driver: Path | None) -> list[Counted]:
    """What partitions count beside what NVML shows; empty where there is no NVML."""
    try:
        cards = {plain_uuid(gpu.uuid): gpu for gpu in gpus(driver)}
        shown = {plain: bytes_of_processes(gpu.uuid, driver) for plain, gpu in cards.items()}
    except PartitionError:
        return []
    return [
        Counted(
            one.name,
            cards[one.uuid].index,
            one.limit_bytes >> 20,
            one.peak_bytes >> 20,
            len(one.processes),
            sum(shown[one.uuid].get(process.outer_pid or process.pid, 0) for process in one.processes) >> 20,
        )
        for one in found
        if one.uuid in cards
    ]


@app.command()
def resize(
    name: Name,
    mem: Annotated[str | None, typer.Option(help="GPU memory, such as 4G; by default as it is.")] = None,
    core_pct: Annotated[
        int | None, typer.Option(min=0, max=100, help="Per cent of the GPU's time; by default as it is.")
    ] = None,
    burst: Annotated[bool | None, typer.Option("--burst/--no-burst", help="By default as it is.")] = None,
    priority: Priority = None,
    overcommit: Overcommit = False,
    fake_gpu: Fake = False,
    as_json: AsJson = False,
) -> None:
    """Change a partition's limits while it is in use; if they shrink, new allocations are refused."""
    partitions.find(name)  # a name that is not there is the first thing to tell
    unchecked = (
        [f"the limit of {mem} against the GPU's memory and what others are promised of it"] if mem else []
    )
    if core_pct:
        unchecked.append(f"the share of {core_pct} % against what others are promised")
    try:
        known = _known_gpus(fake_gpu)
    except BerthError as error:
        known = []
        if unchecked:
            typer.echo(f"berth: not checked: {', '.join(unchecked)}; the reason: {error}", err=True)
    changed = partitions.resize(
        name,
        mem_mib=None if mem is None else partitions.mem_mib(mem, "--mem"),
        core_pct=core_pct,
        burst=burst,
        priority=priority,
        gpus=known,
        overcommit=overcommit,
        driver_folder=_driver(fake_gpu),
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
    force: Annotated[bool, typer.Option("--force", help="Remove it even while processes use it.")] = False,
    fake_gpu: Fake = False,
) -> None:
    """Remove a partition; refused while processes use it, unless forced."""
    partitions.remove(name, force=force, driver_folder=_driver(fake_gpu))


@app.command()
def prove(
    mem: Annotated[
        str | None,
        typer.Option(
            help="The limit to try, such as 4G.", show_default="256M plus the size of eight contexts"
        ),
    ] = None,
    gpu: Annotated[str, typer.Option(help="Index or UUID of the GPU.")] = "0",
    as_is: Annotated[
        bool,
        typer.Option(
            "--as-is",
            help="Try the limit of --mem that already holds here, such as one of HAMi-core, MPS, MIG or a container.",
        ),
    ] = False,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="With --as-is: a variable of the processes that try."
        ),
    ] = None,
    names: Annotated[
        list[str] | None, typer.Option("--way", metavar="WAY", help="Only this way; repeat it for more.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write a page (HTML) to this file.")] = None,
    fake_gpu: Fake = False,
    as_json: JsonOrCsv = None,
) -> None:
    """Try the known ways past a limit of GPU memory on this machine, and say which it holds against.

    Each way is a process of its own that takes at most twice the limit, plus its contexts and what the driver rounds
    up. What contexts take is measured first and subtracted. The exit status is 1 if a way passed that berth's
    documentation does not name, or if what fits was refused.
    """
    from berth.cli.proofs import KNOWN, page, rows, sentences, table

    if as_is and mem is None:
        raise SettingError("--as-is tries a limit that holds here already; name its size with --mem")
    if sets and not as_is:
        raise SettingError(
            "--set goes with --as-is; berth's own limit is tried in an environment that it makes"
        )
    variables = dict(_assignment(text) for text in sets or ())
    if missing := proof.missing_preload({**os.environ, **variables} if as_is else {}):
        raise SettingError(
            f"LD_PRELOAD names {missing}, and there is no such file; the processes that try would run without it"
        )
    asked_mib = None if mem is None else partitions.mem_mib(mem, "--mem")
    sweep()
    with run_folder() as scratch:
        if fake_gpu:  # NVML, which this process asks, and the processes that try share one card
            os.environ.setdefault("BERTH_FAKE_CARD", str(scratch / "card"))
        card = gpu_named(gpu, _known_gpus(fake_gpu))
        driver_folder = _driver(fake_gpu)
        tried = proof.chosen(names or ())
        library = {"LD_LIBRARY_PATH": str(partitions.fake_driver_folder())} if fake_gpu else {}
        as_here = {**os.environ, "CUDA_VISIBLE_DEVICES": card.uuid, **library, **variables}
        limit_mib = proof.default_limit_mib(card, as_here, driver_folder) if asked_mib is None else asked_mib
        proof.check_room(card, limit_mib, driver_folder)
        quiet = as_json is not None
        typer.echo(
            f"berth: {counted(len(tried), 'way')} past a limit of {limit_mib} MiB on GPU {card.index}, "
            f"one after another; each takes at most {2 * limit_mib} MiB, plus contexts and what the driver rounds up, "
            "and ends",
            err=True,
        )

        def environment() -> dict[str, str]:
            if as_is:
                return as_here
            folder = Path(tempfile.mkdtemp(dir=scratch))
            return partition_environment(
                os.environ, region=folder / "region", mem_mib=limit_mib, gpu=card.uuid, fake_gpu=fake_gpu
            )

        findings = []
        for finding in proof.attempt(
            tried, card, limit_mib, environment, own_region=not as_is, driver_folder=driver_folder
        ):
            findings.append(finding)
            if not quiet and sys.stderr.isatty():
                typer.echo(f"berth: {len(findings)} of {len(tried)}: {finding.way.name}", err=True)
        driver = driver_version(driver_folder)
    wall = proof.divider(environment(), card.uuid) if as_is else "berth"
    proved = proof.Proof(wall, card, driver, limit_mib, tuple(findings))
    known = {} if as_is else KNOWN
    if not printed(as_json, rows(proved, known)):
        console().print(table(proved, known))
        typer.echo("\n".join(sentences(proved, known)))
    if out is not None:
        page(proved, known, out)
    passed = [finding for finding in proved.of(proof.Verdict.PASSED) if finding.way.name not in known]
    if passed or proved.of(proof.Verdict.REFUSED):
        raise typer.Exit(1)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise SettingError(f"--set '{text}' is no variable; write NAME=VALUE")
    return name, value


@app.command()
def library() -> None:
    """Print the path of libberth.so, for LD_PRELOAD."""
    typer.echo(str(partitions.library_path()))


@app.command()
def cdi(
    name: Name,
    device: Annotated[
        list[str] | None,
        typer.Option(help="A device node to inject; by default those of NVIDIA that are present."),
    ] = None,
    fake_gpu: Fake = False,
) -> None:
    """Print a CDI specification that gives a container this partition: device berth.dev/gpu=NAME."""
    found, library = partitions.find(name), partitions.library_path()
    _print_json(specification(name, found, library, device, _hook(fake_gpu, "--limit", name)))


@app.command()
def hook(fake_gpu: Fake = False) -> None:
    """Print the file for /etc/containers/oci/hooks.d that makes Podman or CRI-O call `berth partition inject`."""
    _print_json(oci.definition(_hook(fake_gpu)))


def _hook(fake_gpu: bool, *more: str) -> dict[str, Any]:
    """The program that a runtime calls as its hook."""
    command = [str(Path(sys.argv[0]).resolve()), "partition", "inject", *more]
    made: dict[str, Any] = {"path": command[0], "args": command + ["--fake-gpu"] * fake_gpu}
    if "BERTH_ROOT" in os.environ:
        made["env"] = [f"BERTH_ROOT={os.environ['BERTH_ROOT']}"]
    return made


@app.command()
def inject(
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Only set this partition's limit on the container's cgroup, for CDI."
        ),
    ] = None,
    fake_gpu: Fake = False,
) -> None:
    """Act as the OCI hook: read the container's state from standard input and mount the partition that it asks for."""
    from berth.partition import native, oci

    text, driver = sys.stdin.read(), _driver(fake_gpu)
    if oci.has_ended(text):
        native.sweep(driver_folder=driver)
        return
    state, config, root = oci.read_container(text)
    name = limit or oci.partition_asked(state, config)
    if name is None:
        return
    parts = partitions.find(name)
    if any(part.hardware is not None and part.hardware.can.needs_entry for part in parts):
        with native.limits_lock():
            native.admit(name, native.container_group(), None, driver)
    if limit is None:
        oci.inject(root, parts, partitions.library_path())
