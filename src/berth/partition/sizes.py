"""Sizes as people write them: `4G`, `512M`, `1.5G`; `8g`, `8GB` and `8GiB` are the same."""

from __future__ import annotations

import re

from berth.errors import SettingError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s?([MGT])(?:I?B)?")
_MOST_MIB = 1 << 30
"""The largest limit that a region can hold."""
_MIB = {"M": 1, "G": 1024, "T": 1024 * 1024}


def mem_mib(text: str, option: str = "") -> int:
    """MiB of a size such as `4G`: M, G and T are MiB, GiB and TiB, as are MB, GB and TB, the units of GPUs' makers.

    Without a unit it is refused; SettingError with the option that it was given by.
    """
    named = f"{option} '{text}'".strip()
    match = _SIZE.fullmatch(text.upper())
    value = float(match[1]) * _MIB[match[2]] if match else 0.0
    if value > _MOST_MIB:
        raise SettingError(f"{named} is more than a limit can be; write at most {_MOST_MIB // _MIB['T']}T")
    if value > 1 and value != int(value):
        raise SettingError(
            f"{named} is not a whole number of MiB; write {int(value)}M or {int(value) + 1}M instead"
        )
    if value < 1:
        raise SettingError(
            f"{named} is not a size of memory; "
            "write a number above zero and M, G or T, such as 512M, 4G or 1.5G"
        )
    return int(value)


def size_text(count: int) -> str:
    """Bytes for people: `1.5 GiB`."""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count} B"
