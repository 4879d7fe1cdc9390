"""Kernels that `make test` runs as Python and CI compiled: to compile them takes longer than their quick tests."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module

PACKAGES = ("berth.policies.genetic", "berth_papers.genetic")
OURS = ("berth", "berth_papers", "papers", "tests")
COMPILED = ("uniform",)
"""Its integers wrap around, of which Python's own would warn."""


def interpret() -> None:
    """Put the Python function in each such kernel's place, in all modules that hold it.

    All that holds one is imported first: what is compiled later could not call a function of Python.
    """
    for package in PACKAGES:
        with suppress(ImportError):
            import_module(f"{package}.policy")
    ours = [module for name, module in sys.modules.items() if name.partition(".")[0] in OURS]
    for module in ours:
        for name, value in list(vars(module).items()):
            function = getattr(value, "__dict__", {}).get("py_func")
            if function is not None and _is_meant(function):
                setattr(module, name, function)


def _is_meant(function: object) -> bool:
    module, name = getattr(function, "__module__", ""), getattr(function, "__name__", "")
    return name not in COMPILED and f"{module}.".startswith(tuple(f"{package}." for package in PACKAGES))
