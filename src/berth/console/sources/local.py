"""This machine's queue, over the broker's socket: what `berth status`, `queue`, `job`, `why` and `logs` ask, and
`berth submit` as the viewer."""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
import stat
import subprocess
import sys
from collections import deque
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO

from berth.console.roles import Role, Viewer
from berth.console.source import Output, check_job_owners, check_operator, number_of, word_of
from berth.console.sources.endings import ending
from berth.errors import AccessError, LiveError, SettingError
from berth.history.jobs.job_report import Wait
from berth.history.values.causes import cause_after, cause_before
from berth.live.driver.snapshot import GOING, UNENDED, Snapshot
from berth.live.local.protocol import Connection, ask
from berth.live.local.samples import read_samples
from berth.live.local.snapshot import gpus_of, snapshot_of, where_of
from berth.live.local.tables import why_lines
from berth.model import Share

PATIENCE_S = 10.0
POLICY_PATIENCE_S = 300.0
"""A policy is tried on the jobs that there are, and may have to be compiled, before it decides."""
MOST_JOBS = 50_000
"""Waiting jobs that one look lists; the counts are of all."""
MOST_POINTS = 2000
TAIL_LINES = 200
TAIL_BYTES = 64 << 10
PIECE_BYTES = 256 << 10
"""What one answer holds of an output at most; of more, the end."""
LONGEST_ESCAPE = 4096
_ESCAPE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ\\`-~]"
    rb"|[\x00-\x08\x0b\x0c\x0e-\x1f]"
)
"""What a terminal obeys and does not show (ECMA-48): colours and moves, titles, other escapes, control signs."""
_CUT_OFF = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
_OWN = ("hold", "release", "cancel", "requeue", "priority")
_OPERATORS = ("policy", "drain", "undrain")

SUBMIT_PATIENCE_S = 60.0
OPTIONS = ("gpus", "mem", "time", "name")
"""Options of `berth submit` that the form has, other than the folder."""
_FOLDER = 'cd "$1" 2> /dev/null || exit 96; shift; exec "$@"'
"""Enter the folder with the user's own rights."""
_PLAIN = re.compile(r"(?!\S*=)[\w@%+=:,./ -]+", re.ASCII)
"""A line of words in which a shell would change nothing."""
_NO_FOLDER = 96
"""Exit status if the folder cannot be entered; `berth submit` has no such status."""


class LocalSource:
    """The broker of this machine."""

    name = "local"
    every_s = 1.0

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._node = socket.gethostname().partition(".")[0] or "here"

    @staticmethod
    def command(action: str, values: dict[str, Any]) -> str | None:
        """The command line that does the same."""
        what = quote(str(values.get("id", "")))
        value = quote(str(values.get("value", "")))
        gpu = quote(str(values.get("id", "")).rpartition(":")[2])
        return {
            "hold": f"berth hold {what}",
            "release": f"berth release {what}",
            "cancel": f"berth cancel {what}",
            "requeue": f"berth requeue {what}",
            "priority": f"berth edit {what} --priority {value}",
            "policy": f"berth policy {value}",
            "drain": f"berth drain {gpu}",
            "undrain": f"berth undrain {gpu}",
        }.get(action)

    def lacks(self, viewer: Viewer) -> dict[str, str]:
        """It has them all."""
        return {}

    def _ask(self, patience_s: float = PATIENCE_S, **message: Any) -> dict[str, Any]:
        return ask(self._path, message, patience_s)

    def look(self) -> Snapshot:
        """GPUs, the jobs that run, and the first of those that wait."""
        with Connection(self._path, PATIENCE_S) as connection:
            status = connection.ask({"do": "status"})
            going = connection.ask({"do": "queue", "states": list(GOING)})
            waits = connection.ask({"do": "queue", "states": ["waiting", "held"], "limit": MOST_JOBS})
        return snapshot_of(status, going, waits, node=self._node)

    def job(self, job_id: str, viewer: Viewer, look: Snapshot | None) -> dict[str, Any]:
        """One job, or the first task of an array with the ids of the others."""
        jobs = self._ask(do="job", id=job_id)["jobs"]
        job = jobs[0]
        why = self._ask(do="why", id=job["id"])["jobs"][0] if job["state"] in ("waiting", "held") else None
        status = self._ask(do="status")
        own = viewer.owns(job["user"])
        series = _series(job, status["state_folder"]) if own else []
        return {
            "source": self.name, "id": job["id"], "user": job["user"], "state": job["state"], "own": own,
            "controls": viewer.owns(job["user"]),
            "name": (job["name"] or job["application"]) if own else "",
            "application": job["application"] if own else "",  # it is made of the name, or of the command
            "reason": (why or job)["reason"] or "", "gpus": job["gpus"], "milli": job["milli"],
            "mem_mib": job["mem_mib"],
            "cpu_milli": job["cpu_milli"], "host_mem_mib": job["host_mem_mib"], "priority": job["priority"],
            "time_limit_ms": job["time_limit_ms"], "submit_ms": job["submit_ms"],
            "ready_ms": job["ready_ms"], "start_ms": job["start_ms"],
            "end_ms": job["end_ms"], "attempt": job["attempt"],
            "where": where_of(job["slots"], self._node),
            "neighbours": snapshot_of(status, node=self._node).neighbours_of(job["id"]),
            "command": " ".join(job["command"]) if own else None, "folder": job["folder"] if own else None,
            "comment": job["comment"] if own else None, "output": _tail(job) if own else None,
            "output_path": job["output"] if own else None,
            "attempts": [attempt_of(each, self._node, own) for each in job["attempts"]],
            "series": series, "ending": ending_of(job, series, status) if own else None,
            "why": why_lines(why) if why else [],
            "candidates": (why.get("brain") or {}).get("candidates", []) if why else [],
            "others": [each["id"] for each in jobs[1:]],
        }  # fmt: skip

    def output(self, job_id: str, viewer: Viewer, after: int | None) -> Output | None:
        """The end of a job's output, or what follows a piece of it."""
        job = self._ask(do="job", id=job_id)["jobs"][0]
        if not viewer.owns(job["user"]):
            raise AccessError(f"only {job['user']} and operators see the output of job {job['id']}")
        ended = job["state"] not in UNENDED  # asked before the file is read: what an ended job wrote is there
        file = _opened(job)
        if file is None:
            return Output("", 0, 0, ended)
        with file:
            return _piece(file, after, ended)

    def act(self, action: str, values: dict[str, Any], viewer: Viewer) -> str:
        """Do it as the broker's own owner, after the check that this viewer may."""
        if action in _OWN:
            return self._change(action, word_of(values, "id"), values, viewer)
        if action not in _OPERATORS:
            raise SettingError(
                f"the local queue has no action '{action}'; there are {', '.join((*_OWN, *_OPERATORS))}"
            )
        check_operator(viewer, action)
        if action == "policy":
            name = word_of(values, "value")
            if ":" in name:
                raise SettingError(
                    f"policy '{name}' would import code into the broker; from here choose one that `berth policies`"
                    " lists, or run `berth policy` on the machine"
                )
            answer = self._ask(POLICY_PATIENCE_S, do="policy", name=name, cwd="/")
            return f"{answer['policy']} decides"
        node, _, index = word_of(values, "id").rpartition(":")
        if node not in ("", self._node):
            raise SettingError(
                f"GPU '{values['id']}' is of another node; this queue has those of {self._node}"
            )
        if not (index.isascii() and index.isdecimal()):
            raise SettingError(f"GPU '{values['id']}'; expected its number, such as 0")
        answer = self._ask(do="drain", gpus=[int(index)], on=action == "drain")
        busy = " when its jobs have ended" if int(index) in answer["busy"] else ""
        return f"GPU {index} is drained{busy}" if action == "drain" else f"jobs start on GPU {index} again"

    def _change(self, action: str, job_id: str, values: dict[str, Any], viewer: Viewer) -> str:
        jobs = self._ask(do="job", id=job_id)["jobs"]
        check_job_owners(viewer, ((job["id"], job["user"]) for job in jobs))
        ids = [job["id"] for job in jobs]  # by these and not by the name, which may be another job's by now
        if action == "priority":
            answer = self._ask(do="edit", ids=ids, flags={"priority": str(number_of(values, "value"))})
        else:
            answer = self._ask(do=action, ids=ids)
        parts = [f"job {job['id']}: {job['state']}" for job in answer["jobs"][:5]]
        more = len(answer["jobs"]) - len(parts)
        parts += [f"and {more} more"] if more > 0 else []
        parts += [f"not changed: {job['why']}" for job in answer["refused"][:5]]
        parts += [answer["note"]] if answer.get("note") else []
        return "; ".join(parts)

    def submit(self, asked: dict[str, str], viewer: Viewer) -> str:
        """Queue a job as the user that the viewer is on this machine; its id.

        The kernel holds the job to the user's own rights, because the command runs as the user. Raises AccessError
        where the console cannot act for the viewer, SettingError if the job is refused.
        """
        user = _account(viewer)
        environment = {
            "BERTH_SOCKET": self._path,
            "HOME": user.pw_dir,
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "LOGNAME": user.pw_name,
            "PATH": os.environ.get("PATH", os.defpath),
            "SHELL": user.pw_shell,
            "USER": user.pw_name,
        }
        berth = [sys.executable, "-P", "-c", "from berth.cli import main; main()", "submit", "--json"]
        folder = os.path.join(user.pw_dir, asked.get("folder", ""))
        other = user.pw_uid != os.geteuid()
        try:
            done = subprocess.run(
                ["sh", "-c", _FOLDER, "sh", folder, *berth, *_words(asked)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                cwd="/",
                env=environment,
                timeout=SUBMIT_PATIENCE_S,
                check=False,
                user=user.pw_uid if other else None,
                group=user.pw_gid if other else None,
                extra_groups=os.getgrouplist(user.pw_name, user.pw_gid) if other else None,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LiveError(f"berth submit cannot be run as {user.pw_name}: {error}") from error
        if done.returncode == _NO_FOLDER:
            raise SettingError(
                f"{user.pw_name} cannot enter the folder {folder}; expected one that exists, with rights to enter it"
            )
        if done.returncode:
            message = done.stderr.strip().removeprefix("berth: ")
            raise SettingError(message or f"berth submit ended with status {done.returncode}")
        return str(json.loads(done.stdout)["ids"][0])

    @staticmethod
    def submit_command(asked: dict[str, str]) -> str:
        """The command line that does the same."""
        folder = f"cd {quote(asked['folder'])} && " if asked.get("folder") else ""
        return f"{folder}berth submit {' '.join(map(quote, _words(asked)))}"


_OF_ATTEMPT = ("attempt", "state", "start_ms", "end_ms", "exit_code", "reason", "peak_mib", "refused")
_HIDDEN = {"exit_code": None, "reason": "", "peak_mib": None, "refused": None}
"""What is not shown of other people's attempts, and what stands there instead."""


def attempt_of(attempt: dict[str, Any], node: str, own: bool) -> dict[str, Any]:
    """An attempt that has ended, with the fields of `AttemptAnswer`; other people's without `_HIDDEN`."""
    found = {name: attempt[name] for name in _OF_ATTEMPT} | ({} if own else _HIDDEN)
    where = where_of(attempt["slots"], node)
    return found | {"reason": found["reason"] or "", "where": where, "given_mib": attempt["share"][1]}


def _series(job: dict[str, Any], state_folder: str) -> list[dict[str, Any]]:
    """What was sampled of the last attempt, at most `MOST_POINTS`."""
    samples = read_samples(os.path.join(state_folder, "samples"), f"{job['id']}-{job['start']}")
    step = max(1, -(-len(samples) // MOST_POINTS))
    return [
        {"time_ms": each.time_ms, "use_pct": each.use_pct, "mem_mib": each.mem_mib}
        for each in samples[::step]
    ]


def ending_of(
    job: dict[str, Any], series: list[dict[str, Any]], status: dict[str, Any]
) -> dict[str, Any] | None:
    """What its last attempt used, waited for and cost; None while it has not ended or if it never ran."""
    ran = [each for each in job["attempts"] if each["start_ms"] is not None and each["end_ms"] is not None]
    if job["state"] in UNENDED or not ran:
        return None
    last = ran[-1]
    uses = [point["use_pct"] for point in series if point["use_pct"] is not None]
    cards = {gpu.index: gpu.mem_mib for gpu in gpus_of(status["gpus"])}
    begin_ms = job["ready_ms"] if job["ready_ms"] is not None else job["submit_ms"]
    waits = (
        Wait((begin_ms - job["submit_ms"]) / 1000, cause_before("")),
        Wait((ran[0]["start_ms"] - begin_ms) / 1000, cause_after("")),
    )
    return ending(
        promised=Share(job["milli"], last["share"][1]),
        card_mib=min((cards[slot] for slot in last["slots"] if slot in cards), default=None),
        peak_mib=None if last["peak_mib"] is None else int(last["peak_mib"]),
        use=sum(uses) / len(uses) / 100 if uses else None,
        completed=last["exit_code"] == 0,
        waits=[each for each in waits if each.seconds > 0],
        gpu_hours=sum(each["end_ms"] - each["start_ms"] for each in ran) * job["gpus"] * job["milli"] / 3.6e9,
    )


def _opened(job: dict[str, Any]) -> BinaryIO | None:
    """A job's output, or None where there is none that the console may read.

    The path is the user's own choice and the console may be root: a file is shown only if it belongs to the
    job's user.
    """
    try:
        handle = os.open(job["output"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_uid == job["uid"]:
        return open(handle, "rb")
    os.close(handle)
    return None


def _tail(job: dict[str, Any]) -> str | None:
    """The last lines of its output, or None where there is none that the console may read."""
    file = _opened(job)
    if file is None:
        return None
    with file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        lines = deque(file.read(TAIL_BYTES).splitlines(), TAIL_LINES)
    return _ESCAPE.sub(b"", b"\n".join(lines)).decode("utf-8", "replace")


def _piece(file: BinaryIO, after: int | None, ended: bool) -> Output:
    """What follows this byte, or the end of the file if that is much, or if the file was begun anew."""
    size = os.fstat(file.fileno()).st_size
    begin = 0 if after is not None and after > size else after or 0
    most = TAIL_BYTES if after is None else PIECE_BYTES
    skipped = max(0, size - begin - most)
    file.seek(begin + skipped)
    body = file.read(size - begin - skipped)
    if skipped:  # from the next line on
        cut = body.find(b"\n") + 1
        skipped, body = skipped + cut, body[cut:]
    if not ended:
        body = _whole_signs(body)
    following = begin + skipped + len(body)
    return Output(_ESCAPE.sub(b"", body).decode("utf-8", "replace"), following, skipped, ended)


def _whole_signs(body: bytes) -> bytes:
    """Without the beginning of an escape or a sign of UTF-8 whose other bytes are not written yet."""
    if (cut := _CUT_OFF.search(body, max(0, len(body) - LONGEST_ESCAPE))) is not None:
        body = body[: cut.start()]
    for back in range(1, min(4, len(body)) + 1):
        byte = body[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return body[:-back] if back < length else body
        if byte < 0x80:
            break
    return body


def _words(asked: dict[str, str]) -> list[str]:
    words = [word for name in OPTIONS if asked.get(name) for word in (f"--{name}", asked[name])]
    line = asked["command"]
    return [*words, "--", *(line.split() if _PLAIN.fullmatch(line) else [line])]


def _account(viewer: Viewer) -> pwd.struct_passwd:
    """The user of this machine that the viewer is."""
    try:
        user = pwd.getpwnam(viewer.user)
    except KeyError:
        raise AccessError(
            f"{viewer.user} is no user of this machine, so that no job can run as them"
        ) from None
    if user.pw_uid == 0 and viewer.role is not Role.OPERATOR:
        raise AccessError("jobs of root need the role operator")
    if os.geteuid() not in (0, user.pw_uid):
        own = pwd.getpwuid(os.geteuid()).pw_name
        raise AccessError(f"this console runs as {own} and submits only jobs of {own}, not of {viewer.user}")
    return user
