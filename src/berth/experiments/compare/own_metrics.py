"""Metrics of the user's own: functions that make a number of a run's events."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from berth.errors import SettingError, SimulationError
from berth.model import Job, Node
from berth.own_code import named_thing
from berth.statistics import EventColumns


@dataclass(frozen=True, slots=True)
class OwnMetrics:
    """Measures a run by functions `module:function`, each called with the run's events, nodes and jobs."""

    names: tuple[str, ...]

    def __call__(self, events: EventColumns, nodes: Sequence[Node], jobs: Sequence[Job]) -> dict[str, float]:
        """One number per function; NaN where it answers None. SimulationError if a function fails."""
        return {name: _number(name, function_named(name), (events, nodes, jobs)) for name in self.names}


def function_named(name: str) -> Callable[..., Any]:
    """The function that `module:function` names. SettingError where there is none."""
    if not all(name.partition(":")):
        raise SettingError(f"'{name}' is no metric; expected module:function")
    found: Callable[..., Any] = named_thing(name, "metric", SettingError)
    if not callable(found):
        raise SettingError(f"'{name}' is no metric: {found!r} cannot be called")
    return found


def _number(name: str, function: Callable[..., Any], run: tuple[object, ...]) -> float:
    try:
        value = function(*run)
        return math.nan if value is None else float(value)
    except Exception as error:
        raise SimulationError(
            f"the metric '{name}' fails: {type(error).__name__}: {error}; it is called with the events, the nodes and"
            " the jobs of a run, and answers a number or None"
        ) from error
