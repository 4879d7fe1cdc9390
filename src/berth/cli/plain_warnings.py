"""Warnings as the command line prints them."""

from __future__ import annotations

import sys
import warnings
from typing import Any


def warn_in_one_line() -> None:
    """Print warnings as errors are printed: without the file and line of code that they came from."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if category is UserWarning:
            print(f"berth: {message}", file=sys.stderr)
        else:
            usual(message, category, *place)

    warnings.showwarning = show  # type: ignore[assignment]
