"""Quantities as Kubernetes writes them: `100m`, `1.5`, `8Gi`, `500M`, `1e3`."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from berth.errors import AskError

_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
_UNITS = {
    **{unit: Fraction(1000) ** power for power, unit in enumerate(["n", "u", "m", "", *"kMGTPE"], -3)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", 1)},
}


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
