"""The commands of this machine's queue: their options; what they do is in `berth.live.local.client`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from berth.cli import completing
from berth.cli.output import AsJson, JsonOrCsv, printed
from berth.cli.shared_options import with_options
from berth.errors import BerthError, LiveError
from berth.live.driver.snapshot import job_dict
from berth.live.local import client
from berth.live.local.protocol import Flags

if TYPE_CHECKING:
    from berth.live.local.config import Setting

_ID_HELP = "Job id as `berth queue` shows it: 12, or 12_3 for one array task; or a job's name."

JobIds = Annotated[
    list[str], typer.Argument(metavar="ID…", help=_ID_HELP, autocompletion=completing.active_jobs)
]
SomeJobIds = Annotated[
    list[str] | None, typer.Argument(metavar="ID…", help=_ID_HELP, autocompletion=completing.active_jobs)
]
KnownJobIds = Annotated[
    list[str], typer.Argument(metavar="ID…", help=_ID_HELP, autocompletion=completing.known_jobs)
]
JobId = Annotated[str, typer.Argument(metavar="ID", help=_ID_HELP, autocompletion=completing.known_jobs)]
AllMine = Annotated[bool, typer.Option("--all", help="Select all of your jobs.")]
_GPU_HELP = "Indices of GPUs, as `berth status` shows them."
KnowledgeKind = Annotated[
    str | None,
    typer.Option(
        "--knowledge", metavar="KIND", help="Source of beliefs about jobs: history, user, or your own."
    ),
]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a job asks for."""

    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            "-g",
            "-G",
            metavar="N",
            help="Number of GPUs, or a part of one such as 0.5; 0 for a CPU-only job; by default 1.",
        ),
    ] = None
    mem: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="GPU memory promised per GPU, such as 8G; 8G..20G also bounds its growth; by default the share that"
            " --gpus asks for.",
        ),
    ] = None
    mem_max: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Let GPU memory grow up to this, such as 20G, while the job runs."),
    ] = None
    mem_shows_max: Annotated[
        bool,
        typer.Option(
            "--mem-shows-max",
            help="Show programs a card as large as the limit may become, for those that read its size only once.",
        ),
    ] = False
    core_pct: Annotated[
        str | None,
        typer.Option(metavar="PCT", help="Limit of the GPU's compute time in per cent; by default none."),
    ] = None
    exclusive: Annotated[bool, typer.Option("--exclusive", help="Share its GPUs with no other job.")] = False
    gpu: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Run only on these GPUs, by index, such as 0,1; by default any."),
    ] = None
    cpus: Annotated[
        str | None,
        typer.Option(
            "--cpus",
            "-c",
            metavar="N",
            help="CPU cores to reserve; by default none for a job with GPUs, else 1.",
        ),
    ] = None
    host_mem: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Host memory to reserve, such as 16G; by default none.")
    ] = None
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            "-t",
            metavar="LIMIT",
            help="Time limit: 2:00:00, 30 (minutes), 1-12:00:00, 90s; by default none.",
        ),
    ] = None
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="S",
            help="Time between SIGTERM and SIGKILL, in seconds or as 1m; 10 by default.",
        ),
    ] = None
    array: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="One job for each number, such as 1-10, 0-8:2 or 1,5,7; %N runs at most N at a time.",
        ),
    ] = None
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=V1,V2",
            help="One job for each value, {NAME} in the command; several make the product.",
        ),
    ] = None
    gang: Annotated[
        str | None,
        typer.Option(
            metavar="NAME/N",
            help="Start together with your other jobs of this gang, as soon as N of them wait.",
        ),
    ] = None
    after: Annotated[
        str | None,
        typer.Option(
            metavar="KIND:ID",
            help="Start after these jobs: ok:ID has succeeded, fail:ID has failed, any:ID has ended; separate several"
            " with commas.",
        ),
    ] = None
    begin: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Do not start before this time: 2026-11-22T18:00, 18:00 or now+2h.",
        ),
    ] = None
    name: Annotated[
        str | None, typer.Option("--name", "-J", "-n", metavar="NAME", help="Name of the job.")
    ] = None
    comment: Annotated[str | None, typer.Option(metavar="TEXT", help="Note, kept in the history.")] = None
    priority: Annotated[
        str | None,
        typer.Option("--priority", "-p", metavar="N", help="Priority; higher goes first; 0 by default."),
    ] = None
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Application profile to use; by default found by its name and command.",
        ),
    ] = None
    retries: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Run again at most N times after running out of GPU memory; 3 by default.",
        ),
    ] = None
    rerun: Annotated[
        bool,
        typer.Option("--rerun", help="Run again if the machine restarts, or if the exit status is lost."),
    ] = False
    interactive: Annotated[
        bool,
        typer.Option(
            "--interactive",
            help="Free the GPUs while the job is idle and others wait; its next CUDA call takes them back.",
        ),
    ] = False
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File for standard output; %j is the job's id, %a its array index.",
        ),
    ] = None
    error: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File for standard error; by default the same as standard output."),
    ] = None
    chdir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder to run in; by default the current one."),
    ] = None
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Run in this container image, by Podman or Apptainer (also a .sif file).",
        ),
    ] = None
    estimate: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Expected run time, such as 2:00:00, for policies that use it."),
    ] = None
    notify: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHERE",
            help="Where to send notices: https://…, slack:https://…, NAME@HOST, desktop or command:…; repeatable.",
        ),
    ] = None
    notify_on: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Events to report: start, end (the default), fail, out-of-memory.",
        ),
    ] = None


