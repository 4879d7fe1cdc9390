"""Warnings that the runs of a sweep log, told once for all of them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

Warnings = Mapping[str, tuple[str, ...]]
"""The different messages of each text, by the text as the code has it."""

_log = logging.getLogger(__name__)


@contextmanager
def gathered() -> Iterator[dict[str, dict[str, None]]]:
    """Keep what berth's loggers warn of in this block, instead of handing it to the root's handlers."""
    logger, handler = logging.getLogger("berth"), _Gathers(logging.WARNING)
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.messages
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


class Warned:
    """Counts what the runs of a sweep warned of."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._messages: dict[str, dict[str, None]] = {}
        self._runs: Counter[str] = Counter()

    def add(self, warnings: Warnings) -> None:
        """Count one more run."""
        for text, messages in warnings.items():
            self._messages.setdefault(text, {}).update(dict.fromkeys(messages))
            self._runs[text] += 1

    def log(self) -> None:
        """Log the first message of each text, with how many others there were and in how many of the runs."""
        for text, messages in self._messages.items():
            others = len(messages) - 1
            counts = [f"{others:,} more like it"] if others else []
            if self._total > 1:
                counts.append(f"in {self._runs[text]:,} of {self._total:,} runs")
            more = f" ({', '.join(counts)})" if counts else ""
            _log.warning("%s%s", next(iter(messages)), more)


class _Gathers(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.messages: dict[str, dict[str, None]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.setdefault(str(record.msg), {})[record.getMessage()] = None
