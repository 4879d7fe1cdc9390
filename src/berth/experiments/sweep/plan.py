"""The plan of a sweep, read from TOML and refused whole if anything in it is wrong."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from berth.cluster.outages import FailureRate, Recovery
from berth.errors import BerthError, SettingError
from berth.experiments.compare.comparison import nodes_of, tasks_of
from berth.experiments.compare.conditions import Conditions, OwnMetrics, conditions_of, function_named
from berth.experiments.compare.sweep import Task
from berth.experiments.size.clusters import model_of, models_of, resized
from berth.files import read_toml
from berth.model import Node
from berth.policies import Setting, make_policy
from berth.traces import Trace, read_trace

AS_IS = "as the trace says"
"""The name of the conditions where a plan has none."""
KEYS = (
    "trace",
    "cluster",
    "map",
    "skip_bad",
    "policies",
    "seeds",
    "loads",
    "sizes",
    "prices",
    "metrics",
    "conditions",
)
HOUR_MS, MINUTE_MS, SECOND_MS = 3_600_000, 60_000, 1000


class Case(NamedTuple):
    """What a run is under, apart from its policy and seed."""

    load: float
    """Times of submission are divided by this."""
    size: float
    """Part of the cluster's nodes."""
    conditions: str
    """Their name in the plan."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to simulate: every policy and seed at every load, size and condition."""

    name: str
    """The file, or `the plan` for one that came as a mapping."""
    trace: Trace
    nodes: tuple[Node, ...]
    """The cluster of size 1."""
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    loads: tuple[float, ...]
    """Times of submission are divided by these."""
    sizes: tuple[float, ...]
    """Nodes of each GPU model, as a part of the cluster."""
    conditions: Mapping[str, Conditions]
    metrics: tuple[str, ...]
    """Functions of the user's own, as `module:function`."""

    @property
    def cases(self) -> list[Case]:
        """What every policy runs under, in the order of the plan."""
        return [
            Case(load, size, name) for load, size, name in product(self.loads, self.sizes, self.conditions)
        ]

    def tasks(self) -> list[tuple[Case, Task]]:
        """All runs. Those that replay the same jobs follow each other, so that these are read once."""
        measure = OwnMetrics(self.metrics) if self.metrics else None
        tasks: list[tuple[Case, Task]] = []
        for load, size in product(self.loads, self.sizes):
            alike: list[tuple[Case, Task]] = []
            for name, conditions in self.conditions.items():
                nodes, under = scaled(self.nodes, size, conditions)
                under = conditions_of({"compress": load}, nodes, under)
                made = tasks_of(self.trace, nodes, self.policies, self.seeds, under)
                alike += [(Case(load, size, name), replace(task, measure=measure)) for task in made]
            tasks += sorted(alike, key=lambda pair: self.seeds.index(pair[1].seed))
        return tasks


def scaled(
    nodes: tuple[Node, ...], size: float, conditions: Conditions
) -> tuple[tuple[Node, ...], Conditions]:
    """The cluster with this part of the nodes of each GPU model, at least one, and its conditions."""
    if size == 1:
        return nodes, conditions
    for model in models_of(nodes):
        today = sum(node.gpus > 0 and model_of(node) == model for node in nodes)
        smaller = resized(nodes, model, max(1, round(today * size)))
        nodes, conditions = smaller.nodes, smaller.under(conditions)
    return nodes, conditions


def read_plan(plan: str | os.PathLike[str] | Mapping[str, Any]) -> Plan:
    """The plan in a TOML file, or in a mapping of the same keys.

    Raises SettingError, which names the file, the key and the choices, for anything that could not be run.
    """
    if isinstance(plan, Mapping):
        return _Reader("the plan", plan).plan()
    path = Path(plan)
    return _Reader(str(path), read_toml(path, "a plan")).plan()