def top() -> None:
    """Show this machine's queue live: a tile per GPU, the jobs below, keys to cancel, hold and show."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # Textual draws on standard error
        raise LiveError("berth top needs a terminal; berth status and berth queue print it once")
    from berth.live.local.top import Top

    Top().run()


@with_options(JobOptions)
def submit(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND…",
            help="The command and its arguments, a script, or - for one job per line of standard input.",
        ),
    ] = None,
    pty: Annotated[
        bool,
        typer.Option(
            "--pty",
            help="Attach this terminal when the job starts, as a shell needs it; the job ends with it.",
        ),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the job has ended, and exit with its status.")
    ] = False,
    as_json: AsJson = False,
    *,
    options: JobOptions,
) -> None:
    """Queue a job on this machine: a command, a script with #BERTH lines, or - for one job per line of standard
    input."""
    from berth.live.local.submitting import submit

    configurable, flags = option_names(context.command), _given(context.params)

    def queued(flags: Flags) -> list[str]:
        return submit(flags, command or [], as_json, _words_parser(context), configurable)

    if pty:
        from berth.live.local import terminal

        if as_json or command == ["-"]:
            raise LiveError("--pty attaches one job to this terminal; leave --json and - out")
        terminal.check(flags)
        raise typer.Exit(terminal.run(queued, flags))
    ids = queued(flags)
    if wait:
        raise typer.Exit(client.wait(ids, every=False, timeout_s=None, as_json=as_json))


@with_options(
    JobOptions,
    "gpus",
    "mem",
    "mem_max",
    "core_pct",
    "exclusive",
    "gpu",
    "cpus",
    "host_mem",
    "time",
    "name",
    "priority",
    "interactive",
)
def jupyter(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENT…]", help="Further arguments of JupyterLab, after --."),
    ] = None,
    chdir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder of the notebooks; by default the current one."),
    ] = None,
    as_json: AsJson = False,
    *,
    options: JobOptions,
) -> None:
    """Run JupyterLab as a job of this machine, and print its address."""
    from berth.cli.app import load
    from berth.live.local import notebook
    from berth.live.local.submitting import queued

    parse, configurable = _words_parser(context), option_names(load("submit"))
    server = notebook.start(
        lambda flags, words: queued(flags, [*words, *(arguments or [])], parse, configurable),
        _given(context.params),
    )
    if as_json:
        printed(True, [], {"id": server.job_id, "port": server.port, "address": server.address})
        return
    print(server.address)
    print(f"berth: it is job {server.job_id}; stop it with: berth cancel {server.job_id}", file=sys.stderr)
    if there := notebook.tunnel(server):
        print(f"berth: from your own machine, first run: {there}", file=sys.stderr)


def queue(
    ids: SomeJobIds = None,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Only this user's jobs.")] = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Only jobs in these states, such as waiting,running."),
    ] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Also list jobs that ended recently.")] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="At most N jobs; by default all.")
    ] = None,
    as_json: JsonOrCsv = None,
) -> None:
    """List waiting and running jobs."""
    if as_json is None:
        client.print_queue(ids or [], user, state, ended, limit)
        return
    shown, _ = client.snapshot(ids or [], user, state, ended, limit)
    printed(as_json, [job_dict(job) for job in shown.jobs], asdict(shown))


def status(as_json: JsonOrCsv = None) -> None:
    """Show whether the queue is up, its policy, and the jobs on each GPU."""
    if as_json is None:
        client.print_status()
        return
    shown, service = client.snapshot([], None, None, False, None)
    printed(as_json, [asdict(gpu) for gpu in shown.gpus], {**asdict(shown), "service": service})


def logs(
    job_id: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until the job ends.")
    ] = False,
    error: Annotated[bool, typer.Option("--error", help="Print standard error instead.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", metavar="N", min=0, help="Print only the last N lines.")
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Attempt number; by default the last."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a job's output."""
    client.print_logs(job_id, follow=follow, error=error, lines=lines, attempt=attempt, as_json=as_json)


