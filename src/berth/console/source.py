"""What the console asks of a queue that is there now (this machine's, Slurm's or Kubernetes'), and what each queue
checks before it acts for a viewer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from berth.console.roles import Role, Viewer
from berth.errors import AccessError, SettingError
from berth.live.driver.snapshot import UNENDED, Snapshot


class Source(Protocol):
    """A queue that is there now: this machine's, Slurm's or Kubernetes'. What asks it takes its time in a thread."""

    name: str
    """`local`, `slurm` or `kubernetes`."""
    every_s: float
    """Seconds from the beginning of one look to that of the next, at the least."""

    def look(self) -> Snapshot:
        """What is there now. Raises BerthError if it cannot be reached."""

    def job(self, job_id: str, viewer: Viewer, look: Snapshot | None) -> dict[str, Any]:
        """All of one job that this viewer may see; `look` is the last one at this source, None before the first.
        Raises BerthError if there is none."""

    def act(self, action: str, values: dict[str, Any], viewer: Viewer) -> str:
        """Do an action for a viewer who may, and say what was done. Raises BerthError."""

    def command(self, action: str, values: dict[str, Any]) -> str | None:
        """The command that does the same, or None where the source has no such action."""

    def lacks(self, viewer: Viewer) -> Mapping[str, str]:
        """Actions that this queue does not have for this viewer, or has in part, each with the reason in a sentence."""


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of what a job has written."""

    text: str
    next: int
    """The byte of its output at which the next piece begins."""
    skipped: int
    """Bytes before this piece that are left out, because there are too many."""
    ended: bool
    """Whether the job has ended and nothing follows."""


@runtime_checkable
class Submits(Protocol):
    """A source to which jobs can be submitted from the console."""

    def submit(self, asked: dict[str, str], viewer: Viewer) -> str:
        """Queue a job of the viewer; its id. Raises AccessError if the viewer may not, BerthError if it is refused."""

    def submit_command(self, asked: dict[str, str]) -> str:
        """The command line that does the same."""


@runtime_checkable
class Follows(Protocol):
    """A source that can read what its jobs write."""

    def output(self, job_id: str, viewer: Viewer, after: int | None) -> Output | None:
        """What a job wrote after this byte, or the end of it if `after` is None; None where nothing can be read.

        Raises AccessError if it is another user's job, BerthError if there is no such job.
        """


def actions_in(state: str) -> tuple[str, ...]:
    """What can be done to a job in a state, where its source has it."""
    other = ("requeue", "cancel") if state in UNENDED else ("requeue",)
    return {"waiting": ("hold", "priority", "cancel"), "held": ("release", "cancel")}.get(state, other)


def commands_of(source: Source, job_id: str, wanted: Iterable[str], viewer: Viewer) -> dict[str, str]:
    """Those of the actions on a job that a source has for a viewer, each with the command that does the same."""
    lacking, values = source.lacks(viewer), {"id": job_id, "value": "VALUE"}
    commands = {name: source.command(name, values) for name in wanted if name not in lacking}
    return {name: command for name, command in commands.items() if command is not None}


def check_job_owners(viewer: Viewer, jobs: Iterable[tuple[str, str]]) -> None:
    """Refuse the change of jobs, given as (id, user), one of which this viewer does not control."""
    for job_id, owner in jobs:
        if not viewer.owns(owner):
            raise AccessError(
                f"job {job_id} belongs to {owner or 'no known user'}; {viewer.user} ({viewer.role.value}) may change"
                " only their own jobs"
            )


def check_operator(viewer: Viewer, action: str) -> None:
    """Refuse an operator's action to all other roles."""
    if viewer.role is not Role.OPERATOR:
        raise AccessError(
            f"'{action}' needs the role operator; {viewer.user} has the role {viewer.role.value}"
        )


def word_of(values: Mapping[str, Any], name: str) -> str:
    """A text that the action needs. Raises SettingError."""
    value = str(values.get(name) or "")
    if not value or not value.isprintable():
        raise SettingError(f"'{name}' is {value!r}; this action needs a printable text there")
    return value


def number_of(values: Mapping[str, Any], name: str) -> int:
    """A whole number that the action needs. Raises SettingError."""
    text = str(values.get(name, ""))
    try:
        return int(text)
    except ValueError:
        raise SettingError(f"'{name}' is {text!r}; this action needs a whole number there") from None
