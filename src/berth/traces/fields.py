"""What the texts of a trace's columns mean, and what to tell the user where one means nothing.

A reader turns texts into values through `Remembered` dictionaries, which work a text out once and then only
look it up; whatever cannot be worked out raises ValueError there. Only then is the row gone over again, field
by field with `Field.check`, to name the column that is wrong and what was expected of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from berth.errors import SettingError
from berth.model import FOREVER_MS, Node
from berth.traces.table import Table

Value = TypeVar("Value")

_REMEMBER_AT_MOST = 200_000
_WHOLE = re.compile(r"([0-9]{1,999})(\.0*)?")
_DECIMAL = re.compile(r"([0-9]{1,99}(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?")


class TooLargeError(ValueError):
    """A number above the largest that berth takes, which is its only argument."""


class Remembered(dict[str, Value], Generic[Value]):
    """What each text of a column means, worked out once a text; forgets all when it has grown too large."""

    def __init__(self, parse: Callable[[str], Value]) -> None:
        super().__init__()
        self._parse = parse

    def __missing__(self, text: str) -> Value:
        value = self._parse(text)
        if len(self) >= _REMEMBER_AT_MOST:
            self.clear()
        self[text] = value
        return value


@dataclass(frozen=True)
class Field(Generic[Value]):
    """One column: its name, what its texts mean (ValueError where nothing), and what they should be."""

    name: str
    parse: Callable[[str], Value]
    expected: str

    def remembered(self) -> Remembered[Value]:
        return Remembered(self.parse)

    def or_else(self, default: Value) -> Field[Value]:
        """This column, where an empty text stands for `default`."""
        return Field(self.name, lambda text: self.parse(text) if text else default, self.expected)

    def or_nothing(self) -> Field[Value | None]:
        """This column, or None for an empty text."""
        return Field(
            self.name, lambda text: self.parse(text) if text else None, f"{self.expected}, or nothing"
        )

    def check(self, table: Table, line: int, fields: Sequence[str]) -> Value:
        """The value in the row on this line, or a TraceError that says what is wrong with it."""
        index = table.columns[self.name]
        if index >= len(fields):
            short = f"{self.expected}; the row has {len(fields)} of {len(table.header)} columns"
            raise table.error(line, short, column=self.name)
        try:
            return self.parse(fields[index])
        except ValueError as error:
            most = f", at most {error.args[0]:,}" if isinstance(error, TooLargeError) else ""
            raise table.error(line, self.expected + most, column=self.name, value=fields[index]) from None


@dataclass(frozen=True)
class Limits:
    """What a cluster can hold at most, to check rows against; None where no cluster is known."""

    models: frozenset[str] | None = None
    gpus_per_node: int | None = None
    gpus: int | None = None
    labels: frozenset[str] = frozenset()
    """What its nodes carry; a reader asks for a label only where some node carries it."""

    def gpus_expected(self, gpus: int, nodes: int) -> str | None:
        """What was expected of a job's number of GPUs on a number of nodes (0: any); None where it is right."""
        if nodes > 1 and gpus % nodes:
            return f"a multiple of {nodes}, as many on each of its nodes"
        most = self.gpus_per_node
        if most is not None and 0 < nodes * most < gpus:
            return f"at most {nodes * most}, as no node has more than {most} GPUs"
        return None

    @classmethod
    def of(cls, nodes: Sequence[Node] | None) -> Limits:
        if not nodes:
            return cls()
        return cls(
            models=frozenset(node.gpu_model.name for node in nodes if node.gpu_model is not None),
            gpus_per_node=max(node.gpus for node in nodes),
            gpus=sum(node.gpus for node in nodes),
            labels=frozenset(label for node in nodes for label in node.labels),
        )


def read_map(
    columns: str | Mapping[str, str], fields: Mapping[str, object], option: str = "--map"
) -> dict[str, str]:
    """The column of each field of `FIELD=COLUMN,…`. Raises SettingError for a field that is none of `fields`.

    A part whose name is no field belongs to the field before it if that one names values: `priority=tier:HP=10,Spot=0`.
    """
    parts = columns.split(",") if isinstance(columns, str) else [f"{k}={v}" for k, v in columns.items()]
    found: dict[str, str] = {}
    last = ""
    for part in parts:
        field, equals, column = part.strip().partition("=")
        if equals and field not in fields and last == "priority" and "=" in found[last]:
            found[last] += f",{part.strip()}"
            continue
        if not equals or field not in fields or not column:
            raise SettingError(
                f"{option} '{part.strip()}'; expected FIELD=COLUMN with a field of {', '.join(fields)}"
            )
        if field in found:
            raise SettingError(f"{option} names the column of {field} twice: {found[field]} and {column}")
        if "," in column and field != "priority":  # only a mapping can have it
            raise SettingError(
                f"the column '{column}' for {field} has a comma in its name; rename it in the table"
            )
        found[field] = column
        last = field
    return found


