"""What is believed of jobs, apart from what is true: run times, profiles, memory, and speeds beside neighbours.

Kinds by name: `oracle`, `user`, `noisy?run=0.3&memory=0.1&pair=0.1&seed=0`,
`history?begin=FOLDER&interference=time-sliced`, and your own as `my.module:thing`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from berth.errors import SettingError, in_one_line
from berth.interference import Interference, make_speeds, no_interference
from berth.knowledge.belief import (
    LONGEST_MS,
    Knowledge,
    KnowsSurprises,
    LearnsFromNeighbours,
    LearnsMemory,
    LearnsUnderWay,
    LearnsWork,
    LimitsCompany,
    Spread,
    believed_peak_mib,
    believed_run,
    believed_run_ms,
    promised_mib,
)
from berth.knowledge.history import History
from berth.knowledge.noisy import Noise, Noisy
from berth.knowledge.oracle import Oracle
from berth.knowledge.user import User
from berth.model import Job
from berth.own_code import named_thing

__all__ = [
    "KINDS",
    "LONGEST_MS",
    "History",
    "Knowledge",
    "KnowsSurprises",
    "LearnsFromNeighbours",
    "LearnsMemory",
    "LearnsUnderWay",
    "LearnsWork",
    "LimitsCompany",
    "Noise",
    "Noisy",
    "Oracle",
    "Spread",
    "User",
    "believed_peak_mib",
    "believed_run",
    "believed_run_ms",
    "check_knowledge",
    "differs_by_seed",
    "history_folder",
    "make_knowledge",
]

KINDS = {
    "oracle": "the simulator's truth, which no scheduler of a real cluster has",
    "user": "what users say: estimates, time limits, memory asked for",
    "history": "what was seen before, and what is learned on the way: history?begin=empty, or begin=FOLDER",
    "noisy": "the truth with seeded errors: noisy?run=0.3&memory=0.1&pair=0.1&seed=0",
}
"""What `make_knowledge` knows, with what each is."""

EMPTY = "empty"
"""What a history begins with that has seen nothing."""


def make_knowledge(
    name: str,
    workload: Sequence[Job] = (),
    interference: Interference = no_interference,
    seed: int = 0,
    *,
    grows: bool = False,
) -> Knowledge:
    """The knowledge of that name about a workload and a model of interference, in a run with that seed. `grows`: where
    a history is filled while it is used, its folder may still be empty.

    `my.module:thing` is called with the workload and the model, and gives a `Knowledge`. Raises SettingError where
    there is none, or its settings make no sense.
    """
    kind, _, query = name.partition("?")
    if ":" in kind:
        return _own(kind, workload, interference)
    if kind not in KINDS:
        raise SettingError(
            f"no knowledge '{kind}'; there are {', '.join(KINDS)}, and your own as my.module:thing"
        )
    if kind == "noisy":
        return Noisy(Oracle(workload, interference), _noise(query).of_run(seed))
    if kind == "history":
        return _history(query, interference, grows=grows)
    if query:
        raise SettingError(f"knowledge '{kind}' has no settings; got '{query}'")
    return Oracle(workload, interference) if kind == "oracle" else User()


def check_knowledge(name: str) -> None:
    """Refuse a name that `make_knowledge` would refuse, before anything is read or made. Raises SettingError."""
    kind, _, query = name.partition("?")
    if ":" in kind:
        _found(kind)
    elif kind == "history":
        begin, name = _of_history(query)
        if name:
            make_speeds(name)
        if begin != EMPTY:
            from berth.history.store.folder import open_history

            open_history(begin, must_exist=True)
    else:
        make_knowledge(name)


def history_folder(name: str) -> Path | None:
    """The folder of the history that the knowledge of that name begins with; None where it begins with none."""
    kind, _, query = name.partition("?")
    begin = _of_history(query)[0] if kind == "history" else EMPTY
    return None if begin == EMPTY else Path(begin)


def differs_by_seed(name: str) -> bool:
    """Whether the knowledge of that name is another one in a run with another seed."""
    kind, _, query = name.partition("?")
    return kind == "noisy" and not _noise(query).is_nothing


def _settings(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise SettingError(f"settings of knowledge are written KEY=VALUE&KEY=VALUE, not '{query}'") from error


def _of_history(query: str) -> tuple[str, str]:
    """What a history begins with, `EMPTY` or a folder, and the model of interference that it believes in, if any."""
    settings = _settings(query)
    found = {"begin": EMPTY, "interference": ""} | dict(settings)
    if len(found) > 2 or len(dict(settings)) < len(settings):
        raise SettingError(
            "knowledge 'history' has the settings begin, which is empty or a folder, and interference, once each;"
            f" got '{query}'"
        )
    return found["begin"], found["interference"]


def _history(query: str, interference: Interference, *, grows: bool) -> History:
    """What is known is the history's; of the simulation's truth it has the card, and what a recorder would see. How
    neighbours slow each other is the truth's too, unless the settings name another model."""
    begin, name = _of_history(query)
    truth = Oracle((), interference)
    speeds = make_speeds(name) if name else truth.speeds
    if begin == EMPTY:
        return History(recorder=truth.profiles, speeds=speeds)
    from berth.history.store.folder import open_history
    from berth.profiles import Profiles

    kept = open_history(begin, must_exist=not (grows and Path(begin).is_dir()))
    profiles = Profiles.of_history(begin).of_runs_alone()
    return History(kept.records(), profiles, recorder=truth.profiles, speeds=speeds)


def _noise(query: str) -> Noise:
    known = {field.name: int if field.name == "seed" else float for field in fields(Noise)}
    values: dict[str, Any] = {}
    for key, text in _settings(query):
        if key not in known:
            raise SettingError(f"no setting '{key}' of noisy knowledge; there are {', '.join(known)}")
        if key in values:
            raise SettingError(f"noisy knowledge: {key} is set twice; expected it once")
        try:
            values[key] = known[key](text)
        except ValueError as error:
            raise SettingError(f"noisy knowledge: {key} is '{text}'; expected a number") from error
    return Noise(**values)


def _found(path: str) -> Any:
    """What `my.module:thing` names, which can be called."""
    make = named_thing(path, "knowledge", SettingError)
    if not callable(make):
        raise SettingError(
            f"knowledge '{path}' is called with (workload, interference); {make!r} cannot be called"
        )
    return make


def _own(path: str, workload: Sequence[Job], interference: Interference) -> Knowledge:
    make = _found(path)
    try:
        made = make(workload, interference)
    except Exception as error:
        raise SettingError(f"knowledge '{path}' cannot be made: {in_one_line(error)}") from error
    lacking = [
        name for name, _ in inspect.getmembers(Oracle) if not name.startswith("_") and not hasattr(made, name)
    ] + [name for name in ("profiles", "speeds") if not hasattr(made, name)]
    if lacking:
        raise SettingError(f"knowledge '{path}' lacks {', '.join(lacking)}; see berth.knowledge.Knowledge")
    found: Knowledge = made
    return found
