"""How fast jobs on one GPU advance together, and when they run out of memory.

A model is a function of the jobs on one GPU at one moment; the simulator asks it again whenever somebody comes
or goes, or the time has passed that its answer holds for.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, Protocol

from berth.errors import MissingExtraError, SettingError
from berth.model import FOREVER_MS, GpuModel, Job, Share

__all__ = ["MODELS", "Interference", "Outlook", "Tenant", "make_interference", "no_interference"]

MODELS = {
    "none": "berth.interference:no_interference",
}
"""Import string of each model."""


class Tenant(NamedTuple):
    """A job on a GPU at one moment."""

    job: Job
    share: Share
    done_ms: int
    """How much of its work is done, as run time alone."""


class Outlook(NamedTuple):
    """What happens on a GPU as long as nobody comes or goes."""

    speeds_milli: tuple[int, ...]
    """Of each tenant, per mille of its speed alone."""
    hold_ms: int = FOREVER_MS
    """How long this holds, at least 1 ms; then the model is asked again."""
    out_of_memory: int | None = None
    """Which tenant runs out of memory now; None where all fit."""


class Interference(Protocol):
    """Tells how the tenants of one GPU advance together."""

    def __call__(self, tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        """The outlook for at least one tenant, given in order of their start. A pure function."""


def no_interference(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
    """Everybody advances as if alone."""
    return Outlook((1000,) * len(tenants))


def make_interference(name: str) -> Interference:
    """The model of that name, or the user's own as `my.module:thing`; SettingError where there is none."""
    module_name, _, attribute = MODELS.get(name, name).partition(":")
    try:
        model: Interference = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, ImportError) and (extra := MissingExtraError.of(error)):
            raise extra from error
        raise SettingError(
            f"no interference model '{name}'; there are {', '.join(MODELS)}, and your own as my.module:thing ({error})"
        ) from error
    if not callable(model):
        raise SettingError(
            f"interference model '{name}' is called with (tenants, gpu); {model!r} cannot be called"
        )
    return model
