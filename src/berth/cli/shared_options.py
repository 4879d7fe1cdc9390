"""Options that several commands share, each declared once: as a type, or as the fields of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer


class Grow(StrEnum):
    """Which pods' or jobs' GPU memory grows while they run."""

    OFF = "off"
    ON = "on"
    SUSPEND = "suspend"


GrowOption = Annotated[
    Grow,
    typer.Option(
        help="GPU memory that grows while a pod runs: off, of pods that say how far; on, of all up to the card;"
        " suspend, also by suspending less important pods."
    ),
]


class Uncounted(StrEnum):
    """What is done about a pod or job that holds more GPU memory than it counts."""

    REPORT = "report"
    THROTTLE = "throttle"
    SUSPEND = "suspend"


UncountedOption = Annotated[
    Uncounted,
    typer.Option(
        help="What to do with a pod or job that holds more GPU memory than it counts: report it, or also throttle or"
        " suspend it."
    ),
]


def with_options(kind: type, *names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make the keyword `options` of a command, a `kind`, of one option for each of its fields, or for these alone."""
    hints = get_type_hints(kind, include_extras=True)
    shared = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name]
        )
        for each in fields(kind)
        if not names or each.name in names
    ]

    def with_one_each(command: Callable[..., None]) -> Callable[..., None]:
        own_hints = get_type_hints(command, include_extras=True)
        own = inspect.signature(command).parameters.items()
        own_parameters = [each.replace(annotation=own_hints[name]) for name, each in own if name != "options"]

        @wraps(command)
        def run(**given: Any) -> None:
            options = kind(**{each.name: given.pop(each.name) for each in shared})
            command(**given, options=options)

        parameters = [*own_parameters, *shared]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return with_one_each
