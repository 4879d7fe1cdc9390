"""What a selector requires of labels."""

from __future__ import annotations

import re
from collections.abc import Callable

from berth.errors import AskError
from berth.live.kubernetes.objects import Expression

Requirement = tuple[str, str, tuple[str, ...]]
"""Key, operator, values."""

_WHOLE = re.compile(r"-?[0-9]{1,18}")


def requirement_of(expression: Expression, where: str) -> Requirement:
    """A requirement as it was written. Raises AskError, with `where` it stands, if it makes no sense."""
    if expression.operator not in OPERATORS:
        raise AskError(f"{where} has operator '{expression.operator[:40]}'; expected {', '.join(OPERATORS)}")
    if expression.operator in ("Gt", "Lt") and not (
        len(expression.values) == 1 and _WHOLE.fullmatch(expression.values[0])
    ):
        raise AskError(f"{where} {expression.operator} of '{expression.key[:80]}' takes one whole number")
    return (expression.key, expression.operator, tuple(sorted(expression.values)))


def _number(text: str | None) -> int | None:
    return int(text) if text and _WHOLE.fullmatch(text) else None


def _greater(value: str | None, values: tuple[str, ...]) -> bool:
    return (number := _number(value)) is not None and number > int(values[0])


def _less(value: str | None, values: tuple[str, ...]) -> bool:
    return (number := _number(value)) is not None and number < int(values[0])


OPERATORS: dict[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, values: value is not None,
    "DoesNotExist": lambda value, values: value is None,
    "Gt": _greater,
    "Lt": _less,
}
