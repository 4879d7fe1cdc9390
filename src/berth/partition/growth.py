"""Growth: what the processes of a partition ask for beyond its limit, and the one process that answers them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from berth.errors import PartitionError
from berth.partition.hardware import hardware_in
from berth.partition.library import granter_calls

_ERROR_BYTES = 512
_MOST_WISHES = 256
"""How many are read at a time; the others are read after these were answered."""
_COMES_BACK = (1 << 64) - 1


class Watching(IntEnum):
    """Whether the calls of a region's processes to CUDA are counted, from their start on, and whether they wait."""

    OFF = 0
    COUNTS = 1
    AWAY = 2
    """They wait, since the processes are suspended, and ask to be resumed (`Wish.comes_back`)."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A call that waits because its bytes do not fit below the limit."""

    slot: int
    number: int
    pid: int
    """As its own pid namespace counts."""
    wanted_bytes: int
    held_bytes: int
    """What its process holds already."""

    @property
    def comes_back(self) -> bool:
        """Whether the call waits for its suspended process rather than for memory."""
        return self.wanted_bytes == _COMES_BACK


@dataclass(frozen=True, slots=True)
class Demand:
    """What a region may hold and holds now, and what its processes wait for."""

    limit_bytes: int
    used_bytes: int
    wishes: tuple[Wish, ...]
    calls: int = 0
    """Calls to CUDA, while they are counted (`Watching`), modulo 2^32."""


class _Wish(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("bytes", "held_bytes")),
        *((name, ctypes.c_uint32) for name in ("slot", "number", "pid", "unused")),
    )


class _Grants(ctypes.Structure):
    _fields_ = (
        ("limit_bytes", ctypes.c_uint64),
        ("used_bytes", ctypes.c_uint64),
        ("calls", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )


class Granter:
    """Answers the wishes of one region; a region has one granter at a time."""

    def __init__(self, folder: Path, uuid: str, woken: Callable[[], None] | None = None) -> None:
        """`woken` is called in a thread of its own whenever a process has asked, and once at the start.

        Raises PartitionError if the region is not there, is another user's, has a granter, or is kept by hardware.
        """
        if (kept := hardware_in(folder, uuid)) is not None:
            raise PartitionError(
                f"the limit of '{folder.name}' is kept by {kept.text}, and does not grow; "
                "create the partition with --no-native"
            )
        self._calls = granter_calls()
        why = ctypes.create_string_buffer(_ERROR_BYTES)
        self._handle = self._calls.berth_granter_open(str(folder).encode(), uuid.encode(), why, _ERROR_BYTES)
        if not self._handle:
            raise PartitionError(why.value.decode(errors="replace"))
        self._woken = woken
        self._heard = threading.Event()
        self._thread: threading.Thread | None = None
        if woken is not None:
            self._thread = threading.Thread(target=self._listen, name=f"growth of {folder.name}", daemon=True)
            self._thread.start()

    def _listen(self) -> None:
        """A wake is heard once the one before it was looked at, so that asking without end wakes no oftener."""
        assert self._woken is not None
        seen = 0
        while True:
            self._woken()
            self._heard.wait()
            self._heard.clear()
            now = self._calls.berth_granter_wait(self._handle, seen)
            if now == seen:
                return
            seen = now

    def allow(self, *, promise_mib: int, max_mib: int, ask_ms: int, shows_max: bool = False) -> None:
        """Say how far the limit may grow, and how long a call that does not fit waits for an answer.

        With `shows_max` processes see a card of `max_mib`; otherwise one of their limit.
        """
        sizes = (promise_mib << 20, max_mib << 20)
        self._check(self._calls.berth_granter_allow(self._handle, *sizes, ask_ms, shows_max))

    def demand(self) -> Demand:
        """What the region's processes wait for now; what dead processes held is given back first."""
        wishes, grants = (_Wish * _MOST_WISHES)(), _Grants()
        self._heard.set()
        count = self._calls.berth_granter_read(self._handle, wishes, _MOST_WISHES, ctypes.byref(grants))
        self._check(min(count, 0))
        found = (
            Wish(each.slot, each.number, each.pid, each.bytes, each.held_bytes) for each in wishes[:count]
        )
        return Demand(grants.limit_bytes, grants.used_bytes, tuple(found), grants.calls)

    def watch(self, watching: Watching) -> None:
        """Have calls to CUDA counted, or wait; those that wait go on once they are only counted."""
        self._check(self._calls.berth_granter_watch(self._handle, watching))

    def limit(self, limit_bytes: int) -> None:
        """Change the limit without an answer to anyone."""
        self._check(self._calls.berth_granter_limit(self._handle, limit_bytes))

    def grant(self, wish: Wish, limit_bytes: int) -> None:
        """Raise the limit to this, and wake the call that waits for it."""
        self.limit(limit_bytes)
        self.wake(wish)

    def wake(self, wish: Wish, granted: bool = True) -> None:
        """Let a call go on that waited for its suspended process."""
        self._check(self._calls.berth_granter_answer(self._handle, wish.slot, wish.number, granted))

    def refuse(self, wish: Wish) -> None:
        """Have the call fail now rather than when it has waited long enough."""
        self.wake(wish, granted=False)

    def close(self) -> None:
        """Answer no more; calls that do not fit are refused at once from now on."""
        if self._handle is None:
            return
        self._calls.berth_granter_stop(self._handle)
        self._heard.set()
        if self._thread is not None:
            self._thread.join()
        self._calls.berth_granter_close(self._handle)
        self._handle = None

    def _check(self, answer: int) -> None:
        if answer != 0:
            raise PartitionError(
                "the partition was cut short while its wishes were read; stop its processes, remove it and make"
                " it anew"
            )
