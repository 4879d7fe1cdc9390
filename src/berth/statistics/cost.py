"""What GPUs, CPUs and energy cost, by a price list: pure functions of what was used."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from berth.errors import SettingError

__all__ = ["Cost", "Held", "Prices", "costs", "read_prices"]

_NUMBERS: Final = ("cpu_hour", "kwh", "co2_g_per_kwh")


@dataclass(frozen=True, slots=True)
class Prices:
    """A price list; amounts are in its currency."""

    currency: str = ""
    gpu_hour: Mapping[str, float] = field(default_factory=dict)
    """By GPU model, in lower case; `default` is that of every other model."""
    cpu_hour: float = 0.0
    kwh: float = 0.0
    co2_g_per_kwh: float | None = None
    """None: nobody tells, and CO₂ is not counted."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one group of attempts held on one GPU model."""

    keys: tuple[str, ...]
    gpu_model: str
    gpu_hours: float
    cpu_hours: float
    energy_kwh: float | None
    """As far as it was measured; None where nobody did."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One group and what it costs."""

    keys: tuple[str, ...]
    gpu_hours: float
    cpu_hours: float
    energy_kwh: float | None
    co2_kg: float | None
    """None where no energy was measured, or the price list does not tell."""
    cost: float


def read_prices(path: Path) -> Prices:
    """The price list of a TOML file; SettingError says what of it is none.

    `currency`, `cpu_hour`, `kwh` and `co2_g_per_kwh` may be left out; `[gpu_hour]` has a price for each GPU model, and
    may have one named `default`.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"{path} cannot be read as a price list: {error}") from error
    known = ("currency", "gpu_hour", *_NUMBERS)
    if unknown := sorted(content.keys() - set(known)):
        raise SettingError(f"{path}: no setting {', '.join(unknown)}; there are {', '.join(known)}")
    models = content.get("gpu_hour", {})
    if not isinstance(models, dict) or not isinstance(content.get("currency", ""), str):
        raise SettingError(f'{path}: expected currency = "EUR" and a table [gpu_hour] of prices by GPU model')
    numbers = {name: _price(path, name, content[name]) for name in _NUMBERS if name in content}
    return Prices(
        content.get("currency", ""),
        {name.lower(): _price(path, f"gpu_hour.{name}", value) for name, value in models.items()},
        **numbers,
    )


def _price(path: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise SettingError(f"{path}: {name} is {value!r}; expected a number, 0 or more")
    return float(value)


def costs(held: Iterable[Held], prices: Prices) -> list[Cost]:
    """What each group costs, the dearest first; SettingError names the GPU models that have no price."""
    rows = list(held)
    default = prices.gpu_hour.get("default")
    lacking: dict[str, float] = {}
    found: dict[tuple[str, ...], list[Held]] = {}
    for row in rows:
        if row.gpu_hours and row.gpu_model.lower() not in prices.gpu_hour and default is None:
            lacking[row.gpu_model] = lacking.get(row.gpu_model, 0.0) + row.gpu_hours
        found.setdefault(row.keys, []).append(row)
    if lacking:
        named = ", ".join(
            f"'{name}' ({hours:,.1f} GPU-hours)"
            for name, hours in sorted(lacking.items(), key=lambda i: -i[1])
        )
        raise SettingError(
            f"the price list has no price for GPU model {named}; add it to [gpu_hour], or a `default` for all others"
        )
    return sorted(
        (_cost(keys, each, prices) for keys, each in found.items()), key=lambda c: (-c.cost, c.keys)
    )


def _cost(keys: tuple[str, ...], rows: list[Held], prices: Prices) -> Cost:
    default = prices.gpu_hour.get("default", 0.0)
    told = [row.energy_kwh for row in rows if row.energy_kwh is not None]
    energy = math.fsum(told) if told else None
    cpu_hours = math.fsum(row.cpu_hours for row in rows)
    gpus = math.fsum(row.gpu_hours * prices.gpu_hour.get(row.gpu_model.lower(), default) for row in rows)
    co2 = None if energy is None or prices.co2_g_per_kwh is None else energy * prices.co2_g_per_kwh / 1000
    return Cost(
        keys,
        math.fsum(row.gpu_hours for row in rows),
        cpu_hours,
        energy,
        co2,
        gpus + cpu_hours * prices.cpu_hour + (energy or 0.0) * prices.kwh,
    )
