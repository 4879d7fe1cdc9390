"""Files of Slurm's plugin jobcomp/filetxt into rows in sacct's columns.

A line is `JobId=4 UserId=ann(1001) … Name=a name JobState=COMPLETED … ExitCode=0:0`. Values are written as they are, so
that a name may hold blanks and `=`: each key is therefore looked for in the order in which Slurm writes them, the last
that could be it before `JobState` ending the name. Slurm before 17.02 wrote no `SubmitTime`; such a line stays out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from berth.errors import HistoryError
from berth.history.store.import_result import Rejections

__all__ = ["HEADER", "jobcomp_rows"]

HEADER: Final = (
    *("JobIDRaw", "JobID", "Cluster", "JobName", "User", "Account", "Partition", "QOS", "State", "Submit"),
    *("Eligible", "Start", "End", "Timelimit", "NNodes", "NCPUS", "AllocTRES", "NodeList", "ExitCode"),
)
_HEAD = re.compile(
    r"JobId=(?P<job>\d+) UserId=(?P<user>.*?)\(\d+\) (?:GroupId=.*?\(\d+\) )?Name=(?P<rest>.*)"
)
_STATE = re.compile(
    r"(?P<name>.*) JobState=(?P<state>[A-Z_]+) Partition=(?P<partition>\S*) TimeLimit=(?P<limit>\S+) "
    r"StartTime=(?P<start>\S+) EndTime=(?P<end>\S+) NodeList=(?P<nodes>.*?) NodeCnt=(?P<node_count>\d+) "
    r"ProcCnt=(?P<cpus>\d+) (?P<rest>.*)"
)
_REST = re.compile(
    r".* (?:Tres|Gres)=(?P<tres>\S*) Account=(?P<account>\S*) QOS=(?P<qos>\S*) WcKey=\S* Cluster=(?P<cluster>\S*) "
    r"SubmitTime=(?P<submit>\S+) EligibleTime=(?P<eligible>\S+)(?P<of>.*?) DerivedExitCode=\S+ "
    r"ExitCode=(?P<exit>\d+:\d+)\s*"
)
_TASK = re.compile(r"ArrayJobId=(\d+) ArrayTaskId=(\d+)")
_COMPONENT = re.compile(r"(?:HetJobId|PackJobId)=(\d+) (?:HetJobOffset|PackJobOffset)=(\d+)")
_LIMIT_MIN = re.compile(r"\d+")


def jobcomp_rows(path: Path, rejections: Rejections) -> Iterator[tuple[object, ...]]:
    """Yield a row for each line; notes those that are of another form."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = _row(line.rstrip("\r\n"))
                if row is None:
                    why = "not 'JobId=… Name=… JobState=… SubmitTime=… ExitCode=…', as jobcomp/filetxt writes it"
                    rejections.add(f"{path}, line {number}", why)
                else:
                    yield row
    except OSError as error:
        raise HistoryError(f"{path} cannot be read: {error.strerror or error}") from error


def _row(line: str) -> tuple[object, ...] | None:
    if not (head := _HEAD.fullmatch(line)) or not (state := _STATE.fullmatch(head["rest"])):
        return None
    if not (rest := _REST.fullmatch(state["rest"])):
        return None
    label = head["job"]
    for pattern, mark in ((_TASK, "_"), (_COMPONENT, "+")):
        if of := pattern.search(rest["of"]):
            label = f"{of[1]}{mark}{of[2]}"
    limit = state["limit"]
    return (
        head["job"],
        label,
        rest["cluster"],
        state["name"],
        head["user"],
        _set(rest["account"]),
        state["partition"],
        _set(rest["qos"]),
        state["state"],
        rest["submit"],
        rest["eligible"],
        state["start"],
        state["end"],
        f"{limit}:00" if _LIMIT_MIN.fullmatch(limit) else limit,
        state["node_count"],
        state["cpus"],
        _set(rest["tres"]),
        _set(state["nodes"]),
        rest["exit"],
    )


def _set(text: str) -> str:
    """A value; nothing where Slurm writes that there is none."""
    return "" if text in ("(null)", "(none)", "none") else text
