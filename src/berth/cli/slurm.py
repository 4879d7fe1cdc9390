"""`berth slurm …`: advise on Slurm's queue, or place its jobs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Set
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from berth.cli import completing
from berth.cli.comma_separated import names_of
from berth.cli.job_report import report_lines
from berth.cli.output import AsJson, JsonOrCsv, console, printed
from berth.cli.shared_options import Grow, Uncounted, UncountedOption
from berth.cli.snapshot_table import snapshot_tables
from berth.errors import BerthError, LiveError, SettingError
from berth.history.jobs.job_report import job_reports, report_json
from berth.live.driver.defaults import DEFAULT_KNOWLEDGE, DEFAULT_POLICY
from berth.live.slurm import installed
from berth.live.slurm.controller import Controller
from berth.live.slurm.decisions import compare as compared
from berth.live.slurm.decisions import read_decisions
from berth.live.slurm.measured_use import COMPUTE_PCT, Measured
from berth.live.slurm.nodes import SlurmPartition
from berth.partition import mem_mib

app = typer.Typer(
    help="Work with Slurm: advise on its queue, or place the jobs of partitions that were given to berth.",
    no_args_is_help=True,
)

State = Annotated[
    Path,
    typer.Option(
        "--state", metavar="DIR", envvar="BERTH_SLURM_STATE", help="Where decisions and state are kept."
    ),
]
Partitions = Annotated[
    str, typer.Option("--partitions", metavar="NAMES", help="Comma-separated partition names.")
]
Qos = Annotated[str, typer.Option("--qos", metavar="NAMES", help="Comma-separated QoS names.")]
CardMem = Annotated[
    list[str] | None,
    typer.Option(
        "--card", metavar="TYPE=MEM", help="Memory of the GPUs of a type, such as a100=80G; repeatable."
    ),
]
DEFAULT_STATE = Path("/var/lib/berth/slurm")


class Mode(StrEnum):
    """What berth does with Slurm's queue."""

    ADVISE = "advise"
    PLACE = "place"


class Memory(StrEnum):
    """How much GPU memory a job gets that names nothing else."""

    MEASURED = "measured"
    ASKED = "asked"


def _names(text: str) -> frozenset[str]:
    return frozenset(names_of(text))


def _check_partitions(names: Set[str], known: Iterable[SlurmPartition]) -> None:
    """SettingError if Slurm has no partition of a name."""
    there = {each.name for each in known}
    if unknown := names - there:
        listed = ", ".join(sorted(there)) or "none"
        raise SettingError(f"--partitions: no partition '{min(unknown)}'; there are: {listed}")


def _uid(user: str) -> int:
    import pwd

    try:
        return int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
    except KeyError as error:
        raise SettingError(f"--operator {user}: this machine knows no such user") from error


def _own_folder(folder: str) -> Path:
    """A folder whose name can stand in Slurm's files."""
    if not re.fullmatch(r"/[^\s\"#\\,\[*?]*", folder):
        raise SettingError(
            f"--folder {folder!r}: Slurm needs a path from the root, without spaces and special characters"
        )
    return Path(folder)


def _settings(settings: list[str] | None) -> dict[str, str]:
    found = {}
    for each in settings or []:
        name, equals, value = each.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise SettingError(
                f"--set {each}: write the name of a variable and its value, such as NAME=VALUE"
            )
        found[name] = value
    return found


def _cards(cards: list[str] | None) -> dict[str, int]:
    found = {}
    for each in cards or []:
        kind, equals, size = each.partition("=")
        try:
            found[kind] = mem_mib(size)
        except BerthError:
            equals = ""
        if not kind or not equals:
            raise SettingError(f"--card {each}: write a type and the memory of its GPUs, such as a100=80G")
    return found


