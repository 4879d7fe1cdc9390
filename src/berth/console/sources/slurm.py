"""A Slurm with berth beside it: nodes and jobs by `scontrol` and `squeue`, and what `berth slurm run` says of them."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from typing import Any, Final

from berth.console.roles import Role, Viewer
from berth.console.source import check_job_owners, check_operator, number_of, word_of
from berth.console.sources.endings import logged_ending
from berth.errors import AccessError, LiveError, SettingError
from berth.history.jobs.job_report import job_reports
from berth.live.driver.snapshot import Snapshot
from berth.live.slurm.controller import Controller, Run, run_program
from berth.live.slurm.decisions import read_decisions
from berth.live.slurm.job_log import LoggedJobs
from berth.live.slurm.jobs import SlurmJob
from berth.live.slurm.requests import Cards
from berth.live.slurm.service import DECISIONS
from berth.live.slurm.snapshot import id_of, is_held_by_berth, live_job, snapshot_of

_ID = re.compile(r"\d+(?:_\d+)?(?:\+\d+)?")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
COORDINATORS_S = 300.0
HELD_BY_ADMIN = "JobHeldAdmin"
_LACKS: Final = {
    "drain": "Slurm drains whole nodes: draining one GPU drains its whole node.",
    "policy": "The policy is an option of berth slurm run: restart it with another one.",
}
FAR: Final = "now+3650days"
"""When a job begins that is held although berth holds it."""


class SlurmSource:
    """slurmctld, and the state folder of the berth beside it."""

    name = "slurm"
    every_s = 5.0

    def __init__(self, state: Path, run: Run = run_program) -> None:
        self._state = state
        self._run = run
        self._controller = Controller(run)
        self._cards = Cards()
        self._by_berth: frozenset[str] = frozenset()
        """Jobs that berth held at the last look."""
        self._coordinated: dict[str, tuple[float, frozenset[str]]] = {}
        """Accounts of which users are coordinators, and when that was asked."""

    def command(self, action: str, values: dict[str, Any]) -> str | None:
        """The command line that does the same."""
        what = str(values.get("id", ""))
        words = _words(action, what, str(values.get("value", "")), what in self._by_berth)
        return shlex.join(words) if words else None

    def lacks(self, viewer: Viewer) -> dict[str, str]:
        """What Slurm does not let a console do."""
        operates = viewer.role is Role.OPERATOR
        return _LACKS if operates else {**_LACKS, "priority": "In Slurm only operators can raise a priority."}

    def look(self) -> Snapshot:
        """Nodes and jobs; berth's reasons with Slurm's where it runs."""
        nodes, jobs = self._controller.nodes(), self._controller.jobs()
        self._by_berth = frozenset(id_of(job) for job in jobs if is_held_by_berth(job))
        return snapshot_of(nodes, jobs, self._state, self._cards, self._controller.unreadable[:3])

    def _found(self, job_id: str) -> SlurmJob:
        if not _ID.fullmatch(job_id):
            raise LiveError(f"'{job_id}' is no id of a Slurm job, such as 12 or 12_3")
        found = [job for job in self._controller.jobs([job_id]) if job_id in (job.id, job.array_id)]
        if not found:
            raise LiveError(f"Slurm knows no job {job_id}, or has forgotten it")
        return found[0]

    def job(self, job_id: str, viewer: Viewer, look: Snapshot | None) -> dict[str, Any]:
        """One job that Slurm still knows; its GPUs and neighbours as the last look saw them."""
        try:
            job = self._found(job_id)
        except LiveError:
            if (logged := self._logged(job_id, viewer)) is not None:
                return logged
            raise
        own = viewer.owns(job.user) or self._coordinates(viewer, job.account)
        logged = self._logged(job_id, viewer, own) if job.ended and own else None
        live = live_job(job, self._state, self._cards)
        seen = look if look is not None and job.runs else Snapshot(0)
        return {
            "source": self.name, "id": live.id, "user": job.user, "own": own, "controls": viewer.owns(job.user),
            "state": live.state if not job.ended else job.state.lower(), "name": job.name if own else "",
            "reason": live.why if job.waits else "", "gpus": live.gpus, "milli": live.milli, "mem_mib": live.mem_mib,
            "cpu_milli": job.tres.cpus * 1000, "host_mem_mib": job.tres.mem_mib, "priority": job.priority,
            "time_limit_ms": job.time_limit_ms, "submit_ms": job.submit_ms, "ready_ms": live.ready_ms,
            "start_ms": None if job.waits else job.start_ms, "end_ms": job.end_ms if job.ended else None,
            "attempt": job.restarts + 1, "where": seen.places_of(live.id) or job.node_list,
            "neighbours": seen.neighbours_of(live.id), "partition": job.partition,
            "command": job.command if own else None, "comment": job.comment if own else None,
            "why": [live.why] if job.waits else [],
            "ending": None if logged is None else logged["ending"],
        }  # fmt: skip

    def _logged(self, job_id: str, viewer: Viewer, own: bool | None = None) -> dict[str, Any] | None:
        """A job that has ended, as berth's log has it; None where it has no end of it."""
        try:
            jobs = LoggedJobs(read_decisions(self._state / DECISIONS))
        except LiveError:
            return None
        reports = job_reports(jobs, job_id)
        if not reports:
            return None
        report = reports[-1]
        last = report.attempts[-1]
        own = viewer.owns(last.user) if own is None else own
        return {
            "source": self.name, "id": report.name, "user": last.user, "own": own, "controls": False,
            "state": last.state.value, "application": last.application if own else "",
            "gpus": last.gpus, "milli": last.share.milli, "mem_mib": last.share.mem_mib,
            "time_limit_ms": last.time_limit_ms, "submit_ms": last.submit_ms, "start_ms": last.start_ms,
            "end_ms": last.end_ms, "attempt": len(report.attempts), "where": ", ".join(last.gpu_slots or last.nodes),
            "partition": last.virtual_cluster, "ending": logged_ending(jobs, report) if own else None,
        }  # fmt: skip

    def _coordinates(self, viewer: Viewer, account: str) -> bool:
        """Whether Slurm's accounting has this user as a coordinator of the account; asked at most each five minutes."""
        if viewer.role is not Role.USER or not account or not _USER.fullmatch(viewer.user):
            return False
        asked_s, accounts = self._coordinated.get(viewer.user, (-1e9, frozenset()))
        if time.monotonic() - asked_s > COORDINATORS_S:
            words = ["sacctmgr", "-nP", "show", "user", viewer.user, "withcoord", "format=coordinators"]
            try:
                output = self._run(words, "")
            except LiveError:
                output = ""  # a Slurm without an accounting has no coordinators
            accounts = frozenset(
                each for line in output.splitlines() for each in line.strip().split(",") if each
            )
            self._coordinated[viewer.user] = (time.monotonic(), accounts)
        return account in accounts

    def act(self, action: str, values: dict[str, Any], viewer: Viewer) -> str:
        """Do it by Slurm's own commands, after the check that this viewer may."""
        what = word_of(values, "id")
        if action in ("drain", "undrain"):
            check_operator(viewer, action)
            node = what.rpartition(":")[0] or what
            if not _NODE.fullmatch(node):
                raise SettingError(f"'{node}' is no name of a node")
        elif action in ("hold", "release", "cancel", "requeue", "priority"):
            job = self._found(what)
            check_job_owners(viewer, [(job.id, job.user)])
            if action == "priority":
                check_operator(viewer, action)  # Slurm lets no user raise a priority
                number_of(values, "value")
            self._by_berth = (self._by_berth - {what}) | ({what} if is_held_by_berth(job) else frozenset())
            admins = job.reason == HELD_BY_ADMIN and what not in self._by_berth
            if action == "release" and admins and viewer.role is not Role.OPERATOR:
                raise AccessError(f"job {what} is held by an administrator; only they may release it")
        words = _words(action, what, str(values.get("value", "")), what in self._by_berth)
        if not words:
            raise SettingError(f"Slurm has no action '{action}' here")
        if words[1] == "hold" and viewer.role is not Role.OPERATOR:
            words[1] = "uhold"  # as Slurm's operator the console would otherwise hold it from its own user
        self._run(words, "")
        return f"{' '.join(words)}: done"


def _words(action: str, what: str, value: str, by_berth: bool) -> list[str]:
    """The command of an action; none where there is none. A node drains with all of its GPUs.

    A job that berth holds until it places it is held by a later begin, which berth respects; it has no priority of
    Slurm's, and one that it were given would release it without a GPU.
    """
    node = what.rpartition(":")[0] or what
    begins = ["scontrol", "update", f"JobId={what}"]
    return {
        "hold": [*begins, f"StartTime={FAR}"] if by_berth else ["scontrol", "hold", what],
        "release": [*begins, "StartTime=now"] if by_berth else ["scontrol", "release", what],
        "cancel": ["scancel", what],
        "requeue": ["scontrol", "requeue", what],
        "priority": [] if by_berth else [*begins, f"Priority={value}"],
        "drain": ["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=berth console"],
        "undrain": ["scontrol", "update", f"NodeName={node}", "State=RESUME"],
    }.get(action, [])
