"""What GPUs, CPUs and energy cost, by a price list: pure functions of what was used, or of a simulated run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from berth.errors import SettingError
from berth.files import read_toml
from berth.model import NO_GPU, Node
from berth.statistics.columns import EventColumns
from berth.statistics.measures import WHOLE_MILLI, held_of_each_gpu

_NUMBERS: Final = ("cpu_hour", "kwh", "co2_g_per_kwh")


@dataclass(frozen=True, slots=True)
class Watts:
    """What one GPU of a model draws."""

    idle: float
    """With no job on it."""
    busy: float
    """With all of it held; in between it is taken to grow with what is held."""


@dataclass(frozen=True, slots=True)
class Prices:
    """A price list; amounts are in its currency."""

    currency: str = ""
    gpu_hour: Mapping[str, float] = field(default_factory=dict)
    """By GPU model, in lower case; `default` is that of every other model."""
    cpu_hour: float = 0.0
    kwh: float = 0.0
    co2_g_per_kwh: float | None = None
    """None: CO₂ is not counted."""
    gpu_watts: Mapping[str, Watts] = field(default_factory=dict)
    """By GPU model, in lower case, for runs that are simulated; `default` is that of every other model. Empty: the
    energy of such runs is not counted."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one group of attempts held on one GPU model."""

    keys: tuple[str, ...]
    gpu_model: str
    gpu_hours: float
    cpu_hours: float | None
    """As far as it was recorded; None if it was not."""
    energy_kwh: float | None
    """As far as it was measured; None if it was not."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One group and what it costs."""

    keys: tuple[str, ...]
    gpu_hours: float
    cpu_hours: float | None
    """None if no CPUs were recorded; they cost nothing then."""
    energy_kwh: float | None
    co2_kg: float | None
    """None where no energy was measured, or the price list does not tell."""
    cost: float


def read_prices(path: Path) -> Prices:
    """The price list of a TOML file; SettingError says what of it is none.

    `currency`, `cpu_hour`, `kwh` and `co2_g_per_kwh` may be left out; `[gpu_hour]` has a price for each GPU model, and
    may have one named `default`, and so has `[gpu_watts]` for each the watts when idle and when busy, as `[55, 300]`.
    """
    content = read_toml(path, "a price list")
    known = ("currency", "gpu_hour", "gpu_watts", *_NUMBERS)
    if unknown := sorted(content.keys() - set(known)):
        raise SettingError(f"{path}: no setting {', '.join(unknown)}; there are {', '.join(known)}")
    models = content.get("gpu_hour", {})
    if not isinstance(models, dict) or not isinstance(content.get("currency", ""), str):
        raise SettingError(f'{path}: expected currency = "EUR" and a table [gpu_hour] of prices by GPU model')
    watts = content.get("gpu_watts", {})
    if not isinstance(watts, dict):
        raise SettingError(
            f"{path}: expected a table [gpu_watts] of [idle, busy] by GPU model, not {watts!r}"
        )
    numbers = {name: _price(path, name, content[name]) for name in _NUMBERS if name in content}
    return Prices(
        content.get("currency", ""),
        {name.lower(): _price(path, f"gpu_hour.{name}", value) for name, value in models.items()},
        gpu_watts={name.lower(): _watts(path, f"gpu_watts.{name}", value) for name, value in watts.items()},
        **numbers,
    )


def _watts(path: Path, name: str, value: Any) -> Watts:
    if not isinstance(value, list) or len(value) != 2:
        raise SettingError(
            f"{path}: {name} is {value!r}; expected the watts when idle and when busy, as [55, 300]"
        )
    idle, busy = (_price(path, name, one) for one in value)
    if busy < idle:
        raise SettingError(f"{path}: {name} is {value!r}; a busy GPU draws no less than an idle one")
    return Watts(idle, busy)


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
        if set(lacking) == {""}:
            raise SettingError(
                f"the jobs of {lacking['']:,.1f} GPU-hours state no GPU model; add a `default` to [gpu_hour] of the "
                "price list, or import the jobs with `--nodes`"
            )
        named = ", ".join(
            f"'{name}' ({hours:,.1f} GPU-hours)"
            for name, hours in sorted(lacking.items(), key=lambda i: -i[1])
        )
        raise SettingError(
            f"the price list has no price for GPU model {named}; add it to [gpu_hour], or there a `default` "
            "for all others"
        )
    return sorted(
        (_cost(keys, each, prices) for keys, each in found.items()), key=lambda c: (-c.cost, c.keys)
    )


