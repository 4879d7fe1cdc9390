"""What exporters of GPU metrics measured, as Prometheus stores and shows it.

Two forms are read: answers of Prometheus' `query_range` (JSON, a matrix; a file may hold several, as a list or under
any keys), and its text exposition, of which every line has its time at the end, or the file's own time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from berth.errors import HistoryError
from berth.history.store.import_result import Rejections

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d+(?:\.\d+)?))?\s*")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"\s*,?\s*')

Series = tuple[str, Mapping[str, str], list[tuple[int, float]]]
"""The name of the metric, the labels, and values by moment in ms."""


def read_series(path: Path, rejections: Rejections) -> Iterator[Series]:
    """Yield each series of a file, noting what is no series or no number; HistoryError where it is of neither form."""
    try:
        text = path.read_text(encoding="utf-8")
        modified_ms = path.stat().st_mtime_ns // 1_000_000
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else "it is not text in UTF-8"
        raise HistoryError(f"{path} cannot be read: {reason}") from error
    if text.lstrip()[:1] in ("{", "["):
        try:
            content = json.loads(text)
        except ValueError as error:
            raise HistoryError(f"{path} is no whole JSON document: {error}") from error
        found = list(_matrices(content))
        if not found:
            raise HistoryError(f"{path} holds no matrix, as Prometheus answers a query_range with")
        for result in found:
            yield from _matrix(result, path, rejections)
        return
    yield from _exposition(text, path, modified_ms, rejections)


def _matrices(content: Any) -> Iterator[list[Any]]:
    """The results of every matrix, however deep."""
    if isinstance(content, dict):
        if content.get("resultType") == "matrix" and isinstance(content.get("result"), list):
            yield content["result"]
        else:
            for value in content.values():
                yield from _matrices(value)
    elif isinstance(content, list):
        for value in content:
            yield from _matrices(value)


def _matrix(result: list[Any], path: Path, rejections: Rejections) -> Iterator[Series]:
    for number, each in enumerate(result):
        try:
            labels = {str(key): str(value) for key, value in each["metric"].items()}
            points = [(round(float(moment) * 1000), value) for moment, value in each["values"]]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            why = "no series: expected 'metric' with labels, and 'values' of [seconds, \"value\"]"
            rejections.add(f"{path}, result[{number}]", why)
            continue
        values = []
        for moment, text in points:
            try:
                values.append((moment, float(text)))
            except (TypeError, ValueError):
                rejections.add(f"{path}, result[{number}] at {moment / 1000:.0f}: {text!r}", "no number")
        known = [(moment, value) for moment, value in values if not math.isnan(value)]
        yield labels.get("__name__", ""), labels, known


def _exposition(text: str, path: Path, modified_ms: int, rejections: Rejections) -> Iterator[Series]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        try:
            if found is None:
                raise ValueError
            value = float(found[3])
            moment = modified_ms if found[4] is None else _ms(float(found[4]))
        except ValueError:
            rejections.add(f"{path}, line {number}", "no line of Prometheus' text form")
            continue
        labels = {name: re.sub(r"\\(.)", r"\1", quoted) for name, quoted in _LABEL.findall(found[2] or "")}
        if not math.isnan(value):
            yield found[1], labels, [(moment, value)]


def _ms(moment: float) -> int:
    """Prometheus writes milliseconds, OpenMetrics seconds: one of these decades tells which."""
    return round(moment if moment > 1e11 else moment * 1000)
