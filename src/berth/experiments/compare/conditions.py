"""What the runs of a comparison are under: all that holds for each of them alike; and metrics of one's own."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from berth.card_speeds import ALL_ALIKE, CardSpeeds, card_speeds
from berth.cluster.outages import FailureRate, Recovery, read_outages
from berth.cluster.reservations import check_reservations, read_reservations
from berth.engine.memory import WhenFull
from berth.errors import SettingError, SimulationError, check_kind
from berth.interference import Interference, make_interference, no_interference
from berth.interference.profiled import thesis_unhindered
from berth.knowledge import check_knowledge
from berth.model import Job, Node, Outage, Reservation
from berth.own_code import named_thing
from berth.policies.schemes.limits import Limit, read_limits
from berth.policies.schemes.quotas import check_quotas
from berth.statistics import EventColumns
from berth.statistics.cost import Prices, check_prices, read_prices

AS_THE_JOB_SAYS = Recovery()


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the runs of a comparison are under.

    `berth.compare` takes each field as a keyword; there quotas may be a mapping, outages a file, and interference a
    name.
    """

    compress: float = 1.0
    """Times of submission are divided by this."""
    skip_bad: bool = False
    """Leave out bad rows of the trace and list them in the result; else the first raises TraceError."""
    interference: Interference = no_interference
    """How jobs on one GPU slow each other."""
    interference_name: str = ""
    """What that model is called, where it was asked for by a name; it decides nothing."""
    outages: tuple[Outage, ...] = ()
    """Nodes that are lost."""
    reservations: tuple[Reservation, ...] = ()
    """Nodes that are kept for some users; may be given as a file."""
    failures: FailureRate | None = None
    """Outages at a rate, drawn from each run's seed."""
    recovery: Recovery = AS_THE_JOB_SAYS
    """What stopped jobs keep; with checkpoints every job keeps its work."""
    quotas: tuple[tuple[str, int], ...] | None = None
    """GPUs of each virtual cluster, sorted by its name."""
    limits: tuple[Limit, ...] = ()
    """What users, virtual clusters and groups of jobs may have at one time, whatever the policy; may be given as a
    file."""
    borrow: bool = False
    """Virtual clusters may use idle GPUs beyond their quotas."""
    round_ms: int | None = None
    """Policies decide at whole multiples of this; None: whenever something happens."""
    speeds: CardSpeeds = ALL_ALIKE
    """How fast applications are on each GPU model; may be given as a file or the name of a table."""
    prices: Prices | None = None
    """What GPU-hours and energy cost; may be given as a file. None: cost is not a metric."""
    knowledge: str = "oracle"
    """What policies believe of jobs; `oracle`: the truth."""
    when_full: str | None = None
    """What becomes of a job that needs more GPU memory than it was given (`berth.engine.memory.WhenFull`); None: what
    the model of interference says."""


_KINDS: Final = {
    "compress": (int | float, "a number above 0"),
    "interference": (str | Callable, "a name, or a function such as berth.no_interference"),
    "outages": (str | os.PathLike | Iterable, "a file, or outages"),
    "reservations": (str | os.PathLike | Iterable, "a file, or reservations"),
    "failures": (FailureRate | None, "a FailureRate of berth.cluster.outages"),
    "recovery": (Recovery, "a Recovery of berth.cluster.outages"),
    "quotas": (Mapping | Iterable | None, "GPUs by virtual cluster"),
    "limits": (str | os.PathLike | Iterable, "a file, or limits"),
    "round_ms": (int | None, "a whole number of milliseconds"),
    "speeds": (str | os.PathLike | CardSpeeds, "a file, the name of a table, or CardSpeeds"),
    "prices": (str | os.PathLike | Prices | None, "a file, or Prices"),
    "knowledge": (str, "the name of a knowledge, such as history"),
}
"""What some conditions may be given as, for `isinstance` and in words."""
AS_THE_TRACE_SAYS = Conditions()
"""Nothing changed."""


def conditions_of(
    changed: Mapping[str, Any], nodes: Sequence[Node], base: Conditions = AS_THE_TRACE_SAYS
) -> Conditions:
    """The conditions `base` with what is asked for changed, on these nodes.

    Reads outages from a file and looks a model of interference up by its name. Raises SettingError for a keyword that
    is none, and for conditions that contradict each other or the nodes.
    """
    known = [field.name for field in fields(Conditions)]
    for name in changed:
        if name not in known:
            raise SettingError(f"no condition '{name}' of a comparison; there are {', '.join(known)}")
    values = dict(changed)
    for name, value in values.items():
        if name in _KINDS:
            check_kind(value, _KINDS[name][0], f"{name} takes {_KINDS[name][1]}")
    if isinstance(values.get("interference"), str):
        values["interference_name"] = values["interference"]
        values["interference"] = make_interference(values["interference"])
    from_file: dict[str, Callable[[str], Any]] = {
        "speeds": card_speeds,
        "prices": lambda path: read_prices(Path(path)),
        "outages": lambda path: tuple(read_outages(path, nodes)),
        "reservations": lambda path: tuple(read_reservations(path, nodes)),
        "limits": lambda path: read_limits(Path(path)).limits,
    }
    for name, read in from_file.items():
        if isinstance(value := values.get(name), str | os.PathLike):
            values[name] = read(os.fspath(value))
        elif name in ("outages", "reservations", "limits") and value is not None:
            values[name] = tuple(value)
    if isinstance(values.get("quotas"), Mapping):
        values["quotas"] = tuple(sorted(values["quotas"].items()))
    found = replace(base, **values)
    if found.outages and found.failures is not None:
        raise SettingError("outages come from a file or at a rate, not both")
    if found.quotas is not None:
        check_quotas(dict(found.quotas), nodes)
    elif found.borrow:
        raise SettingError("borrowing needs quotas, such as --quota vcA=64,vcB=32")
    check_reservations(found.reservations, nodes)
    found.speeds.check(nodes)
    if found.prices is not None:
        check_prices(found.prices, nodes)
    check_knowledge(found.knowledge)
    if found.when_full is not None:
        WhenFull.of(found.when_full)
        if found.interference is no_interference:
            found = replace(found, interference=thesis_unhindered())
    return found


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