@app.command()
def run(
    mode: Annotated[
        Mode, typer.Option(help="advise: log what would have been started; place: start it.")
    ] = Mode.ADVISE,
    partitions: Partitions = "",
    qos: Qos = "",
    policy: Annotated[
        str,
        typer.Option(
            help="The policy; the default goes by Slurm's priorities. See berth policies.",
            autocompletion=completing.policy,
        ),
    ] = DEFAULT_POLICY,
    knowledge: Annotated[
        str,
        typer.Option(
            help="Source of beliefs about jobs: history, history?begin=FOLDER, or user for time limits alone.",
        ),
    ] = DEFAULT_KNOWLEDGE,
    state: State = DEFAULT_STATE,
    interval_s: Annotated[
        float,
        typer.Option("--interval", min=0.1, metavar="SECONDS", help="Average seconds between queries."),
    ] = 5.0,
    patience_s: Annotated[
        float,
        typer.Option(
            "--patience",
            min=0.1,
            metavar="SECONDS",
            help="How long Slurm may take to start a placed job before it is held again.",
        ),
    ] = 30.0,
    compute_pct: Annotated[
        int,
        typer.Option(
            "--compute",
            min=10,
            max=1000,
            metavar="PCT",
            help="Highest sum, in per cent of a GPU, of the measured compute of its jobs; jobs that ask for gpu_pct"
            " are promised theirs.",
        ),
    ] = COMPUTE_PCT,
    memory: Annotated[
        Memory,
        typer.Option(
            help="GPU memory of a job that names it alone: as measured of its application, or as asked.",
        ),
    ] = Memory.MEASURED,
    retries: Annotated[
        int,
        typer.Option(min=0, help="Number of times that a job which ran out of GPU memory is queued again."),
    ] = 2,
    card: CardMem = None,
    rest: Annotated[
        Path | None,
        typer.Option(metavar="SOCKET", help="slurmrestd's Unix socket; the token is $SLURM_JWT."),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder to keep the nodes in, so that the history can be replayed.",
        ),
    ] = None,
    for_s: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", help="Stop after this many seconds; by default never."),
    ] = None,
) -> None:
    """Watch Slurm's queue; log which jobs would start when, or place held jobs.

    With --mode advise it prints at its end how long jobs waited, and how long they would have with berth.
    """
    from berth.live.slurm.service import (
        CLAIM_INTERVALS,
        DECISIONS,
        LEAST_CLAIM_S,
        Claim,
        Service,
        Settings,
        lock,
        make_private,
        owner_of,
    )

    places = mode is Mode.PLACE
    if places and not _names(partitions) and not _names(qos):
        raise SettingError(
            "berth places jobs of named partitions or QoS only; name them with --partitions or --qos"
        )
    for option, seconds in (("--interval", interval_s), ("--for", for_s or 0.0)):
        if not math.isfinite(seconds):
            raise SettingError(f"{option} is {seconds}; expected a number of seconds")
    controller = Controller()
    known = controller.partitions()  # if Slurm is away, no folder is made
    _check_partitions(_names(partitions), known)
    channel = None
    if rest is not None:
        from berth.live.slurm.rest import RestChannel

        channel = RestChannel(rest, controller, _say).apply
    settings = Settings(
        state,
        places,
        _names(partitions),
        _names(qos),
        policy,
        knowledge,
        interval_s,
        patience_s,
        retries,
        _cards(card),
        compute_pct=compute_pct,
        measured_memory=memory is Memory.MEASURED,
    )
    claim = None
    if places:
        lasts_s = max(LEAST_CLAIM_S, CLAIM_INTERVALS * interval_s)
        of_qos = (each for each in known if not each.qos or settings.qos & set(each.qos))
        where = settings.partitions | {each.name for each in of_qos if settings.qos}
        claim = Claim(controller, owner_of(state), where, lasts_s)
    # An option that makes no sense is refused before a folder is made or a node is claimed.
    service = Service(settings, controller, channel=channel, claim=claim)
    end_s, gpus = None if for_s is None else time.monotonic() + for_s, 0
    if "jobs" in controller.configuration().get("PrivateData", ""):
        make_private(state)
    stopped = False

    def stop(*_: object) -> None:
        # Not an exception: one that comes while a callback of C runs may be lost, and berth would run for ever.
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True

    with contextlib.closing(lock(state)):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        try:
            if claim is not None:
                claim.take()
            for lack in controller.lacks():
                _say(lack)
            service.step()
            gpus = sum(each.node.gpus for each in service.site.nodes())
            if history is not None:
                service.keep_history(history)
            service.run(_say, until=lambda: stopped or (end_s is not None and time.monotonic() > end_s))
        except KeyboardInterrupt:
            pass
        finally:
            if claim is not None:
                with contextlib.suppress(LiveError):  # it ends by itself
                    claim.drop()
    if not places and (state / DECISIONS).exists():
        _print_comparison(asdict(compared([*read_decisions(state / DECISIONS)], gpus)))


def _say(text: str) -> None:
    print(f"berth: {text}", file=sys.stderr, flush=True)