def count(name: str, *, at_least: int = 0, at_most: int | None = None, what: str = "") -> Field[int]:
    """A whole number; `what` tells what the limits come from."""

    def parse(text: str) -> int:
        number = _whole(text, at_most)
        if number < at_least or (at_most is not None and number > at_most):
            raise ValueError(text)
        return number

    span = f"of {at_least} or more" if at_most is None else f"from {at_least} to {at_most}"
    return Field(name, parse, f"a whole number {span}{f' ({what})' if what and at_most is not None else ''}")


def amount(name: str) -> Field[int | None]:
    """A whole number of 0 or more, or None for an empty text."""
    return count(name).or_nothing()


def decimal(name: str, below: float = FOREVER_MS) -> Field[float]:
    """A number of 0 or more and less than a limit, decimals allowed."""

    def parse(text: str) -> float:
        if _DECIMAL.fullmatch(text) is None:
            raise ValueError(text)
        if (number := float(text)) >= below:
            raise TooLargeError(math.floor(math.nextafter(below, 0)))
        return number

    return Field(name, parse, "a number of 0 or more")


def integer(name: str) -> Field[int]:
    """A whole number, negative ones too."""

    def parse(text: str) -> int:
        return -_whole(text[1:]) if text.startswith("-") else _whole(text)

    return Field(name, parse, "a whole number")


def flag(name: str) -> Field[bool]:
    """`true` or `false`."""

    def parse(text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"

    return Field(name, parse, "true or false")


def seconds(name: str) -> Field[int]:
    """A time or duration in seconds, decimals allowed, as milliseconds."""

    def parse(text: str) -> int:
        whole, _, fraction = text.partition(".")
        if fraction in ("", "0") and whole.isascii() and whole.isdigit():
            value_ms = int(whole) * 1000
        elif _DECIMAL.fullmatch(text) is None:
            raise ValueError(text)
        else:
            value_ms = round(float(text) * 1000)
        if value_ms >= FOREVER_MS:
            raise TooLargeError(FOREVER_MS // 1000)
        return value_ms

    return Field(name, parse, "seconds, 0 or more")


def optional_seconds(name: str) -> Field[int | None]:
    """Like `seconds`, or None for an empty text."""
    return seconds(name).or_nothing()


def text(name: str, *, empty: bool = True) -> Field[str]:
    """Any text in UTF-8; without `empty`, not an empty one."""

    def parse(value: str) -> str:
        if not value and not empty:
            raise ValueError(value)
        if not value.isascii():
            value.encode()
        return value

    return Field(name, parse, "text in UTF-8" if empty else "a name in UTF-8, not empty")


def names(name: str, *, among: frozenset[str] | None = None, what: str = "names") -> Field[tuple[str, ...]]:
    """Alternatives split by `|`; with `among`, each must be one of these."""

    def parse(value: str) -> tuple[str, ...]:
        if not value:
            return ()
        if not value.isascii():
            value.encode()
        parts = tuple(value.split("|"))
        if not all(parts) or (among is not None and not among.issuperset(parts)):
            raise ValueError(value)
        return parts

    if among is None:
        return Field(name, parse, f"{what} split by '|', or nothing")
    choices = ", ".join(sorted(among)) or "none, as the cluster has no GPUs"
    return Field(name, parse, f"{what} of the cluster split by '|', or nothing; there are {choices}")


def elastic(name: str, *, at_most: int | None = None) -> Field[tuple[tuple[int, int], ...]]:
    """Numbers of GPUs with the speed on each, per mille, `1:400|2:700|4:1000`: more GPUs are no slower."""

    def parse(text: str) -> tuple[tuple[int, int], ...]:
        found = []
        for part in text.split("|") if text else ():
            size, _, speed = part.partition(":")
            found.append((_whole(size), _whole(speed)))
        sizes, speeds = [size for size, _ in found], [speed for _, speed in found]
        if found and (
            sizes[0] < 1 or speeds[0] < 1 or sizes != sorted(set(sizes)) or speeds != sorted(speeds)
        ):
            raise ValueError(text)
        if at_most is not None and sizes and sizes[0] > at_most:
            raise ValueError(text)
        return tuple(found)

    least = "" if at_most is None else f", the least at most {at_most}, as the cluster has no more"
    return Field(
        name,
        parse,
        f"numbers of GPUs with speeds per mille, both ascending, as in 1:400|2:1000{least}, or nothing",
    )


def _whole(text: str, at_most: int | None = None) -> int:
    """The number of digits alone, or with nothing but noughts after the point."""
    if (found := _WHOLE.fullmatch(text)) is None:
        raise ValueError(text)
    number = int(found[1])
    if number > FOREVER_MS and at_most is None:
        raise TooLargeError(FOREVER_MS)
    return number