@dataclass(frozen=True, slots=True)
class _Reader:
    name: str
    content: Mapping[str, Any]

    def plan(self) -> Plan:
        """The plan; every key is checked before anything runs."""
        self.known("", self.content, KEYS)
        for key in ("trace", "policies"):
            if key not in self.content:
                raise self.wrong(key, "is missing; a plan needs a trace and policies")
        with self.named("map"):
            columns = _text(self.content["map"]) if "map" in self.content else ""
        with self.named("trace"):
            trace = read_trace(_text(self.content["trace"]), columns=columns)
        with self.named("cluster"):
            cluster = self.content.get("cluster")
            nodes = nodes_of(trace, None if cluster is None else _text(cluster))
        with self.named("metrics"):
            metrics = _texts(self.content.get("metrics", []))
            for name in metrics:
                function_named(name)
        with self.named("seeds"):
            seeds = _seeds(self.content.get("seeds", 1))
        with self.named("loads"):
            loads = _factors(self.content.get("loads", [1]))
        with self.named("sizes"):
            sizes = _factors(self.content.get("sizes", [1]))
        everywhere: dict[str, Any] = {}
        with self.named("skip_bad"):
            everywhere["skip_bad"] = _flag(self.content.get("skip_bad", False))
        with self.named("prices"):
            if "prices" in self.content:
                everywhere["prices"] = _text(self.content["prices"])
            base = conditions_of(everywhere, nodes)
        tables = self.content.get("conditions", {AS_IS: {}})
        if not isinstance(tables, Mapping) or not tables:
            raise self.wrong("conditions", f"is {tables!r}; expected tables, such as [conditions.failing]")
        conditions = {name: self.conditions(name, table, nodes, base) for name, table in tables.items()}
        with self.named("policies"):
            policies = _texts(self.content["policies"])
            if not policies:
                raise SettingError("no policy; expected one or more")
            for name in policies:
                for under in conditions.values():
                    quotas = None if under.quotas is None else dict(under.quotas)
                    make_policy(name, Setting(quotas=quotas))
        for size, (name, under) in product(sizes, conditions.items()):
            with self.named(f"conditions.{name}, at size {size:g},"):
                there, changed = scaled(nodes, size, under)
                conditions_of({}, there, changed)
        return Plan(self.name, trace, nodes, policies, seeds, loads, sizes, conditions, metrics)

    def conditions(self, name: str, table: Any, nodes: tuple[Node, ...], base: Conditions) -> Conditions:
        """The conditions of one table of the plan."""
        key = f"conditions.{name}"
        if not isinstance(table, Mapping):
            raise self.wrong(key, f"is {table!r}; expected a table of {', '.join(CONDITIONS)}")
        self.known(f"{key}.", table, tuple(CONDITIONS))
        values: dict[str, Any] = {}
        for word, value in table.items():
            with self.named(f"{key}.{word}"):
                values[word] = CONDITIONS[word](value)
        with self.named(key):
            return conditions_of(_as_conditions(values), nodes, base)

    def known(self, before: str, table: Mapping[str, Any], choices: tuple[str, ...]) -> None:
        """Refuse keys that are none."""
        unknown = [f"{before}{key}" for key in table if key not in choices]
        if unknown:
            raise SettingError(f"{self.name}: no key {', '.join(unknown)}; there are {', '.join(choices)}")

    def wrong(self, key: str, what: str) -> SettingError:
        """What is wrong with a key."""
        return SettingError(f"{self.name}: {key} {what}")

    @contextmanager
    def named(self, key: str) -> Iterator[None]:
        """Name the file and the key in what is refused."""
        try:
            yield
        except BerthError as error:
            raise SettingError(f"{self.name}: {key}: {error}") from error


def _as_conditions(values: dict[str, Any]) -> dict[str, Any]:
    """Values of a table as `conditions_of` takes them: times join into rates and recoveries."""
    found = {key: values[key] for key in values if key not in _TIMES}
    up_ms, down_ms = values.get("mtbf_h"), values.get("mttr_h")
    if up_ms is not None:
        found["failures"] = FailureRate(up_ms, HOUR_MS if down_ms is None else down_ms)
    elif down_ms is not None:
        raise SettingError("mttr_h is the repair time of nodes that fail by mtbf_h; give both")
    if "checkpoint_write_s" in values and "checkpoint_min" not in values:
        raise SettingError("checkpoint_write_s is the time to write a checkpoint; give checkpoint_min too")
    found["recovery"] = Recovery(
        values.get("checkpoint_min"), values.get("restart_s", 0), write_ms=values.get("checkpoint_write_s", 0)
    )
    if "round_s" in values:
        found["round_ms"] = values["round_s"]
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise SettingError(f"{value!r} is no text; expected one in quotes")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise SettingError(f'{value!r} is no list; expected one such as ["fifo+first-fit"]')
    return tuple(dict.fromkeys(map(_text, value)))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise SettingError(f"{value!r}; expected true or false")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SettingError(f"{value!r} is no number; expected one such as 0.8")
    return float(value)


def _seeds(value: Any) -> tuple[int, ...]:
    numbers = list(range(value)) if isinstance(value, int) and not isinstance(value, bool) else value
    whole = isinstance(numbers, list | tuple) and all(
        isinstance(seed, int) and not isinstance(seed, bool) for seed in numbers
    )
    if not whole or not numbers:
        raise SettingError(f"{value!r}; expected how many, 1 or more, or a list of whole numbers")
    return tuple(dict.fromkeys(numbers))


def _factors(value: Any) -> tuple[float, ...]:
    numbers = value if isinstance(value, list | tuple) else [value]
    factors = tuple(dict.fromkeys(map(_number, numbers)))
    if not factors or min(factors) <= 0:
        raise SettingError(f"{value!r}; expected numbers above 0, of which 1 changes nothing")
    return factors


def _time(unit_ms: int) -> Callable[[Any], int]:
    return lambda value: round(_number(value) * unit_ms)


def _quotas(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping) or not all(
        isinstance(gpus, int) and not isinstance(gpus, bool) for gpus in value.values()
    ):
        raise SettingError(f"{value!r}; expected GPUs by virtual cluster, such as {{ vcA = 64 }}")
    return dict(value)


CONDITIONS: dict[str, Callable[[Any], Any]] = {
    "knowledge": _text,
    "interference": _text,
    "speeds": _text,
    "outages": _text,
    "reservations": _text,
    "mtbf_h": _time(HOUR_MS),
    "mttr_h": _time(HOUR_MS),
    "checkpoint_min": _time(MINUTE_MS),
    "checkpoint_write_s": _time(SECOND_MS),
    "restart_s": _time(SECOND_MS),
    "quotas": _quotas,
    "limits": _text,
    "borrow": _flag,
    "round_s": _time(SECOND_MS),
    "when_full": _text,
}
"""Keys of conditions, and what reads the value of each."""
_TIMES = ("mtbf_h", "mttr_h", "checkpoint_min", "checkpoint_write_s", "restart_s", "round_s")