@app.command()
def agent(
    state: State = DEFAULT_STATE,
    grow: Annotated[
        Grow,
        typer.Option(
            "--grow",
            help="Whose GPU memory grows up to the card. off: jobs that say gpu_mem=4G..20G; on: all; suspend: all,"
            " and another job makes room.",
        ),
    ] = Grow.ON,
    uncounted: UncountedOption = Uncounted.REPORT,
    node: Annotated[
        str, typer.Option("--node", help="Name of this machine in reports; by default its host name.")
    ] = "",
) -> None:
    """Run on each node as root: let the GPU memory of jobs grow, and suspend and resume jobs."""
    import asyncio
    import socket

    from berth.live.slurm.agent import serve
    from berth.live.slurm.node import say

    def log(event: str, /, **values: object) -> None:
        say(" ".join([f"agent: {event}", *(f"{name}={value}" for name, value in values.items())]))

    fake, card = bool(os.environ.get("BERTH_SLURM_FAKE_GPU")), os.environ.get("BERTH_FAKE_CARD", "")
    name = node or socket.gethostname().partition(".")[0]
    asyncio.run(serve(state, name, grow.value, uncounted.value, log, fake=fake, card=card))


@app.command()
def suspend(
    job: Annotated[str, typer.Argument(help="The job's id, as squeue shows it: 12, 12_3 or 12+1.")],
    state: State = DEFAULT_STATE,
) -> None:
    """Free a running job's GPUs: move what it holds to the machine's memory, and have Slurm stop it."""
    from berth.live.slurm.agent import suspend as suspend_job

    note = suspend_job(Controller(), state, job)
    print(f"job {job} is suspended{f'; {note}' if note else ''}")


@app.command()
def resume(
    job: Annotated[str, typer.Argument(help="The job's id, as squeue shows it: 12, 12_3 or 12+1.")],
    state: State = DEFAULT_STATE,
) -> None:
    """Continue a suspended job as soon as its GPUs have room."""
    from berth.live.slurm.agent import resume as resume_job

    resume_job(Controller(), state, job)
    print(f"job {job} runs on as soon as its GPUs have room")


@app.command()
def status(state: State = DEFAULT_STATE, as_json: JsonOrCsv = None) -> None:
    """Show whether berth runs with Slurm, and what Slurm's GPUs and jobs are doing."""
    from berth.live.slurm.snapshot import look, read_status

    shown = read_status(state)
    seen = look(Controller(), state)
    if printed(as_json, [asdict(gpu) for gpu in seen.gpus], {**asdict(seen), "service": shown}):
        return
    age_s = time.time() - int(str(shown["at_ms"])) / 1000
    print(f"mode       {shown['mode']}, policy {shown['policy']}")
    print(
        f"last query {age_s:.0f} s ago, decided in {shown['decide_s']} s, {shown['queries']} queries since it began"
    )
    print(
        f"jobs       {shown['waiting']} to decide on, {shown['kept_back']} kept back, {shown['placed']} placed and not"
    )
    print(f"           started yet, {shown['running']} running")
    for job, why in dict(shown["unplaced"]).items():
        print(f"not counted: job {job}: {why}")
    measured = [Measured(**each) for each in shown.get("measured", ())]
    if measured:
        print(
            f"measured   jobs on a GPU may add up to {shown['compute_pct']} % of its compute; of each kind:"
        )
    for kind in measured[:10]:
        print(f"           {kind.application} of {kind.user}, asked {kind.asked_mib} MiB: {kind}")
    outside = list(shown.get("outside", []))
    if outside:
        print(f"held, and not placed by this berth: {', '.join(outside[:10])}")
    console().print(snapshot_tables(seen))


@app.command()
def why(
    job: Annotated[str, typer.Argument(help="The job's id, as squeue shows it: 12, 12_3 or 12+1.")],
    state: State = DEFAULT_STATE,
    as_json: JsonOrCsv = None,
) -> None:
    """Explain why a job waits: Slurm's reason and berth's, and which of its nodes take no jobs. Of one that runs, show
    its GPU memory."""
    from berth.live.slurm.agent import memory_text, reports
    from berth.live.slurm.snapshot import is_held_by_berth, read_status, why_of

    slurm, ours, nodes = why_of(Controller(), state, job)
    counts = read_status(state).get("counts", {}).get(slurm.id, "") if slurm.waits else ""
    of_job = reports(state).get(slurm.raw_id)
    memory = {name: memory_text(shown) for name, shown in of_job.by_node.items()} if of_job else {}
    answer = {
        "job": job,
        "state": slurm.state,
        "slurm": slurm.reason,
        "berth": ours,
        "nodes": nodes,
        "counts": counts,
        "memory": memory,
    }
    if printed(as_json, [answer], answer):
        return
    print(f"job {job}: {slurm.state}")
    print(f"Slurm: {slurm.reason}{' (held by berth until it is placed)' if is_held_by_berth(slurm) else ''}")
    print(
        f"berth: {ours or 'nothing to say: it is not waiting, or not of the partitions that berth decides on'}"
    )
    if counts:
        print(f"counts: {counts}")
    if nodes:
        print(f"nodes: {nodes}")
    for name, text in memory.items():
        print(f"memory on {name}: {text}")


