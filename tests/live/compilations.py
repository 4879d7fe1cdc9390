"""For a process of its own: importing this notes which kernels Numba compiles from then on."""

from __future__ import annotations

from typing import Any

from numba.core.dispatcher import Dispatcher

compiled: list[str] = []
"""Names of the kernels, in the order in which they were compiled or read from the cache."""

_compile = Dispatcher.compile


def _noted(self: Any, signature: Any) -> Any:
    if tuple(signature) not in self.overloads:
        compiled.append(self.py_func.__name__)
    return _compile(self, signature)


Dispatcher.compile = _noted
