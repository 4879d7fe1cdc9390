"""Files of Slurm's plugin jobcomp/filetxt into jobs.

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
from berth.history.importing.job_row import JobRow, exit_code
from berth.history.store.import_result import Rejections
from berth.history.store.lookups import host_names
from berth.history.values.durations import slurm_s
from berth.history.values.moments import NO_TIME, slurm_ms
from berth.history.values.tres import resources

ABSENT: Final = ("comment", "command")
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


def jobcomp_rows(path: Path, rejections: Rejections) -> Iterator[JobRow]:
    """Yield a row for each line; note those that are of another form."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = _row(line.rstrip("\r\n"))
                if isinstance(row, str):
                    rejections.add(f"{path}, line {number}", row)
                else:
                    yield row
    except OSError as error:
        raise HistoryError(f"{path} cannot be read: {error.strerror or error}") from error


def _row(line: str) -> JobRow | str:
    """The row of a line, or why there is none."""
    head = _HEAD.fullmatch(line)
    state = head and _STATE.fullmatch(head["rest"])
    rest = state and _REST.fullmatch(state["rest"])
    if not head or not state or not rest:
        return "not 'JobId=… Name=… JobState=… SubmitTime=… ExitCode=…', as jobcomp/filetxt writes it"
    times = {"Submit": rest["submit"], "Start": state["start"], "End": state["end"]}
    for name, text in times.items():
        if text not in NO_TIME and slurm_ms(text) is None:
            return f"{name} is {text}, which is no time"
    label = ""
    for pattern, mark in ((_TASK, "_"), (_COMPONENT, "+")):
        if of := pattern.search(rest["of"]):
            label = f"{of[1]}{mark}{of[2]}"
    limit_s = slurm_s(state["limit"])
    allocated = resources(_set(rest["tres"]))
    start_ms, end_ms = slurm_ms(state["start"]), slurm_ms(state["end"])
    code, signal = map(int, rest["exit"].split(":"))
    return JobRow(
        job_id=head["job"],
        label=label,
        cluster=rest["cluster"],
        name=state["name"],
        user=head["user"],
        account=_set(rest["account"]),
        partition=state["partition"],
        qos=_set(rest["qos"]),
        state=state["state"],
        submit_ms=slurm_ms(rest["submit"]),
        eligible_ms=slurm_ms(rest["eligible"]),
        # Cancelled before it ran: Slurm writes its end as its start, and resources of none.
        start_ms=None if start_ms == end_ms and not _set(rest["tres"]) else start_ms,
        end_ms=end_ms,
        limit_min=None if limit_s is None else limit_s // 60,
        node_count=int(state["node_count"]),
        nodes=host_names(_set(state["nodes"])),
        cpus=int(state["cpus"]),
        allocated=allocated,
        exit_code=exit_code(code, signal),
    )


def _set(text: str) -> str:
    """A value; nothing where Slurm writes that there is none."""
    return "" if text in ("(null)", "(none)", "none") else text