def wait(
    ids: SomeJobIds = None,
    every: AllMine = False,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", metavar="S", min=0, help="Give up after S seconds, with status 124."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Wait until jobs have ended; the exit status is the first that is not 0."""
    raise typer.Exit(client.wait(ids or [], every=every, timeout_s=timeout_s, as_json=as_json))


def cancel(ids: SomeJobIds = None, every: AllMine = False, as_json: AsJson = False) -> None:
    """Cancel jobs: a running one gets SIGTERM, then SIGKILL after its grace period."""
    client.control("cancel", ids or [], as_json, every=every)


def hold(ids: JobIds, as_json: AsJson = False) -> None:
    """Keep waiting jobs from starting."""
    client.control("hold", ids, as_json)


def release(ids: JobIds, as_json: AsJson = False) -> None:
    """Let held jobs start again."""
    client.control("release", ids, as_json)


def suspend(ids: JobIds, as_json: AsJson = False) -> None:
    """Move running jobs off their GPUs into the machine's memory; no work is lost."""
    client.control("suspend", ids, as_json)


def resume(ids: JobIds, as_json: AsJson = False) -> None:
    """Continue suspended jobs as soon as their GPUs have room."""
    client.control("resume", ids, as_json)


@with_options(
    JobOptions,
    "gpus",
    "mem",
    "mem_max",
    "mem_shows_max",
    "core_pct",
    "exclusive",
    "gpu",
    "cpus",
    "host_mem",
    "time",
    "grace",
    "after",
    "begin",
    "name",
    "comment",
    "priority",
    "profile",
    "retries",
    "rerun",
)
def edit(
    context: typer.Context,
    ids: JobIds,
    as_json: AsJson = False,
    *,
    options: JobOptions,
) -> None:
    """Change a waiting job, or the time limit, grace period, retries, name or comment of a running one."""
    flags = _given(context.params)
    if not flags:
        raise LiveError("name at least one option to change, such as --mem 8G")
    client.control("edit", ids, as_json, flags=flags)


def requeue(ids: KnownJobIds, as_json: AsJson = False) -> None:
    """Queue a running or ended job again; a running one is stopped first."""
    client.control("requeue", ids, as_json)


def why(job_id: JobId, as_json: AsJson = False) -> None:
    """Explain why a job waits: the policy, the possible GPUs, what blocks them, and since when."""
    client.print_why(job_id, as_json)


def policy(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="The policy, such as easy+priority+worst-fit, the default; see `berth policies`.",
            autocompletion=completing.policy,
        ),
    ] = None,
    knowledge: KnowledgeKind = None,
    as_json: AsJson = False,
) -> None:
    """Show or change the policy; running jobs continue."""
    client.switch_policy(name, knowledge, as_json)