@app.command()
def report(
    job: Annotated[str, typer.Argument(help="The job's id, as squeue shows it: 12, 12_3 or 12+1.")],
    state: State = DEFAULT_STATE,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="How long to wait for the job's end to be in the log."
        ),
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Report on a job that has ended: waits, GPU use against its promise, cost, and what would have been enough."""
    from berth.live.slurm.job_log import LoggedJobs, ending_lines
    from berth.live.slurm.service import DECISIONS

    until = time.monotonic() + wait_s
    while True:
        jobs = LoggedJobs(read_decisions(state / DECISIONS))
        found = job_reports(jobs, job)
        if found or time.monotonic() >= until:
            break
        time.sleep(1.0)
    if not found:
        raise LiveError(
            f"{state / DECISIONS} has no end of job {job}; berth slurm why says where it stands, and berth job what"
            " the accounting has"
        )
    if as_json:
        endings = [{**report_json(each), "ending": list(ending_lines(jobs, each))} for each in found]
        print(json.dumps(endings, ensure_ascii=False))
        return
    for each in found:
        for line in (*report_lines(each), "", *ending_lines(jobs, each)):
            print(line)


@app.command()
def check(
    partitions: Partitions = "",
    qos: Qos = "",
    state: State = DEFAULT_STATE,
    card: CardMem = None,
    rest: Annotated[Path | None, typer.Option(metavar="SOCKET", help="slurmrestd's Unix socket.")] = None,
    as_json: JsonOrCsv = None,
) -> None:
    """Check Slurm's configuration and print the line that fixes each fault; exit 1 if berth cannot place."""
    from berth.live.slurm.check import faults, read_setup
    from berth.live.slurm.requests import Cards

    cards = Cards(_cards(card))
    found = faults(read_setup(Controller(), _names(partitions), state, rest, _names(qos)), cards)
    if not printed(as_json, [asdict(fault) for fault in found]):
        for fault in found:
            print(f"{'stops' if fault.stops else 'note '}  {fault.what}\n       {fault.line}")
        if not found:
            print("nothing keeps berth from working")
    raise typer.Exit(int(any(fault.stops for fault in found)))


@app.command()
def install(
    partitions: Partitions,
    qos: Qos = "",
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Change the files next to slurm.conf; without it they stay as they are."
        ),
    ] = False,
    folder: Annotated[
        str, typer.Option(metavar="DIR", help="Folder of berth's scripts on all machines.")
    ] = "/etc/slurm/berth",
    shards_a_gpu: Annotated[
        int,
        typer.Option("--shards-per-gpu", min=1, help="Number of shards per GPU of nodes that have none."),
    ] = 8,
    keep_types: Annotated[
        bool,
        typer.Option(
            "--keep-types",
            help="Keep the types of GPUs, as users ask for them; Slurm then chooses the GPU on a node.",
        ),
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="An environment variable of the scripts."),
    ] = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="USER",
            help="User who may release held jobs, in addition to root and SlurmUser; repeatable.",
        ),
    ] = None,
    state: State = DEFAULT_STATE,
) -> None:
    """Show as a diff what to change in Slurm's files, and try it in a copy; --apply changes them."""
    from berth.live.slurm.check import conf_folder, read_files
    from berth.live.slurm.install import OWN_FILES, Plan, diff, plan
    from berth.live.slurm.trial import fault_of

    controller, settings = Controller(), _settings(setting)
    own = _own_folder(folder)
    folder, state = str(own), state.absolute()
    if others := installed.strangers(own, OWN_FILES):
        raise SettingError(
            f"--folder {folder} has files that are not berth's, such as {others[0]}; name a folder for berth alone"
        )
    if apply:
        installed.finish(own)
    configuration, today = read_files(controller, own)
    if apply:
        installed.check_first(today, own)
    there = installed.as_before(today, own) if installed.is_installed(own) else today
    names, known = _names(partitions), controller.partitions()
    _check_partitions(names, known)
    chosen = {name for each in known if each.name in names for name in each.nodes}
    if not chosen:
        raise SettingError(
            f"no partition of --partitions {partitions} has nodes; see: scontrol show partition"
        )
    owner = configuration.get("SlurmUser", "root(0)").rpartition("(")[2].rstrip(")")
    options = " ".join(
        f"--{what} {','.join(names_of(text))}"
        for what, text in (("partitions", partitions), ("qos", qos))
        if text
    )
    scontrol = shutil.which("scontrol") or "/usr/bin/scontrol"
    how = Plan(
        names,
        _names(qos),
        frozenset({0, int(owner or 0), *(_uid(each) for each in operator or ())}),
        sys.executable,
        str(Path(sys.argv[0]).resolve()),
        state,
        options,
        folder,
        shards_a_gpu,
        settings,
        str(Path(scontrol).parent),
        conf_folder(configuration),
        configuration.get("ClusterName", ""),
        keep_types,
    )
    planned = plan(how, there, controller.nodes(), chosen)
    lost = sorted(planned.lost_types)
    if lost:
        _say(
            f"each GPU gets a type of its own, so {', '.join(lost)} becomes a feature of its nodes: sbatch"
            f" --gres=gpu:{lost[0]}:2 works on, srun and salloc must ask for --gres=gpu:2 -C {lost[0]}, and limits and"
            f" accounts of gres/gpu:{lost[0]} count nothing more; --keep-types avoids it (Slurm chooses the GPU then)"
        )
    for line in diff(today, planned.files):
        print(line)
    fault, untried = fault_of(planned, there, how.conf, folder, how.cluster)
    for what in untried:
        _say(f"not tried: {what}")
    if fault:
        raise SettingError(f"{fault}; nothing was changed (tried in a copy)")
    before = {name: there[name] for name in planned.files if name in there}
    if apply:
        try:
            installed.put(how.conf, own, before, planned.files)
        except OSError as error:
            raise SettingError(f"{error.filename} cannot be written ({error.strerror})") from error
        _say(
            f"{how.conf} is changed: copy it to all machines, restart slurmctld and slurmd, and run berth slurm check;"
            " berth slurm uninstall takes it back"
        )


