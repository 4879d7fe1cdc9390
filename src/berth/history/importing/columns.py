"""The columns of sacct's output that an import uses, and what becomes of them, as DuckDB expressions.

Every value of a job is read as text, and only ever stands in a column: no text of a job gets into SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from berth.errors import HistoryError
from berth.history.store.database import quoted_name
from berth.model import RecordState

# The first name of each that a header holds is used; upper and lower case do not matter.
_ALIASES: Final = {
    "id": ("jobidraw", "jobid"),
    "label": ("jobid", "jobidraw"),
    "name": ("jobname",),
    "user": ("user",),
    "account": ("account",),
    "partition": ("partition",),
    "qos": ("qos",),
    "cluster": ("cluster",),
    "state": ("state",),
    "submit": ("submit",),
    "eligible": ("eligible",),
    "start": ("start",),
    "end": ("end",),
    "limit_min": ("timelimitraw",),
    "limit": ("timelimit",),
    "elapsed": ("elapsedraw", "elapsed"),
    "suspended": ("suspendedraw", "suspended"),
    "cpu_used_ms": ("totalcpuraw",),
    "cpu_used": ("totalcpu",),
    "mem_peak_mib": ("mempeakmib",),
    "mem_peak": ("maxrss",),
    "task_count": ("ntasks",),
    "usage": ("tresusageintot",),
    "energy_j": ("consumedenergyraw",),
    "gpu_peak_pct": ("gpuutilpeak",),
    "gpu_peak_mib": ("gpumempeakmib",),
    "node_count": ("nnodes", "allocnodes"),
    "cpus": ("ncpus", "alloccpus", "reqcpus"),
    "alloc": ("alloctres", "allocgres"),
    "req": ("reqtres", "reqgres"),
    "node_list": ("nodelist",),
    "reason": ("reason",),
    "comment": ("comment",),
    "command": ("submitline",),
    "container": ("container",),
    "exit": ("exitcode",),
    "application": ("application",),
    "gpu_use": ("ugpucore",),
    "gpu_mem": ("ugpumem",),
}

_NEEDED: Final = ("id", "state", "submit", "start", "end")

STATES: Final = {
    "COMPLETED": RecordState.COMPLETED,
    "FAILED": RecordState.FAILED,
    "BOOT_FAIL": RecordState.FAILED,
    "SPECIAL_EXIT": RecordState.FAILED,
    "OUT_OF_MEMORY": RecordState.OUT_OF_MEMORY,
    "NODE_FAIL": RecordState.NODE_FAIL,
    "TIMEOUT": RecordState.TIMEOUT,
    "DEADLINE": RecordState.TIMEOUT,
    "PREEMPTED": RecordState.PREEMPTED,
    "REQUEUED": RecordState.PREEMPTED,
    "CANCELLED": RecordState.CANCELLED,
    "REVOKED": RecordState.CANCELLED,
}
"""Slurm's states of a job that has ended, and berth's."""

_RECORDED: Final = {
    "name": ("name",),
    "user": ("user",),
    "account": ("account",),
    "partition": ("virtual_cluster",),
    "qos": ("qos",),
    "eligible": ("eligible_ms",),
    "limit_min": ("time_limit_ms",),
    "node_list": ("nodes",),
    "reason": ("wait_reason",),
    "comment": ("comment",),
    "exit": ("exit_code",),
    "energy_j": ("energy_j",),
    "suspended": ("suspended_ms",),
}
"""What of a record each thing becomes; a column that another file had is kept where this one lacks it."""

NOT_ENDED: Final = (
    *("PENDING", "RUNNING", "SUSPENDED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "CONFIGURING"),
    *("COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESV_DEL_HOLD"),
)

STATE_CASE: Final = (
    "CASE regexp_extract(upper({column}), '^[A-Z_]+') "
    + " ".join(f"WHEN '{name}' THEN '{state.value}'" for name, state in STATES.items())
    + " "
    + " ".join(f"WHEN '{name}' THEN '…'" for name in NOT_ENDED)
    + " ELSE NULL END"
)
"""berth's state of a column; '…' if the job has not ended, NULL if the state is unknown."""


class Layout:
    """Where each thing stands in a header."""

    def __init__(self, header: Sequence[str], where: str) -> None:
        """Raises HistoryError where a needed column is missing or one stands twice."""
        lowered = [name.strip().lower() for name in header]
        twice = sorted({name for name in lowered if name and lowered.count(name) > 1})
        if twice:
            raise HistoryError(f"{where}: column '{twice[0]}' stands twice in the header")
        self.header = tuple(name.strip() or f"empty_{at}" for at, name in enumerate(header))
        self._at: dict[str, str] = {}
        for thing, names in _ALIASES.items():
            found = next((name for name in names if name in lowered), None)
            if found is not None:
                self._at[thing] = self.header[lowered.index(found)]
        missing = [_ALIASES[thing][0] for thing in _NEEDED if thing not in self._at]
        if missing:
            raise HistoryError(
                f"{where}: the header has no column {', '.join(missing)}; it has {', '.join(header)[:300]}. "
                "Export with `sacct -P -D -X -a -o JobIDRaw,JobName,User,State,Submit,Eligible,Start,End,…`"
            )

    def text(self, thing: str) -> str:
        """The column as an expression; an empty text where there is none."""
        name = self._at.get(thing)
        return "''" if name is None else quoted_name(name)

    def has(self, thing: str) -> bool:
        """Whether the header holds it."""
        return thing in self._at

    @property
    def labelled(self) -> bool:
        """Whether a job's id for people stands apart from its number."""
        return self._at["label"] != self._at["id"]

    @property
    def of_steps(self) -> bool:
        """Whether it has columns that Slurm fills in the rows of steps only, or as text that is to be read first."""
        return bool({"usage", "mem_peak", "cpu_used"} & self._at.keys())

    def absent(self) -> tuple[str, ...]:
        """The columns of a record that this table says nothing about."""
        lacking = [
            column
            for thing, columns in _RECORDED.items()
            if thing not in self._at and not (thing == "limit_min" and "limit" in self._at)
            for column in columns
        ]
        if "alloc" not in self._at and "req" not in self._at:
            lacking += ["gpus", "share_milli", "mem_mib", "gpu_model"]
            if "cpus" not in self._at:
                lacking.append("cpu_milli")
        if "node_count" not in self._at:
            lacking.append("node_count")
        if "command" not in self._at and "container" not in self._at:
            lacking.append("command")
        if "gpu_use" not in self._at and "gpu_mem" not in self._at:
            lacking += ["gpu_use_mean", "gpu_mem_mean"]
        if not {"usage", "gpu_peak_pct"} & self._at.keys():
            lacking += ["gpu_use_peak", "gpu_mem_peak"]
        if not {"cpu_used", "cpu_used_ms"} & self._at.keys():
            lacking.append("cpu_used_ms")
        if not {"mem_peak", "mem_peak_mib", "usage"} & self._at.keys():
            lacking.append("mem_peak_mib")
        if not {"name", "comment", "command", "container", "application"} & self._at.keys():
            lacking.append("application")
        return (*lacking, "work_ms", "end_reason", "gpu_slots", "priority")


def layout_of(header_line: str, delimiter: str, where: str) -> Layout:
    """The layout of a file whose first line this is."""
    return Layout(header_line.rstrip("\r\n").split(delimiter), where)
