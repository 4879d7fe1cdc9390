"""Queries and changes of slurmctld by `squeue` and `scontrol`: the only module that starts them.

Changes of many jobs go through one `scontrol` that reads them from standard input, which repeats each line and prints
below it what went wrong.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from berth.errors import LiveError
from berth.history.values.causes import END_OF_NOTE
from berth.history.values.tres import same_gres
from berth.live.slurm.jobs import COLUMNS, WHOLE_NODES, SlurmJob, format_of, jobs_of
from berth.live.slurm.nodes import (
    NODE_FIELDS,
    PARTITION_FIELDS,
    SlurmNode,
    SlurmPartition,
    lacking,
    nodes_of,
    partitions_of,
)

TIMEOUT_S = 60.0
PROMPT = "scontrol: "
CHANGES_AT_ONCE = 200
"""Lines that one `scontrol` is sent: at 22 updates a second they take 9 s."""
IDS_AT_ONCE = 1000
"""Jobs that one `squeue` is asked for: the words of a program have a largest length."""
NODES_AT_ONCE = 1000
CRED_EXPIRE_S = 120
"""Slurm's default of cred_expire, which it also takes for less than LEAST_CRED_EXPIRE_S."""
LEAST_CRED_EXPIRE_S = 5
FORGETS_S = 5
"""slurmd looks for expired credentials every 2 s, times are whole seconds, and clocks differ."""
_CRED_EXPIRE = re.compile(r"\bcred_expire=(\d+)")
_UNKNOWN_COLUMN = re.compile(r"Invalid job format specification: (\S+)")
_CONFIG = re.compile(r"(\S+)\s*=\s?(.*)")

Run = Callable[[Sequence[str], str], str]
"""Runs a program with lines on its standard input and returns what it prints; LiveError if it cannot."""


def run_program(words: Sequence[str], lines: str = "", *, timeout_s: float = TIMEOUT_S) -> str:
    """Run one of Slurm's programs; LiveError has what it printed."""
    try:
        done = subprocess.run(
            words,
            input=lines,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if lines else subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=_environment(),
            check=False,
        )
    except FileNotFoundError as error:
        raise LiveError(
            f"there is no {words[0]} here; run berth where Slurm's commands are installed"
        ) from error
    except OSError as error:
        raise LiveError(f"{words[0]} cannot be run ({error.strerror}); see: ulimit -a") from error
    except subprocess.TimeoutExpired as error:
        raise LiveError(
            f"{words[0]} has not answered for {timeout_s:.0f} s; see whether slurmctld lives: scontrol ping"
        ) from error
    if done.returncode and not lines:
        raise LiveError(
            f"{' '.join(words[:4])}: {_message(words[0], done.stderr) or f'exit {done.returncode}'}"
        )
    return done.stdout


def _message(program: str, text: str) -> str:
    """What a program of Slurm's printed as an error, in one line: what stopped it, if it says so among other lines."""
    lines = [line.strip().removeprefix(f"{program}: ") for line in text.splitlines() if line.strip()]
    fatal = [line for line in lines if "fatal:" in line] or lines
    hint = "; run berth where `scontrol ping` answers" if "configuration source" in text else ""
    return "; ".join(fatal) + hint


