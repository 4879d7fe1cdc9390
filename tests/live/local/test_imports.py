"""The broker and the client are small: neither loads NumPy, Typer or anything else that is heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numpy", "numba", "duckdb", "typer", "rich", "plotly", "berth.model", "berth.cli.app")


@pytest.mark.parametrize(
    "module", ["berth.live.local.broker", "berth.live.local.client", "berth.live.local.starting", "berth.cli"]
)
def test_what_starts_often_or_must_not_fail_loads_nothing_heavy(module: str) -> None:
    script = f"import {module}, sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