def _cost(keys: tuple[str, ...], rows: list[Held], prices: Prices) -> Cost:
    default = prices.gpu_hour.get("default", 0.0)
    energy = _sum(row.energy_kwh for row in rows)
    cpu_hours = _sum(row.cpu_hours for row in rows)
    gpus = math.fsum(row.gpu_hours * prices.gpu_hour.get(row.gpu_model.lower(), default) for row in rows)
    co2 = None if energy is None or prices.co2_g_per_kwh is None else energy * prices.co2_g_per_kwh / 1000
    return Cost(
        keys,
        math.fsum(row.gpu_hours for row in rows),
        cpu_hours,
        energy,
        co2,
        gpus + (cpu_hours or 0.0) * prices.cpu_hour + (energy or 0.0) * prices.kwh,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


@dataclass(frozen=True, slots=True)
class RunCost:
    """What a simulated run costs."""

    cost: float
    """GPU-hours held and the energy, in the price list's currency."""
    energy_kwh: float | None
    """Of all GPUs from the first submission to the last event; None where the price list has no watts."""
    co2_kg: float | None
    """None where the energy or the CO₂ of a kWh is unknown."""


def check_prices(prices: Prices, nodes: Sequence[Node]) -> None:
    """Raise SettingError if the price list lacks a GPU model of these nodes."""
    models = {_model(node) for node in nodes if node.gpus}
    tables: list[tuple[str, Mapping[str, Any]]] = [("gpu_hour", prices.gpu_hour)]
    if prices.gpu_watts:
        tables.append(("gpu_watts", prices.gpu_watts))
    for name, table in tables:
        if "default" not in table and (
            lacking := sorted(model for model in models if model.lower() not in table)
        ):
            raise SettingError(
                f"the price list has no {name} of GPU model {', '.join(map(repr, lacking))}, which the cluster has; add"
                f" it to [{name}], or a `default` for all others"
            )


def run_cost(columns: EventColumns, nodes: Sequence[Node], prices: Prices) -> RunCost:
    """What a run on these nodes costs; a GPU that jobs share costs no more than one that a job holds whole.

    Every model has a price: see `check_prices`.
    """
    held_h = held_by_model_h(columns, nodes)
    cost = math.fsum(
        hours * prices.gpu_hour.get(model.lower(), prices.gpu_hour.get("default", 0.0))
        for model, hours in held_h.items()
    )
    if not prices.gpu_watts:
        return RunCost(cost, None, None)
    lasted_h = (columns.end_ms - columns.begin_ms) / 3_600_000
    watts_h = []
    for node in nodes:
        watts = _watts_of(prices, _model(node))
        watts_h.append(node.gpus * watts.idle * lasted_h)
    watts_h += [
        (watts.busy - watts.idle) * hours
        for model, hours in held_h.items()
        for watts in (_watts_of(prices, model),)
    ]
    energy_kwh = math.fsum(watts_h) / 1000
    co2_kg = None if prices.co2_g_per_kwh is None else energy_kwh * prices.co2_g_per_kwh / 1000
    return RunCost(cost + energy_kwh * prices.kwh, energy_kwh, co2_kg)


def _model(node: Node) -> str:
    return "unknown" if node.gpu_model is None else node.gpu_model.name


def _watts_of(prices: Prices, model: str) -> Watts:
    return prices.gpu_watts.get(model.lower()) or prices.gpu_watts.get("default", Watts(0.0, 0.0))


def held_by_model_h(columns: EventColumns, nodes: Sequence[Node]) -> dict[str, float]:
    """GPU-hours held of each model, of a GPU no more than all of it at any time, however many share it."""
    holdings = columns.holdings
    _, held_of_gpu = held_of_each_gpu(holdings, holdings.start_ms, holdings.end_ms)
    held = np.bincount(holdings.slot_node[holdings.slot_index != NO_GPU], held_of_gpu, minlength=len(nodes))
    found: dict[str, float] = {}
    for one, hours in zip(nodes, (held / (WHOLE_MILLI * 3_600_000.0)).tolist(), strict=True):
        if hours:
            found[_model(one)] = found.get(_model(one), 0.0) + hours
    return found
