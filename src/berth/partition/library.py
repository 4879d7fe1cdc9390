"""Where libberth.so and the fake driver are, and the calls that the operator's side of the library offers."""

from __future__ import annotations

import ctypes
import json
import mmap
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from berth.errors import PartitionError, install_command

_PACKAGED = Path(__file__).parent / "native"
_BUILT = Path(__file__).parents[3] / "build" / "native"
_ERROR_BYTES = 512
_DESCRIPTION_BYTES = 1 << 20


class _Answers(threading.local):
    """A buffer for each thread: to clear one of this size takes longer than to describe a region. Of its pages those
    alone are in memory that were written to."""

    def __init__(self) -> None:
        pages = mmap.mmap(-1, _DESCRIPTION_BYTES)
        self.buffer = (ctypes.c_char * _DESCRIPTION_BYTES).from_buffer(pages)


_answers = _Answers()


def library_path() -> Path:
    """libberth.so as installed with the package, or as `make native` built it."""
    return _first("libberth.so")


def fake_driver_folder() -> Path:
    """The folder with the fake libcuda.so.1 and libnvidia-ml.so.1."""
    return _first("fake/libcuda.so.1").parent


def shim_path() -> Path:
    """The program that stays with each job of the local queue."""
    return _first("berth-shim")


def prove_path() -> Path:
    """The program that tries the ways past a limit."""
    return _first("berth-prove")


def _first(name: str) -> Path:
    for folder in (_PACKAGED, _BUILT):
        if (folder / name).exists():
            return folder / name
    checkout = _BUILT.parents[1]
    if (checkout / "native" / "Makefile").exists():
        raise PartitionError(f"{name} is not in {_BUILT}; build it with: make -C {checkout / 'native'}")
    raise PartitionError(
        f"{name} is not in {_PACKAGED}: there was no C compiler when berth was installed. With make and gcc on "
        f"the search path, install it again: {install_command()} --force-reinstall --no-deps"
    )


def other_version() -> PartitionError:
    """What is said where the library is not the one that this version of berth was made with."""
    return PartitionError(
        f"{_first('libberth-region.so')} is of another version than berth; build it anew with `make native`, or"
        f" install berth again: {install_command()} --force-reinstall --no-deps"
    )


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_first("libberth-region.so")))
    text, size = ctypes.c_char_p, ctypes.c_size_t
    limits = [ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32]
    library.berth_make.argtypes = [text, text, text, *limits, text, size]
    library.berth_resize.argtypes = [text, text, *limits, text, size]
    library.berth_describe.argtypes = [text, text, text, size]
    return library


@cache
def granter_calls() -> ctypes.CDLL:
    """The calls of `granter.c`, for `growth`."""
    library = _library()
    if not hasattr(library, "berth_granter_open"):
        raise other_version()
    text, size, handle = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
    word, wide, flag = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int
    library.berth_granter_open.argtypes, library.berth_granter_open.restype = [text, text, text, size], handle
    library.berth_granter_wait.argtypes, library.berth_granter_wait.restype = [handle, word], word
    for name in ("stop", "close"):
        call = getattr(library, f"berth_granter_{name}")
        call.argtypes, call.restype = [handle], None
    library.berth_granter_allow.argtypes = [handle, wide, wide, word, flag]
    library.berth_granter_watch.argtypes = [handle, word]
    library.berth_granter_limit.argtypes = [handle, wide]
    library.berth_granter_read.argtypes = [handle, ctypes.c_void_p, word, ctypes.c_void_p]
    library.berth_granter_answer.argtypes = [handle, word, word, flag]
    return library


def make_region(folder: Path, uuid: str, name: str, mem_bytes: int, core_pct: int, flags: int) -> None:
    """Make the files of one region; an existing one stays as it is."""
    _checked(_library().berth_make, folder, uuid, name.encode(), mem_bytes, core_pct, flags)


def resize_region(folder: Path, uuid: str, mem_bytes: int, core_pct: int, flags: int) -> None:
    """Change the limits of a region under its running processes."""
    _checked(_library().berth_resize, folder, uuid, mem_bytes, core_pct, flags)


def _checked(call: Callable[..., int], folder: Path, uuid: str, *words: object) -> None:
    why = ctypes.create_string_buffer(_ERROR_BYTES)
    if call(str(folder).encode(), uuid.encode(), *words, why, _ERROR_BYTES) != 0:
        raise PartitionError(why.value.decode(errors="replace"))


def describe(folder: Path, uuid: str) -> dict[str, Any]:
    """What a region holds now, after giving back what dead processes held."""
    answer = _answers.buffer
    if _library().berth_describe(str(folder).encode(), uuid.encode(), answer, _DESCRIPTION_BYTES) != 0:
        raise PartitionError(answer.value.decode(errors="replace"))
    try:
        return dict(json.loads(answer.value))
    except ValueError as error:  # cut short: its files went meanwhile
        raise PartitionError(f"{folder / uuid} was removed while it was read") from error
