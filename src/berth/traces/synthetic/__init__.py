"""Made-up workloads by name and seed: `synthetic:NAME?setting=value&setting=value`.

`synthetic:demo`, `synthetic:pai-like?jobs=100000&seed=7&load=0.9`: what is not named has its default, and
what a workload can be told are the fields of its settings. The same name and settings give the same jobs on
every machine.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl

from berth.errors import SettingError
from berth.model import Job, Node

WORKLOADS: dict[str, str] = {
    "demo": "berth.traces.synthetic.demo:Demo",
    "pai-like": "berth.traces.synthetic.pai:PaiLike",
    "philly-like": "berth.traces.synthetic.philly:PhillyLike",
    "poisson": "berth.traces.synthetic.poisson:Poisson",
}
"""Import string of each workload's settings: a frozen dataclass that, called, makes the Workload."""

_PREFIX = "synthetic:"

MOST_JOBS = 100_000_000
"""More do not fit in memory."""


@dataclass(frozen=True)
class Workload:
    """A generated trace: its cluster, and its jobs whenever they are asked for."""

    nodes: tuple[Node, ...]
    jobs: Callable[[], Iterator[Job]]


@dataclass(frozen=True)
class Drawn:
    """What every workload can be told."""

    jobs: int = 10_000
    """Jobs in all."""
    seed: int = 0
    """Other seeds give other workloads of the same kind."""
    load: float = 0.9
    """GPU time that is asked for over what the cluster has while jobs arrive; above 1 the queue grows."""

    def __post_init__(self) -> None:
        if not 0 <= self.jobs <= MOST_JOBS or self.seed < 0 or not 0 < self.load < 1e6:
            raise SettingError(
                f"expected jobs of 0 to {MOST_JOBS:,}, a seed of 0 or more and a load above 0 and below 1,000,000"
            )


def settings_of(name: str) -> Any:
    """The class of a workload's settings; SettingError where there is no workload of this name."""
    if name not in WORKLOADS:
        near = difflib.get_close_matches(name, WORKLOADS, n=1, cutoff=0.5)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise SettingError(f"no synthetic workload '{name}'{hint}; there are {', '.join(WORKLOADS)}")
    module, _, attribute = WORKLOADS[name].partition(":")
    return getattr(import_module(module), attribute)


def defaults_of(name: str) -> dict[str, int | float]:
    """What a workload can be told, and what it assumes where it is not."""
    settings = settings_of(name)()
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def workload_of(spec: str) -> Workload:
    """The workload that `synthetic:NAME?…` describes; SettingError where it describes none."""
    name, _, query = spec.removeprefix(_PREFIX).partition("?")
    settings = settings_of(name)
    kinds: dict[str, type[int] | type[float]] = {
        field.name: float if isinstance(field.default, float) else int for field in fields(settings)
    }
    chosen: dict[str, int | float] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in kinds:
            raise SettingError(f"'{name}' has no setting '{key}' in '{spec}'; there are {', '.join(kinds)}")
        try:
            chosen[key] = kinds[key](value)
        except ValueError:
            kind = "a whole number" if kinds[key] is int else "a number"
            raise SettingError(f"setting '{key}' in '{spec}' is '{value}'; expected {kind}") from None
    try:
        workload: Workload = settings(**chosen)()
    except SettingError as error:
        raise SettingError(f"{spec}: {error}") from error
    return workload
