"""Array types, and what compiles functions on them.

Numba keeps a compiled function by the file that it stands in, and notices no change in what the function calls or
reads of other files. So the stamp of a kept function is here that of all files whose kernels its module imports, and
of the constants that its module sees.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["BoolArray", "FloatArray", "IntArray", "compiled", "numbers", "released"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Function = TypeVar("Function", bound=Callable[..., object])


_files: dict[str, frozenset[str]] = {}
"""The files that kernels of a file depend on, by the file's name."""


def compiled(function: Function) -> Function:
    """Compile a function that allocates nothing, and keep the result on disk.

    Without Numba's reference counts (`_nrt`), which code that allocates nothing does not need: counting, atomically,
    every array that is passed from one kernel to another took most of the time.
    """
    return _kept(njit(cache=True, _nrt=False)(function), function)  # type: ignore[call-overload, no-any-return]


def released(function: Function) -> Function:
    """Compile like `compiled`; while it runs, other threads of Python may."""
    return _kept(njit(cache=True, nogil=True, _nrt=False)(function), function)  # type: ignore[call-overload, no-any-return]


def numbers(array: IntArray) -> memoryview[int]:
    """The same memory, of which Python reads and writes a number in half of the time that NumPy takes."""
    return memoryview(array.data).cast("B").cast("q", array.shape)


def _kept(dispatcher: Any, function: Any) -> Any:
    """The dispatcher, whose compiled code on disk counts only while all that went into it is as it was."""
    own = function.__code__.co_filename
    files = _files.get(own, frozenset({own}))
    constants = []
    for name, value in function.__globals__.items():
        if _is_constant(value) and not name.startswith("__"):
            constants.append(f"{name}={value!r}")
        elif (kernel := getattr(value, "py_func", None)) is not None:
            files |= _files.get(kernel.__code__.co_filename, frozenset())
    _files[own] = files
    cache_file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if cache_file is not None and hasattr(
        cache_file, "_source_stamp"
    ):  # Numba's own; in a Numba without it, its rule holds
        said = hashlib.sha256("\n".join(sorted(constants)).encode()).hexdigest()
        cache_file._source_stamp = (*sorted(map(_stamp, files)), said)
    return dispatcher


def _is_constant(value: object) -> bool:
    return isinstance(value, int | float | str) or (
        isinstance(value, tuple) and all(map(_is_constant, value))
    )


def _stamp(path: str) -> tuple[str, int, int]:
    status = os.stat(path)
    return os.path.basename(path), status.st_mtime_ns, status.st_size
