"""Settings in a policy's name: `genetic?budget_ms=200&fragmentation=0.5`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from berth.errors import PolicyError, SettingError

Settings = TypeVar("Settings")


def options_of(name: str) -> tuple[str, dict[str, str]]:
    """A policy's name without its settings, and the settings. Raises PolicyError where they are not KEY=VALUE."""
    bare, asked, query = name.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(asked))
        if twice := sorted({key for key, _ in pairs if [other for other, _ in pairs].count(key) > 1}):
            raise PolicyError(f"'{name}': {', '.join(twice)} is set twice; expected each setting once")
        return bare, dict(pairs)
    except ValueError as error:
        raise PolicyError(f"'{name}': settings are written KEY=VALUE&KEY=VALUE, not '{query}'") from error


def files_named(name: str) -> list[str]:
    """The files that settings in a policy's name mention: what is in them decides, too."""
    values = [value for part in name.split("+") for value in options_of(part)[1].values()]
    return [value for value in values if Path(value).is_file()]


def settings_from(
    kind: type[Settings], options: dict[str, str], *, also: Sequence[str] = (), **known: Any
) -> Settings:
    """A settings dataclass with the numbers of `options`; `known` are fields that are given as they are.

    `also` are settings that the policy takes elsewhere, named where a key is unknown.

    Raises SettingError for a key that is no field, or a value that is no number.
    """
    numbers = {field.name: str(field.type) for field in fields(kind) if field.name not in known}  # type: ignore[arg-type]
    numbers = {name: of for name, of in numbers.items() if of.split(" ")[0] in ("int", "float")}
    values: dict[str, Any] = dict(known)
    for key, text in options.items():
        if key not in numbers:
            raise SettingError(f"no setting '{key}'; there are {', '.join([*numbers, *also])}")
        try:
            values[key] = int(text) if numbers[key].startswith("int") else float(text)
        except ValueError as error:
            number = "a whole number" if numbers[key].startswith("int") else "a number"
            raise SettingError(f"setting '{key}' is '{text}'; expected {number}") from error
    return kind(**values)