def _environment() -> dict[str, str]:
    words = {**os.environ, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"}
    # It is slurmrestd's: Slurm's commands would take it too, and fail once it has expired.
    words.pop("SLURM_JWT", None)
    # scontrol reads its lines by readline, which writes escapes into what it repeats, unless its terminal is wide.
    return words | {"TERM": "dumb", "COLUMNS": "30000"}


def forgotten_after_s(configuration: Mapping[str, str]) -> int:
    """How long after the end of an attempt its nodes have forgotten it for certain, in seconds.

    Until then slurmd takes the next attempt for the same one, and runs no Prolog for it (slurm_cred_handle_reissue in
    Slurm's slurm_cred.c). Slurm itself waits for cred_expire and 1 s, which is too short if slurmd has just looked.
    """
    found = _CRED_EXPIRE.search(configuration.get("AuthInfo", ""))
    expire_s = int(found[1]) if found else CRED_EXPIRE_S
    return FORGETS_S + (expire_s if expire_s >= LEAST_CRED_EXPIRE_S else CRED_EXPIRE_S)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a waiting job; a field that is None stays as it is."""

    job_id: str
    node_list: str | None = None
    gres: str | None = None
    """What it gets on each of its nodes, such as `gres:gpu:a100_1:1` or `gres:shard:a100_1:2`; empty: nothing."""
    admin_comment: str | None = None
    """berth's note, which the plugin puts behind what others wrote. Written with the rest; an empty one, which ends
    berth's hold on the job, only after its release."""
    per_job: str | None = None
    per_task: str | None = None
    hold: bool | None = None
    """True: an administrator's hold; False: release it."""
    requeue: bool = False
    """Begin with a requeue, which leaves it held."""
    after_s: int = 0
    """How long it may not begin after the requeue (see `forgotten_after_s`)."""
    number: str = ""
    """What `scontrol` calls a component of a heterogeneous job; empty: the job's id."""
    exclude: str | None = None
    """Nodes that it may not use: Slurm takes no `node_list` for the first component."""
    components: tuple[Change, ...] = ()
    """Of the first component, the changes of the others. Slurm gives them some of its own, so that theirs come after
    it; its release and its requeue are those of all."""

    @property
    def clears(self) -> bool:
        """Whether berth lets go of the job: its note is what berth and the watchdog find it by, so that it is cleared
        only after the release."""
        return self.hold is False and self.admin_comment == ""

    @property
    def steps(self) -> tuple[str, ...]:
        """The lines for `scontrol` in their order; each is sent only if those before it went well."""
        every = (self, *self.components)
        lines = [line for each in every for line in each._before_release]
        if self.hold is False:
            lines.append(f"release {self._name}")
        lines += [f"update JobId={each._name} AdminComment={END_OF_NOTE}" for each in every if each.clears]
        return tuple(lines)

    @property
    def _name(self) -> str:
        return self.number or self.job_id

    @property
    def _before_release(self) -> list[str]:
        pairs = [
            (name, value)
            for name, value in (
                ("ReqNodeList", self.node_list),
                ("ExcNodeList", self.exclude),
                ("TresPerNode", self.gres),
                ("TresPerJob", self.per_job),
                ("TresPerTask", self.per_task),
                ("AdminComment", None if self.clears else self.admin_comment),
                ("StartTime", f"now+{self.after_s}" if self.requeue else None),
            )
            if value is not None
        ]
        lines = [f"requeuehold {self._name}"] if self.requeue else []
        if self.hold:
            lines.append(f"hold {self._name}")
        if pairs:
            lines.append(f"update JobId={self._name} " + " ".join(f"{name}={value}" for name, value in pairs))
        return lines


@dataclass(frozen=True, slots=True)
class View:
    """What Slurm has at one moment."""

    at_ms: int
    jobs: tuple[SlurmJob, ...]
    nodes: tuple[SlurmNode, ...]
    partitions: tuple[SlurmPartition, ...]
    ended: tuple[SlurmJob, ...] = ()
    """The jobs that have ended since the last view that was taken in; of the first, all that Slurm reports."""


class Controller:
    """slurmctld, by its own commands."""

    def __init__(self, run: Run = run_program) -> None:
        """`run` runs Slurm's commands."""
        self._run = run
        self.queries = 0
        """How many queries there were."""
        self.unreadable: list[str] = []
        """Why jobs of the last queries are missing."""
        self._exclusive = next(iter(WHOLE_NODES))

    def jobs(self, ids: Sequence[str] = (), *, with_ended: bool = False) -> tuple[SlurmJob, ...]:
        """All jobs that wait or run, and `with_ended` those that have ended lately; with `ids` only those jobs, also if
        they have ended lately. slurmctld sends `squeue` all jobs, whatever it prints."""
        if len(ids) > IDS_AT_ONCE:
            parts = (ids[at : at + IDS_AT_ONCE] for at in range(0, len(ids), IDS_AT_ONCE))
            return tuple(job for part in parts for job in self.jobs(part))
        only = ["-t", "all", "-j", ",".join(ids)] if ids else ["-t", "all"] if with_ended else []
        self.queries += 1
        mark = secrets.token_hex(4)
        try:
            text = self._squeue(only, mark)
        except LiveError as error:
            if ids and "Invalid job id" in str(error):
                return ()  # what squeue says where slurmctld has forgotten the only job that is asked for
            raise
        return tuple(jobs_of(text, mark, self.unreadable.append, exclusive=self._exclusive))

    def _squeue(self, only: Sequence[str], mark: str) -> str:
        """What `squeue` prints of the columns; what a Slurm before 26.05 does not know is learned once."""
        columns = [self._exclusive if name in WHOLE_NODES else name for name in COLUMNS]
        try:
            return self._run(["squeue", "-h", "-a", *only, "-O", format_of(columns, mark)], "")
        except LiveError as error:
            unknown, before = _UNKNOWN_COLUMN.search(str(error)), "OverSubscribe"
            if unknown is None:
                raise
            if unknown[1] != self._exclusive or self._exclusive == before:
                raise LiveError(
                    f"squeue of this Slurm has no column {unknown[1]}, which berth reads"
                ) from error
            self._exclusive = before
            return self._squeue(only, mark)

    def lacks(self) -> list[str]:
        """What this Slurm's programs do not print that berth reads, and what is lost by that."""
        found = []
        try:
            self.jobs(["1"])
        except LiveError as error:
            found.append(str(error))
        nodes = self._run(["scontrol", "-o", "-d", "-a", "show", "node"], "")
        partitions = self._run(["scontrol", "-o", "-a", "show", "partition"], "")
        lost = lacking(nodes, "NodeName=", NODE_FIELDS)
        lost += lacking(partitions, "PartitionName=", PARTITION_FIELDS)
        return found + [f"scontrol of this Slurm shows no {each}" for each in lost]

    def nodes(self) -> tuple[SlurmNode, ...]:
        """All nodes."""
        self.queries += 1
        return tuple(nodes_of(self._run(["scontrol", "-o", "-d", "-a", "show", "node"], "")))

    def comment_nodes(self, names: Sequence[str], comment: str) -> None:
        """Write the comment of nodes, which replaces the one that they have. LiveError where that is refused."""
        for at in range(0, len(names), NODES_AT_ONCE):
            some = ",".join(names[at : at + NODES_AT_ONCE])
            self._run(["scontrol", "update", f"NodeName={some}", f"Comment={comment}"], "")

    def order(self, words: Sequence[str]) -> None:
        """Have `scontrol` do one thing, such as `suspend 12`; LiveError if that is refused."""
        self._run(["scontrol", *words], "")

    def partitions(self) -> tuple[SlurmPartition, ...]:
        """All partitions."""
        self.queries += 1
        return tuple(partitions_of(self._run(["scontrol", "-o", "-a", "show", "partition"], "")))

    def configuration(self) -> dict[str, str]:
        """What `scontrol show config` prints, by name."""
        self.queries += 1
        text = self._run(["scontrol", "show", "config"], "")
        found = (_CONFIG.fullmatch(line.strip()) for line in text.splitlines())
        configuration: dict[str, str] = {}
        for name, value in ((each[1], each[2]) for each in found if each):
            # Of what may be given several times, Slurm 23.02 and later print each on a line: Prolog[0], Prolog[1].
            whole = name.partition("[")[0]
            before = configuration.get(whole, "")
            configuration[whole] = f"{before},{value}" if before and whole != name else value
        return configuration

    def fair_shares(self) -> dict[tuple[str, str], float]:
        """The fair-share factor of each account and user, as `sshare` prints it; empty without accounting."""
        self.queries += 1
        try:
            text = self._run(["sshare", "-a", "-P", "-n", "-o", "Account,User,FairShare"], "")
        except LiveError:
            return {}
        rows = (line.split("|") for line in text.splitlines())
        return {
            (row[0].strip(), row[1].strip()): float(row[2])
            for row in rows
            if len(row) > 2 and row[1] and row[2]
        }

    def apply(self, changes: Iterable[Change]) -> dict[str, str]:
        """Make these changes; what went wrong, by the job's id.

        The steps of a job are sent one after another, each only if those before it went well: a job that is released
        after an update that was refused would run without any GPU, and one that Slurm has just started must not be
        updated as if it still waited. Where `scontrol` does not answer at all, all that was not sent yet has failed.
        """
        changes = tuple(changes)
        bad = [line for change in changes for line in change.steps if "\n" in line]
        if bad:
            raise LiveError(f"a change of a job holds a line break: {bad[0][:80]!r}")
        failed: dict[str, str] = {}
        freed: set[str] = set()
        """Slurm has them back: one that has ended since takes no change, and needs none."""
        for at in range(max((len(change.steps) for change in changes), default=0)):
            asked = [
                (change.job_id, change.steps[at])
                for change in changes
                if at < len(change.steps) and change.job_id not in failed
            ]
            releases = [job_id for job_id, line in asked if line.startswith("release")]
            changed = self._changed(changes, releases)
            failed |= changed
            asked = [each for each in asked if each[0] not in changed]
            freed |= {job_id for job_id, line in asked if line.endswith(f" AdminComment={END_OF_NOTE}")}
            for first in range(0, len(asked), CHANGES_AT_ONCE):
                some = asked[first : first + CHANGES_AT_ONCE]
                try:
                    failed |= self._send(some)
                except LiveError as error:
                    failed |= {job_id: str(error) for job_id, _ in asked[first:]}
                    break
        return {job_id: why for job_id, why in failed.items() if job_id not in freed}

    def _changed(self, changes: Sequence[Change], ids: Sequence[str]) -> dict[str, str]:
        """Which jobs of `ids`, about to be released, ask for other GPUs than they were just given, and for which."""
        released = frozenset(ids)
        wanted = {
            each.job_id: (change.job_id, each.gres)
            for change in changes
            if change.job_id in released
            for each in (change, *change.components)
            if each.gres
        }
        try:
            there = self.jobs([*wanted]) if wanted else ()
        except LiveError as error:
            return {job_id: str(error) for job_id, _ in wanted.values()}
        return {
            wanted[job.id][0]: f"its GPUs were changed before its release: {job.tres_per_node or 'none'}"
            for job in there
            if job.id in wanted and job.waits and not same_gres(job.tres_per_node, wanted[job.id][1])
        }

    def _send(self, asked: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Have one `scontrol` do these lines, each of a job; what went wrong, by the job's id."""
        if not asked:
            return {}
        return dict(_errors(self._run(["scontrol"], "".join(f"{line}\n" for _, line in asked)), asked))


def _errors(text: str, asked: Sequence[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """Of each line that failed its job, and what was printed below it: each line is repeated behind a prompt."""
    below: dict[str, list[str]] = {}
    at = -1
    for line in text.splitlines():
        if line.startswith(PROMPT) and at + 1 < len(asked):
            at += 1
        elif line.strip() and line.strip() != PROMPT.strip() and at >= 0:
            below.setdefault(asked[at][0], []).append(line.strip())
    for job_id, _ in asked[at + 1 :]:
        below.setdefault(job_id, []).append("scontrol ended before it reached this change")
    return ((job_id, " ".join(lines)) for job_id, lines in below.items())
