"""The commands of the local queue: their flags and help, said once for the parser, `--help` and the reference."""

from __future__ import annotations

from collections.abc import Sequence

from berth.errors import LiveError

__all__ = ["COMMANDS", "SUBMIT", "Command", "Flag", "Parsed", "parse"]


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
ALL_USERS = Flag("--all-users", "", "Of all users; by default your own.")

SUBMIT = (
    Flag("--gpus", "N", "GPUs: a number, or a part of one such as 0.5; 0 for a job of the CPU alone."),
    Flag("--mem", "SIZE", "GPU memory on each GPU, such as 8G; enforced."),
    Flag("--core-pct", "PCT", "Per cent of the GPU's compute time, at most; enforced."),
    Flag("--exclusive", "", "Have its GPUs for itself."),
    Flag("--gpu", "LIST", "Run on these GPUs only, by index, such as 0,1."),
    Flag("--cpus", "N", "CPU cores that it counts for."),
    Flag("--host-mem", "SIZE", "Memory of the machine that it counts for, such as 16G."),
    Flag("--time", "LIMIT", "Time limit: 2:00:00, 30 (minutes), 1-12:00:00, 90s."),
    Flag("--grace", "S", "Seconds between SIGTERM and SIGKILL; 10 by default."),
    Flag("--array", "LIST", "One job for each number, such as 1-10, 0-8:2 or 1,5,7; %N runs at most N at a time."),
    Flag(
        "--param", "NAME=V1,V2", "One job for each value, {NAME} in the command; several make the product.",
        repeats=True,
    ),
    Flag("--after", "KIND:ID", "Wait for a job: ok:ID, fail:ID or any:ID; several with commas."),
    Flag("--begin", "TIME", "Not before then: 2026-11-22T18:00, 18:00, now+2h."),
    Flag("--name", "NAME", "What to call it."),
    Flag("--comment", "TEXT", "A note, kept in the history."),
    Flag("--priority", "N", "Higher goes first."),
    Flag("--profile", "NAME", "The application whose profile it has; by default its name and command."),
    Flag("--retries", "N", "Run it again at most N times after it ran out of GPU memory; 3 by default."),
    Flag("--rerun", "", "Run it again if its exit cannot be known or the machine restarted."),
    Flag("--output", "FILE", "Where its output goes; %j is its id, %a its array index."),
    Flag("--error", "FILE", "Where its errors go; by default with its output."),
    Flag("--chdir", "DIR", "Run it in this folder; by default the current one."),
    Flag("--estimate", "TIME", "How long it is expected to run, for policies that heed it."),
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
    Flag("--array", "%N", "Run at most N tasks of the array at a time."),
)

COMMANDS = {
    command.name: command
    for command in (
        Command(
            "submit",
            "Queue a job on this machine: a command, a script with #BERTH lines, or - for one job a line of standard"
            " input.",
            "COMMAND",
            (*SUBMIT, JSON),
            ordered=True,
        ),
        Command("queue", "List the jobs that wait and run.", "[ID]", (
            Flag("--user", "NAME", "Of this user only."),
            Flag("--state", "LIST", "In these states only, such as waiting,running."),
            Flag("--ended", "", "Also those that ended last."),
            Flag("--limit", "N", "At most N jobs."),
            JSON,
        )),
        Command("logs", "Print what a job has written.", "ID", (
            Flag("--follow", "", "Go on until it ends.", short="-f"),
            Flag("--error", "", "What it wrote to its error file."),
            Flag("--lines", "N", "The last N lines only.", short="-n"),
            Flag("--attempt", "N", "Of this attempt; by default the last."),
            JSON,
        )),
        Command("wait", "Wait until jobs have ended; the exit status is the first that is not 0.", "[ID]", (
            Flag("--all", "", "All of your jobs."),
            Flag("--timeout", "S", "Give up after S seconds, with status 124."),
            JSON,
        )),
        Command("cancel", "End jobs: one that runs gets SIGTERM, and SIGKILL after its grace.", "[ID]", (
            Flag("--all", "", "All of your jobs."), JSON,
        )),
        Command("hold", "Keep waiting jobs from starting.", "ID", (JSON,)),
        Command("release", "Let held jobs start again.", "ID", (JSON,)),
        Command(
            "edit",
            "Change a waiting job; of a running one the time limit, grace, retries, name or comment.",
            "ID",
            (*_EDIT, JSON),
        ),
        Command("requeue", "Stop a running job, or take one that has ended, and queue it again.", "ID", (JSON,)),
        Command("why", "Say why a job waits: policy, candidates, what stands in its way, since when.", "ID", (JSON,)),
        Command("policy", "Say or change the policy that decides; no job stops.", "[NAME]", (
            Flag("--knowledge", "KIND", "What is believed of jobs: history, user, or your own."), JSON,
        )),
        Command("up", "Start the queue of this machine.", "", (
            Flag("--policy", "NAME", "The policy that decides; kept for the next start."),
            Flag("--knowledge", "KIND", "What is believed of jobs: history, user, or your own."),
            Flag("--fake-gpus", "NxMODEL-SIZE", "Run on fake GPUs, such as 4xA100-80G."),
            Flag("--no-gpus", "", "Run jobs of the CPU alone."),
            Flag("--cpus", "N", "CPU cores for jobs; by default all."),
            Flag("--metrics", "PORT|PATH", "Serve Prometheus metrics on a port of 127.0.0.1, or on a Unix socket."),
            Flag("--foreground", "", "Stay, and log to standard error."),
            JSON,
        )),
        Command("down", "Stop the queue; jobs that run go on, and are found again by the next `berth up`.", "", (
            Flag("--cancel", "", "End all running jobs first."), JSON,
        )),
        Command("status", "Say whether the queue is up, which policy decides, and what the GPUs hold.", "", (JSON,)),
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