@app.command()
def uninstall(
    folder: Annotated[
        str, typer.Option(metavar="DIR", help="Folder of berth's scripts on all machines.")
    ] = "/etc/slurm/berth",
) -> None:
    """Write Slurm's files as they were before `install --apply`, and remove berth's folder."""
    from berth.live.slurm.install import OWN_FILES
    from berth.live.slurm.snapshot import is_held_by_berth

    own = Path(folder)
    installed.finish(own)
    if not installed.is_installed(own):
        raise SettingError(
            f"{own} does not say what there was before; `berth slurm install --apply` writes it, or name --folder"
        )
    there = installed.conf_of(own)
    today = installed.texts_of(there, own)
    held: list[str] = []
    with contextlib.suppress(LiveError):  # where Slurm does not run, none can be given back
        held = [job.id for job in Controller().jobs() if is_held_by_berth(job)]
    if held:
        raise SettingError(
            f"{len(held)} jobs are held for berth, {held[0]} first, and would wait for good; stop berth, give them back"
            f" with `{own}/watchdog.sh 0 STATE` (the folder of --state), and run uninstall again"
        )
    try:
        names = installed.remove(there, own, installed.as_before(today, own), OWN_FILES)
    except OSError as error:
        raise SettingError(f"{error.filename} cannot be written ({error.strerror})") from error
    _say(f"as before: {', '.join(names)}; copy them to all machines, and restart slurmctld and slurmd")


@app.command()
def compare(
    state: State = DEFAULT_STATE,
    gpus: Annotated[
        int, typer.Option(min=0, help="Number of GPUs in the cluster, to compute their use.")
    ] = 0,
    as_json: JsonOrCsv = None,
) -> None:
    """Compare waits under berth's decisions with Slurm's, by berth's log."""
    from berth.live.slurm.service import DECISIONS

    answer = asdict(compared([*read_decisions(state / DECISIONS)], gpus))
    if not printed(as_json, [answer], answer):
        _print_comparison(answer)


def _print_comparison(answer: dict[str, Any]) -> None:
    print(f"{'':22}{'Slurm':>12}{'berth':>12}")
    for name in ("mean", "median"):
        slurm, ours = answer[f"slurm_wait_{name}_s"], answer[f"berth_wait_{name}_s"]
        print(f"{f'wait, {name}':22}{slurm:>10,.1f} s{ours:>10,.1f} s")
    print(
        f"{answer['jobs']} starts; berth would have started {answer['earlier']} more than a second earlier, and"
    )
    print(f"{answer['never']} not before Slurm did; {answer['taken_back']} placements were taken back")
    if answer["gpus"]:
        print(f"GPUs in use: {100 * answer['slurm_use']:.1f} % of {answer['gpus']}")
