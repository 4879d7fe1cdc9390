"""What every source checks before it does anything for a viewer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from berth.console.roles import Role, Viewer
from berth.errors import AccessError, SettingError


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
