"""Limits of a user or a virtual cluster: what may be submitted, run and held at one time, and the file they are in.

The file is JSON, read by the policy `limits`:

    {"format": "berth-limits", "version": 1, "policy": "easy+fair-share+best-fit",
     "limits": [{"scope": "user", "gpus": 8}, {"scope": "virtual-cluster", "name": "normal", "running": 40}]}

Other keys are for people and change nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berth.errors import SettingError, cause_of

GROUP: Final = "group"
SCOPES: Final = ("user", "virtual-cluster", GROUP)
AMOUNTS: Final = ("submitted", "running", "gpus", "nodes")
FORMAT: Final = "berth-limits"


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that one user, or one virtual cluster or group together, may have at one time; None: no limit."""

    scope: str
    """`user`, `virtual-cluster`, or `group` for those of `Job.groups`, which have no limit of submitted jobs."""
    name: str = ""
    """Whose; empty: each one's that has no limit of his own in this scope."""
    submitted: int | None = None
    """Jobs that wait or run. One beyond it counts as submitted when there is room for it."""
    running: int | None = None
    """Jobs that run."""
    gpus: int | None = None
    """GPUs held, parts counted as parts."""
    nodes: int | None = None
    """Nodes held; two jobs on one node hold two."""

    def __post_init__(self) -> None:
        """SettingError where a value makes no sense."""
        if self.scope not in SCOPES:
            raise SettingError(f"no scope '{self.scope}' of a limit; there are {', '.join(SCOPES)}")
        if self.scope == GROUP and self.submitted is not None:
            raise SettingError("a group has no limit of submitted jobs; give running, gpus or nodes")
        for what in AMOUNTS:
            value = getattr(self, what)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise SettingError(f"a limit of {what} is {value!r}; expected a whole number, 0 or more")


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What the policy `limits` is told."""

    limits: tuple[Limit, ...] = ()
    policy: str = ""
    """The policy that decides within the limits; empty: what stands behind `limits` in the policy's name."""


def read_limits(path: Path) -> LimitSettings:
    """The settings in a file; SettingError says what of it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read as limits: {cause_of(error)}") from error
    if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, 1):
        raise SettingError(f'{path} holds no limits; expected {{"format": "{FORMAT}", "version": 1, …}}')
    listed, policy = content.get("limits", []), content.get("policy", "")
    if not isinstance(listed, list) or not isinstance(policy, str):
        raise SettingError(f"{path}: 'limits' is a list and 'policy' a text")
    limits = []
    for number, each in enumerate(listed):
        if not isinstance(each, dict) or not {"scope"} <= each.keys() <= {"scope", "name", *AMOUNTS}:
            keys = f"'scope', perhaps 'name', and some of {', '.join(AMOUNTS)}"
            raise SettingError(f"{path}, limits[{number}] is {each!r}; expected an object with {keys}")
        limits.append(Limit(**each))
    return LimitSettings(tuple(limits), policy)
