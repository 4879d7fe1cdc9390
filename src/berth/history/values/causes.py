"""Why a job waited, from the reason that its scheduler gave."""

from __future__ import annotations

import re
from typing import Final

BEFORE: Final = {
    "Dependency": "dependency",
    "DependencyNeverSatisfied": "dependency",
    "BeginTime": "begin time",
    "JobHeldUser": "held by user",
    "JobHeldAdmin": "held by administrator",
    "JobArrayTaskLimit": "limit: JobArrayTaskLimit",
}
"""Reasons that keep a job from being eligible at all, and what they are called."""
BEGIN_OF_NOTE: Final = "berth:1;"
"""How berth's note begins in the AdminComment of a job that it holds, beside Slurm, until it places it."""
END_OF_NOTE: Final = "berth:0;"
"""What berth writes into an AdminComment to take its note away."""
_NOTE: Final = re.compile(rf"(?<!\S){BEGIN_OF_NOTE}\S*")


def note_in(admin_comment: str) -> str:
    """berth's note in an AdminComment, where others may have written too; empty if it has none."""
    found = _NOTE.search(admin_comment)
    return "" if found is None else found[0]


def cause_after(reason: str) -> str:
    """Why an eligible job waited, from the last reason that its scheduler gave."""
    if reason in ("", "None", "Resources") or reason in BEFORE:
        return "resources"
    if reason == "Priority":
        return "priority"
    if reason.startswith(("Assoc", "QOS", "Max", "Partition", "Licenses", "JobHoldMax")):
        return f"limit: {reason}"
    if reason in ("ReqNodeNotAvail", "NodeDown", "Reservation", "BadConstraints", "ReservationDeleted"):
        return "nodes not available"
    return f"other: {reason}"


def cause_before(reason: str) -> str:
    """Why a job was not eligible; Slurm keeps the last reason only, which may be one of later."""
    return BEFORE.get(reason, "not eligible")
