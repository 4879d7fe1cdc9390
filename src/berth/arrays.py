"""Array types, and what compiles functions on them.

Numba, whose import takes longer than many a command, is imported when a kernel is first called. Until then a kernel is
a `_Kernel`. Then each module that holds one gets Numba's own function in its place: it is called faster, and other
kernels can call it.

Numba keeps a compiled function by the file that it stands in, and notices no change in what the function calls or
reads of other files. So the stamp of a kept function is here that of all files whose kernels its module imports, and
of the constants that its module sees.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import threading
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
_UNREADABLE = (
    AttributeError, EOFError, ImportError, LookupError, MemoryError, OSError, OverflowError, RecursionError, TypeError,
    ValueError, pickle.UnpicklingError,
)  # fmt: skip
"""What reading a damaged pickle raises."""
Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile a function that allocates nothing, when it is first called, and keep the result on disk.

    Without Numba's reference counts (`_nrt`), which code that allocates nothing does not need: counting, atomically,
    every array that is passed from one kernel to another took most of the time.
    """
    return _kernel(function)  # type: ignore[no-any-return]


def inlined(function: Function) -> Function:
    """Compile a function into each kernel that calls it.

    For a function that takes dozens of arrays and is called in few places: passing them takes Numba longer to compile
    than the body. A stretch compiles in 34.6 s with it, in 45.6 s without.
    """
    return _kernel(function, inline="always")  # type: ignore[no-any-return]


def released(function: Function) -> Function:
    """Compile like `compiled`; while it runs, other threads of Python may."""
    return _kernel(function, nogil=True)  # type: ignore[no-any-return]


def not_an_int64() -> tuple[type[Exception], ...]:
    """What a kernel raises if an argument is no number that 64 bits hold; for an `except` clause."""
    from numba.core.errors import TypingError

    return OverflowError, TypingError


def is_compiled(kernel: Any) -> bool:
    """Whether a kernel runs without being compiled first: it has run in this process, or its code on disk is for this
    processor and up to date. Only for kernels whose arguments always have the same types."""
    _load_numba()
    made = kernel.dispatcher() if type(kernel) is _Kernel else kernel
    if getattr(made, "signatures", None):
        return True
    cache_file = _cache_file_of(made)
    try:
        index: dict[Any, str] = getattr(cache_file, "_load_index", dict)()
    except _UNREADABLE:
        return False
    # Numba writes the index before the code.
    return any(
        made.targetctx.codegen().magic_tuple() in key and os.path.exists(cache_file._data_path(name))
        for key, name in index.items()
    )


def numbers(array: IntArray) -> memoryview[int]:
    """The same memory, of which Python reads and writes a number in half of the time that NumPy takes."""
    return memoryview(array.data).cast("B").cast("q", array.shape)


class _Kernel:
    """A function that Numba compiles when the first of all kernels is called."""

    def __init__(self, function: Callable[..., Any], stamp: object, options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self._stamp, self._options = stamp, options
        self._dispatcher: Any = None

    def __call__(self, *arguments: Any) -> Any:
        if self._dispatcher is None:
            _load_numba()
        return self.dispatcher()(*arguments)  # defined while another thread loaded Numba

    def dispatcher(self) -> Any:
        """Numba's function, whose compiled code on disk counts only while all that went into it is as it was."""
        if self._dispatcher is None:
            from numba import njit

            options: dict[str, Any] = {"cache": True, "_nrt": False, **self._options}
            made = njit(**options)(self.py_func)
            cache_file = _cache_file_of(made)
            if hasattr(cache_file, "_source_stamp"):  # in a Numba without it, its own rule holds
                cache_file._source_stamp = self._stamp
            self._dispatcher = made
        return self._dispatcher


_not_yet: list[_Kernel] | None = []
"""Kernels that wait for Numba; None once it is there."""
_loading = threading.Lock()
_files: dict[str, frozenset[str]] = {}
"""The files that kernels of a file depend on, by the file's name."""


def _kernel(function: Any, **options: Any) -> Any:
    kernel = _Kernel(function, stamp_of(function), options)
    waiting = _not_yet  # read once: another thread may be loading Numba
    if waiting is None:
        return kernel.dispatcher()
    waiting.append(kernel)
    return kernel


def _cache_file_of(made: Any) -> Any:
    """Where Numba keeps a function's code. It offers no public way to either of the two things that are read here."""
    return getattr(getattr(made, "_cache", None), "_cache_file", None)


def _load_numba() -> None:
    """Make Numba's functions of all kernels, and put them in the kernels' place in every module."""
    global _not_yet
    with _loading:
        if _not_yet is None:
            return
        for kernel in _not_yet:
            kernel.dispatcher()
        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if type(value) is _Kernel:
                    setattr(module, name, value.dispatcher())
        _not_yet = None


def stamp_of(function: Any) -> object:
    """What Numba's code of a function depends on: all files of kernels that its module imports, and their constants."""
    own = function.__code__.co_filename
    files = _files.get(own, frozenset({own}))
    constants = []
    for name, value in function.__globals__.items():
        if _is_constant(value) and not name.startswith("__"):
            constants.append(f"{name}={value!r}")
        elif (kernel := getattr(value, "py_func", None)) is not None:
            files |= _files.get(kernel.__code__.co_filename, frozenset())
    _files[own] = files
    digest = hashlib.sha256("\n".join(sorted(constants)).encode()).hexdigest()
    return (*sorted(map(_stamp, files)), digest)


def _is_constant(value: object) -> bool:
    return isinstance(value, int | float | str) or (
        isinstance(value, tuple) and all(map(_is_constant, value))
    )


def _stamp(path: str) -> tuple[str, int, int]:
    status = os.stat(path)
    return os.path.basename(path), status.st_mtime_ns, status.st_size
