"""The commands of the local queue: their flags and help, said once for the parser, `--help` and the reference."""

from __future__ import annotations

from collections.abc import Sequence

from berth.errors import LiveError

__all__ = ["COMMANDS", "FORMAT", "JSON", "SUBMIT", "Command", "Flag", "Parsed", "parse"]


class Flag:
    """One option of a command."""

    __slots__ = ("help", "metavar", "name", "repeats", "short")

    def __init__(self, name: str, metavar: str, help: str, *, short: str = "", repeats: bool = False) -> None:  # noqa: A002
        self.name, self.metavar, self.help, self.short, self.repeats = name, metavar, help, short, repeats

    @property
    def key(self) -> str:
        """Its name in what was parsed."""
        return self.name[2:].replace("-", "_")


class Command:
    """One command: what it does, what stands behind it, its flags."""

    __slots__ = ("by_name", "flags", "help", "name", "operands", "ordered")

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002
        operands: str = "",
        flags: Sequence[Flag] = (),
        *,
        ordered: bool = False,
    ) -> None:
        self.name, self.help, self.operands, self.flags, self.ordered = (
            name,
            help,
            operands,
            tuple(flags),
            ordered,
        )
        self.by_name = {flag.name: flag for flag in flags} | {
            flag.short: flag for flag in flags if flag.short
        }


Parsed = dict[str, "str | bool | list[str]"]

JSON = Flag("--json", "", "Print JSON on standard output, and nothing else.")
FORMAT = Flag(
    "--format", "table|csv|parquet|json",
    "Print a table, or its rows as CSV, Parquet or JSON; --json is short for the last.",
)  # fmt: skip
ALL_USERS = Flag("--all-users", "", "Of all users; by default your own.")

SUBMIT = (
    Flag("--gpus", "N", "Number of GPUs, or a part of one such as 0.5; 0 for a CPU-only job."),
    Flag("--mem", "SIZE", "GPU memory on each GPU, such as 8G; enforced."),
    Flag("--core-pct", "PCT", "At most this percentage of the GPU's compute time; enforced."),
    Flag("--exclusive", "", "Share its GPUs with no other job."),
    Flag("--gpu", "LIST", "Run only on these GPUs, by index, such as 0,1."),
    Flag("--cpus", "N", "CPU cores to reserve."),
    Flag("--host-mem", "SIZE", "Host memory to reserve, such as 16G."),
    Flag("--time", "LIMIT", "Time limit: 2:00:00, 30 (minutes), 1-12:00:00, 90s."),
    Flag("--grace", "S", "Time between SIGTERM and SIGKILL, in seconds or as 1m; 10 by default."),
    Flag("--array", "LIST", "One job for each number, such as 1-10, 0-8:2 or 1,5,7; %N runs at most N at a time."),
    Flag(
        "--param", "NAME=V1,V2", "One job for each value, {NAME} in the command; several make the product.",
        repeats=True,
    ),
    Flag("--after", "KIND:ID", "Wait for a job: ok:ID, fail:ID or any:ID; separate several with commas."),
    Flag("--begin", "TIME", "Do not start before this time: 2026-11-22T18:00, 18:00, now+2h."),
    Flag("--name", "NAME", "Name of the job."),
    Flag("--comment", "TEXT", "Note, kept in the history."),
    Flag("--priority", "N", "Priority; higher goes first."),
    Flag("--profile", "NAME", "Application profile to use; by default found by its name and command."),
    Flag("--retries", "N", "Run again at most N times after running out of GPU memory; 3 by default."),
    Flag("--rerun", "", "Run again if its exit cannot be known or the machine restarted."),
    Flag("--output", "FILE", "File for standard output; %j is the job's id, %a its array index."),
    Flag("--error", "FILE", "File for standard error; by default the same as standard output."),
    Flag("--chdir", "DIR", "Folder to run in; by default the current one."),
    Flag("--estimate", "TIME", "Expected run time, for policies that use it."),
)  # fmt: skip

EDITABLE = (
    "gpus",
    "mem",
    "core_pct",
    "time",
    "grace",
    "name",
    "comment",
    "priority",
    "begin",
    "retries",
    "profile",
    "cpus",
    "host_mem",
    "exclusive",
    "gpu",
    "rerun",
    "after",
)

_EDIT = (
    *(flag for flag in SUBMIT if flag.key in EDITABLE),
    Flag("--array", "%N", "Run at most N array tasks at a time."),
)

