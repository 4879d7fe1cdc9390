"""Array types, and what compiles functions on them.

Numba keeps a compiled function by the file that it stands in and notices no change in the functions that it calls:
after a change in one kernel file, touch the files whose kernels call it, or empty their `__pycache__`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["BoolArray", "FloatArray", "IntArray", "compiled", "numbers", "released"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile a function that allocates nothing, and keep the result on disk.

    Without Numba's reference counts (`_nrt`), which nobody needs who allocates nothing: counting, atomically,
    every array that is passed from one kernel to another took most of the time.
    """
    return njit(cache=True, _nrt=False)(function)  # type: ignore[call-overload, no-any-return]


def released(function: Function) -> Function:
    """Compile like `compiled`; while it runs, other threads of Python may."""
    return njit(cache=True, nogil=True, _nrt=False)(function)  # type: ignore[call-overload, no-any-return]


def numbers(array: IntArray) -> memoryview[int]:
    """The same memory, of which Python reads and writes a number in half of the time that NumPy takes."""
    return memoryview(array.data).cast("B").cast("q", array.shape)
