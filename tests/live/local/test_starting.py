"""What `berth up` shows while it waits for the policy."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from berth.errors import LiveError
from berth.live.local import starting
from berth.live.local.places import Places


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _shown(
    monkeypatch: pytest.MonkeyPatch, errors: io.StringIO, check: Callable[[], None] = lambda: None
) -> str:
    """What is printed of a start whose kernels take two seconds."""
    brains = iter(("compiling", "compiling", "ready"))
    clock = iter(range(10))
    monkeypatch.setattr(sys, "stderr", errors)
    times = SimpleNamespace(monotonic=lambda: float(next(clock)), sleep=lambda seconds: None)
    monkeypatch.setattr(starting, "time", times)
    answer: dict[str, Any] = {"brain": "loading", "trouble": []}
    monkeypatch.setattr(starting, "_status", lambda places: {**answer, "brain": next(brains)})
    with contextlib.suppress(LiveError):
        found = starting._wait_for_brain(Places("/nowhere"), answer, check)
        assert found["brain"] == "ready"
    return errors.getvalue()


def test_a_terminal_counts_the_seconds_in_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _shown(monkeypatch, _Terminal())
    compiling = "compiling the policy's kernels; the first time takes longer"
    lines = ["", "loading the policy: 1 s", f"{compiling}: 2 s", f"{compiling}: 3 s", ""]
    assert shown.replace("\x1b[K", "").split("\r") == lines


def test_the_line_goes_away_too_where_the_broker_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = iter((False, True))

    def ends() -> None:
        if next(checks):
            raise LiveError("the broker ended at once")

    shown = _shown(monkeypatch, _Terminal(), ends)
    assert shown.replace("\x1b[K", "").split("\r") == ["", "loading the policy: 1 s", ""]


def test_a_log_gets_one_line_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _shown(monkeypatch, io.StringIO()).splitlines()
    assert lines == ["loading the policy", "compiling the policy's kernels; the first time takes longer"]
