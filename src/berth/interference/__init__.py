"""How fast jobs on one GPU advance together, and when they run out of memory.

A model is a function of the jobs on one GPU at one moment; the simulator asks it again whenever a job comes
or goes, or the time has passed that its answer holds for. The models that know profiles are made of a function
`Speeds` (`speeds.py`), which the learning environment shares to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from berth.errors import SettingError, cause_of
from berth.interference.speeds import (
    Interference,
    KnowsMemory,
    KnowsMemoryOverTime,
    KnowsProfiles,
    OfMode,
    Outlook,
    Speeds,
    Tenant,
    no_interference,
)
from berth.model import Profile
from berth.own_code import named_thing

__all__ = [
    "MODELS",
    "MODES",
    "SPEEDS",
    "Interference",
    "KnowsMemory",
    "KnowsMemoryOverTime",
    "KnowsProfiles",
    "Outlook",
    "Speeds",
    "Tenant",
    "make_interference",
    "make_speeds",
    "mode_of",
    "no_interference",
]

MODES = ("time-sliced", "mps", "mig")
"""The ways in which a GPU is shared."""

SPEEDS = {
    "none": "berth.interference.speeds:unhindered",
    "time-sliced": "berth.interference.time_sliced:time_sliced",
    "mps": "berth.interference.mps:mps()",
    "mig": "berth.interference.mig:mig()",
}
"""Import string of each function that tells the speeds of co-located jobs from what they use now; with () that of what
makes it when it is first asked for."""

MODELS = {
    "none": "berth.interference:no_interference",
    "time-sliced": "berth.interference.profiled:thesis_time_sliced()",
    "mps": "berth.interference.profiled:thesis_mps()",
    "mig": "berth.interference.profiled:thesis_mig()",
}
"""The same for each model of the simulator; those of `SPEEDS` know the thesis's applications by default."""

FITTED = ".json"
"""How the file of a fitted model ends."""


def make_interference(name: str, profiles: Mapping[str, Profile] | None = None) -> Interference:
    """The model of that name, the user's own as `my.module:thing`, or a fitted one as FILE.json.

    With `profiles`, a model that knows profiles looks the applications up there, and else among the thesis's.
    Raises SettingError where there is none.
    """
    if name.endswith(FITTED):
        from berth.interference.profiled import ProfiledInterference, thesis_mps

        known = thesis_mps().profiles if profiles is None else profiles
        return ProfiledInterference(known, make_speeds(name))
    model: Interference = _found(name, MODELS, "interference model", "(tenants, gpu)")
    if profiles is not None and isinstance(model, KnowsProfiles):
        model = model.with_profiles(profiles)
    return model


def make_speeds(name: str) -> Speeds:
    """The function of that name which tells co-located jobs' speeds, the user's own as `my.module:thing`, or the
    one that was fitted to FILE.json; SettingError where there is none."""
    if name.endswith(FITTED):
        from berth.interference.contention import Contention

        try:
            return Contention.from_json(Path(name).read_text(encoding="utf-8"), name)
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(
                f"{name} cannot be read: {cause_of(error)}; make one with `berth interference fit`"
            ) from error
    speeds: Speeds = _found(name, SPEEDS, "model of speeds", "(usage, present, capacity_mem_mib, xp=…)")
    return speeds


def mode_of(model: Interference | Speeds) -> str:
    """In which way GPUs are shared under a model: one of `MODES`, `none` if no job slows another, else `own`."""
    speeds: object = model.speeds if isinstance(model, KnowsProfiles) else model
    if isinstance(speeds, OfMode):
        return speeds.mode
    named = {"berth.interference.time_sliced.time_sliced": "time-sliced"}
    named |= dict.fromkeys(
        ("berth.interference.speeds.unhindered", "berth.interference.speeds.no_interference"), "none"
    )
    path = f"{getattr(speeds, '__module__', '')}.{getattr(speeds, '__qualname__', '')}"
    return named.get(path, "own")


def _found(name: str, registry: dict[str, str], what: str, signature: str) -> Any:
    path = registry.get(name, name)
    if ":" not in path:
        raise SettingError(
            f"no {what} '{name}'; there are {', '.join(registry)}, and your own as my.module:thing"
        )
    thing = named_thing(path.removesuffix("()"), what, SettingError)
    if name in registry and path.endswith("()"):
        thing = thing()
    if not callable(thing):
        raise SettingError(f"{what} '{name}' is called with {signature}; {thing!r} cannot be called")
    return thing