COMMANDS = {
    command.name: command
    for command in (
        Command(
            "submit",
            "Queue a job on this machine: a command, a script with #BERTH lines, or - for one job per line of standard"
            " input.",
            "COMMAND",
            (*SUBMIT, JSON),
            ordered=True,
        ),
        Command("queue", "List waiting and running jobs.", "[ID]", (
            Flag("--user", "NAME", "Only this user's jobs."),
            Flag("--state", "LIST", "Only jobs in these states, such as waiting,running."),
            Flag("--ended", "", "Also list jobs that ended recently."),
            Flag("--limit", "N", "At most N jobs."),
            JSON, FORMAT,
        )),
        Command("logs", "Print a job's output.", "ID", (
            Flag("--follow", "", "Follow the output until the job ends.", short="-f"),
            Flag("--error", "", "Print standard error instead."),
            Flag("--lines", "N", "Print only the last N lines.", short="-n"),
            Flag("--attempt", "N", "Attempt number; by default the last."),
            JSON,
        )),
        Command("wait", "Wait until jobs have ended; the exit status is the first that is not 0.", "[ID]", (
            Flag("--all", "", "Select all of your jobs."),
            Flag("--timeout", "S", "Give up after S seconds, with status 124."),
            JSON,
        )),
        Command("cancel", "Cancel jobs: a running one gets SIGTERM, then SIGKILL after its grace period.", "[ID]", (
            Flag("--all", "", "Select all of your jobs."), JSON,
        )),
        Command("hold", "Keep waiting jobs from starting.", "ID", (JSON,)),
        Command("release", "Let held jobs start again.", "ID", (JSON,)),
        Command(
            "edit",
            "Change a waiting job, or the time limit, grace period, retries, name or comment of a running one.",
            "ID",
            (*_EDIT, JSON),
        ),
        Command("requeue", "Queue a running or ended job again; a running one is stopped first.", "ID", (JSON,)),
        Command("why", "Explain why a job waits: policy, candidates, obstacles, since when.", "ID", (JSON,)),
        Command("policy", "Show or change the policy; no job stops.", "[NAME]", (
            Flag("--knowledge", "KIND", "Source of beliefs about jobs: history, user, or your own."), JSON,
        )),
        Command("drain", "Start no job on these GPUs; running jobs continue. Without a GPU, list the drained ones.",
                "[GPU]", (JSON,)),
        Command("undrain", "Start jobs on these GPUs again.", "GPU", (JSON,)),
        Command("up", "Start the queue of this machine.", "", (
            Flag("--policy", "NAME", "Policy to decide by; kept for the next start."),
            Flag("--knowledge", "KIND", "Source of beliefs about jobs: history, user, or your own."),
            Flag("--fake-gpus", "NxMODEL-SIZE", "Run on fake GPUs, such as 4xA100-80G."),
            Flag("--no-gpus", "", "Run CPU-only jobs."),
            Flag("--cpus", "N", "CPU cores for jobs; by default all."),
            Flag("--metrics", "PORT|PATH", "Serve Prometheus metrics on a port of 127.0.0.1, or on a Unix socket."),
            Flag("--foreground", "", "Stay in the foreground, and log to standard error."),
            JSON,
        )),
        Command("down", "Stop the queue; running jobs continue, and the next `berth up` finds them.", "", (
            Flag("--cancel", "", "End all running jobs first."), JSON,
        )),
        Command("status", "Show whether the queue is up, its policy, and what the GPUs hold.", "", (JSON, FORMAT)),
    )
}  # fmt: skip


def parse(command: Command, words: Sequence[str], *, where: str = "") -> tuple[Parsed, list[str]]:
    """The flags and what stands behind them. With `ordered` all that follows the first operand is one.

    LiveError for a flag that there is not, or that lacks its value.
    """
    by_name = command.by_name
    values: Parsed = {}
    operands: list[str] = []
    at, of = 0, where or f"berth {command.name}"
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            operands += words[at:]
            break
        if not word.startswith("-") or word == "-":
            if command.ordered:
                operands += words[at - 1 :]
                break
            operands.append(word)
            continue
        name, given, value = word.partition("=")
        flag = by_name.get(name)
        if flag is None and word[:2] in by_name and not word.startswith("--"):
            flag, given, value = by_name[word[:2]], "=", word[2:]
        if flag is None:
            raise LiveError(f"{of}: no option '{name}'; there are {', '.join(f.name for f in command.flags)}")
        if not flag.metavar:
            if given:
                raise LiveError(f"{of}: {name} takes no value; got '{value}'")
            values[flag.key] = True
            continue
        if not given:
            if at >= len(words):
                raise LiveError(f"{of}: {name} wants {flag.metavar}: {flag.help}")
            value = words[at]
            at += 1
        if flag.repeats:
            had = values.setdefault(flag.key, [])
            assert isinstance(had, list)
            had.append(value)
        else:
            values[flag.key] = value
    return values, operands
