"""Quantities as Kubernetes writes them: `100m`, `1.5`, `8Gi`, `500M`, `1e3`; and those that a claim was allocated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from berth.errors import AskError
from berth.live.kubernetes.names import DRIVER

_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
_UNITS = {
    **{unit: Fraction(1000) ** power for power, unit in enumerate(["n", "u", "m", "", *"kMGTPE"], -3)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", 1)},
}
_MIB = 1024**2
MOST = 2**50
"""No amount is more; what says so is cut to it, so that sums stay whole numbers of 64 bits."""


@lru_cache(maxsize=65_536)
def amount(text: str | int | float) -> Fraction:
    """The number that a quantity stands for. Raises AskError."""
    found = _FORM.fullmatch(str(text).strip())
    if found is None:
        raise AskError(f"'{str(text)[:40]}' is not a quantity; expected a number such as 2, 500m or 8Gi")
    number, power, unit = found.groups()
    value = Fraction(number) * (Fraction(10) ** int(power[1:]) if power else _UNITS[unit or ""])
    if value < 0:
        raise AskError(f"'{text}' is below 0; expected 0 or more")
    return value


@lru_cache(maxsize=65_536)
def cpu_milli(text: str | int | float) -> int:
    """Milli of CPU, rounded up."""
    return _up(amount(text) * 1000)


@lru_cache(maxsize=65_536)
def mem_mib(text: str | int | float, *, down: bool = False) -> int:
    """MiB of bytes: rounded up for what is asked, down for what there is."""
    value = amount(text) / _MIB
    return min(MOST, value.numerator // value.denominator) if down else _up(value)


@lru_cache(maxsize=65_536)
def whole(text: str | int | float) -> int:
    """A count, rounded up."""
    return _up(amount(text))


def _up(value: Fraction) -> int:
    return min(MOST, -(-value.numerator // value.denominator))


def consumed_of(capacity: Mapping[str, str | int | float]) -> tuple[int | None, int | None]:
    """MiB and milli that `consumedCapacity` says, by short names or by those of the driver; None: all that the device
    has. Raises AskError for an amount that is no quantity."""
    mem = capacity.get("memory", capacity.get(f"{DRIVER}/memory"))
    milli = capacity.get("milli", capacity.get(f"{DRIVER}/milli"))
    return None if mem is None else mem_mib(mem, down=True), None if milli is None else whole(milli)
