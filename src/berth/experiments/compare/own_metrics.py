"""Metrics of the user's own: functions that make a number of a run's events."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from berth.errors import SettingError, SimulationError
from berth.model import Job, Node
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
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise SettingError(f"'{name}' is no metric; expected module:function")
    try:
        module = import_module(module_name)
    except Exception as error:
        raise SettingError(
            f"no metric '{name}': module '{module_name}' cannot be imported: {type(error).__name__}: {error};"
            " run berth where Python finds it, or set PYTHONPATH"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise SettingError(
            f"no metric '{name}': module '{module_name}' has no function '{attribute}'; it has {', '.join(own)}"
        )
    found: Callable[..., Any] = function
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
