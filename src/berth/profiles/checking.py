"""What a profile must hold to be one; everything that becomes a profile from outside goes through here."""

from __future__ import annotations

import numpy as np

from berth.errors import ProfileError
from berth.model import Profile

FIELDS = ("GPU utilisation", "GPU memory", "GPU cores", "PCIe throughput")
"""What the columns of `usage` are, in words."""


def checked(profile: Profile) -> Profile:
    """The same profile. Raises ProfileError naming application, field and row (the first is row 1) where a value is
    missing, negative or more than the hardware has, or where there is nothing to be a profile of."""
    name = profile.application
    if not name:
        raise ProfileError("a profile has no application; expected its name")
    if not name.isprintable():
        raise ProfileError(
            f"profile of {name!r}: its name has line breaks or control characters; expected none"
        )
    if profile.interval_ms < 1:
        raise ProfileError(
            f"profile of '{name}': an interval of {profile.interval_ms} ms; expected 1 or more"
        )
    if profile.hardware.mem_mib < 1:
        raise ProfileError(
            f"profile of '{name}': hardware '{profile.hardware.name}' with no memory; expected the card's in MiB"
        )
    if min(profile.hardware.cores, profile.hardware.pcie_mbps) < 0:
        raise ProfileError(
            f"profile of '{name}': hardware '{profile.hardware.name}' with {profile.hardware.cores} cores and"
            f" {profile.hardware.pcie_mbps} MB/s; expected 0 (not known) or more"
        )
    usage = np.asarray(profile.usage)
    if usage.ndim != 2 or usage.shape[1] != len(FIELDS) or not len(usage):
        raise ProfileError(
            f"profile of '{name}': series of shape {usage.shape}; expected a row an interval, one or more,"
            f" of {', '.join(FIELDS)}"
        )
    bad = np.argwhere(~((usage >= 0) & (usage <= 1)))
    if len(bad):
        row, column = bad[0]
        value = usage[row, column]
        what = (
            "is missing"
            if np.isnan(value)
            else f"is {value:g}, negative"
            if value < 0
            else f"is {value:g} of what the hardware has, over its capacity"
        )
        raise ProfileError(
            f"profile of '{name}', {FIELDS[column]}, row {row + 1} {what}; expected a fraction from 0 to 1"
        )
    return profile