def drain(
    gpus: Annotated[
        list[str] | None, typer.Argument(metavar="GPU…", help=_GPU_HELP, autocompletion=completing.gpus)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start no job on these GPUs; running jobs continue. Without a GPU, list the drained ones."""
    client.drain(gpus or [], True, as_json)


def undrain(
    gpus: Annotated[
        list[str], typer.Argument(metavar="GPU…", help=_GPU_HELP, autocompletion=completing.gpus)
    ],
    as_json: AsJson = False,
) -> None:
    """Start jobs on these GPUs again."""
    client.drain(gpus, False, as_json)


def up(
    context: typer.Context,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Policy that decides; kept for the next start.",
            autocompletion=completing.policy,
        ),
    ] = None,
    knowledge: KnowledgeKind = None,
    fake_gpus: Annotated[
        str | None,
        typer.Option(metavar="NxMODEL-SIZE", help="Run on fake GPUs, such as 4xA100-80G."),
    ] = None,
    no_gpus: Annotated[bool, typer.Option("--no-gpus", help="Run CPU-only jobs.")] = False,
    cpus: Annotated[str | None, typer.Option(metavar="N", help="CPU cores for jobs; by default all.")] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="PORT|PATH",
            help="Serve Prometheus metrics on a port of 127.0.0.1, or on a Unix socket.",
        ),
    ] = None,
    grow: Annotated[
        str | None,
        typer.Option(
            metavar="off|on|suspend",
            help="Whose GPU memory grows. on, the default: all jobs with --mem, up to the card; suspend: the same, and "
            "the job of the lowest priority makes room; off: jobs with a range such as 8G..20G. Kept for the next "
            "start.",
        ),
    ] = None,
    per_gpu: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="At most N jobs that ask only for GPU memory share a GPU; 10 by default. Kept for the next start.",
        ),
    ] = None,
    uncounted: Annotated[
        str | None,
        typer.Option(
            metavar="report|throttle|suspend",
            help="What to do with a job that holds more GPU memory than its partition counts: report it, or also "
            "throttle or suspend it. Kept for the next start.",
        ),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground, and log to standard error.")
    ] = False,
    install: Annotated[
        bool,
        typer.Option(
            "--install",
            help="Start the queue now and at boot, through systemd or cron, with these options.",
        ),
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Undo --install; running jobs continue.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start the queue of this machine."""
    from berth.live.local import starting
    from berth.live.local.config import flags_of

    given = _given(context.params)
    if uninstall:
        if given or install or as_json:
            raise LiveError("--uninstall goes alone; leave the other options out")
        starting.uninstall()
        return
    values, _ = flags_of("up", option_names(context.command))
    _check_up({**values, **given})
    if install:
        starting.install(given, values, as_json)
    else:
        starting.up({**values, **given}, as_json)


def down(
    cancel: Annotated[bool, typer.Option("--cancel", help="End all running jobs first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the queue; running jobs continue, and the next `berth up` finds them."""
    client.shut_down(cancel, as_json)


def config(as_json: JsonOrCsv = None) -> None:
    """Show what `berth.toml` sets for `berth up`, `berth submit` and notices, and which file says so."""
    from berth.cli.app import load
    from berth.live.local.config import paths, settings

    found = settings({name: option_names(load(name)) for name in ("up", "submit")})
    _check(found)
    rows = [
        {"table": each.table, "key": each.key.replace("_", "-"), "value": each.value, "file": each.path}
        for each in found
    ]
    if not rows and as_json is None:
        print(f"no file sets anything; there may be {' and '.join(filter(None, paths()))}")
        return
    if printed(as_json, rows, {"files": [path for path in paths() if path], "settings": rows}):
        return
    for row in rows:
        value = ", ".join(row["value"]) if isinstance(row["value"], list) else row["value"]
        print(f"[{row['table']}] {row['key']} = {value}    ({row['file']})")


def _check(found: list[Setting]) -> None:
    """Refuse a value that `berth up` or `berth submit` would refuse; LiveError names its file and line."""
    from berth.live.local.config import NOTIFY
    from berth.live.local.request import request_of, tasks_of

    for each in found:
        key = NOTIFY[each.key] if each.table == "notify" else each.key
        # a limit to grow to needs one to begin with
        flags: Flags = {key: each.value} if key != "mem_max" else {"mem": "1M", key: each.value}
        try:
            if each.table == "up":
                _check_up(flags)
            else:
                request_of(flags, argv=["true"], cwd="/", now_ms=0)
                tasks_of(flags)
        except BerthError as error:
            raise LiveError(f"{each.where}: {error}") from error


def _check_up(values: Flags) -> None:
    from berth.live.local.cards import fake_gpus
    from berth.live.local.places import state_folder
    from berth.live.local.starting import check

    check(values)
    if "fake_gpus" in values:
        fake_gpus(str(values["fake_gpus"]))
    if not os.path.exists(state_folder()):  # a start that the queue refuses would leave one
        _check_decider(str(values.get("policy", "")), str(values.get("knowledge", "")))


def _check_decider(policy: str, knowledge: str) -> None:
    """Refuse names that are not there; the queue alone knows where your own code and histories are."""
    if policy and ":" not in policy:
        from berth.policies import make_policy

        make_policy(policy)
    if knowledge and ":" not in knowledge and not knowledge.startswith("history"):
        from berth.knowledge import check_knowledge

        check_knowledge(knowledge)


_NO_FLAGS: Final = {"arguments", "command", "ids", "as_json", "pty", "wait", "install", "uninstall"}


def _given(parameters: dict[str, Any]) -> Flags:
    """The options that were given, as the broker reads them."""
    return {
        name: value
        for name, value in parameters.items()
        if value is not None and value is not False and value not in ([], ()) and name not in _NO_FLAGS
    }


def option_names(command: Any) -> list[str]:
    """The options of a command that `berth.toml` may set."""
    return [each.name for each in command.params if each.name not in _NO_FLAGS | {"help"}]


def _words_parser(context: typer.Context) -> Callable[[list[str]], tuple[Flags, list[str]]]:
    """Takes the words of a line apart as this command's own words are."""
    from berth.cli.app import UsageError

    parser = context.command.make_parser(context)

    def parse(words: list[str]) -> tuple[Flags, list[str]]:
        try:
            found, _, _ = parser.parse_args(list(words))
        except UsageError as error:
            raise LiveError(error.format_message()) from error
        for name in ("pty", "wait"):
            if found.get(name):
                raise LiveError(f"--{name} is for the command line alone")
        flags = _given(found)
        if found.get("as_json"):
            flags["json"] = True
        return flags, list(found.get("command") or ())

    return parse
