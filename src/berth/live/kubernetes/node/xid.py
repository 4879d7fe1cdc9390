"""XIDs: the errors that the driver tells of a GPU, asked of NVML in a thread of their own.

Those that a program brings upon itself say nothing of the GPU and are passed over; after any other the GPU is given to
no pod until the agent restarts, which an operator does after a reset.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

from berth.partition.gpus import gpus, handle_of, open_nvml

OF_PROGRAMS = frozenset((13, 31, 43, 45, 68, 109))
"""Faults, illegal addresses, ends and time-outs of programs (NVIDIA, XID Errors)."""
_CRITICAL = 8  # nvmlEventTypeXidCriticalError
_WAIT_MS = 1000


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class XidWatch:
    """Tells of each XID that is not a program's own."""

    def __init__(self, on_error: Callable[[int, int], None], driver_folder: Path | None) -> None:
        """`on_error` is called with the GPU's index and the XID, in the watch's thread."""
        self._on_error, self._folder = on_error, driver_folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="xid", daemon=True)

    def start(self) -> None:
        """Begin to listen; nothing is heard where NVML has no events."""
        self._thread.start()

    def stop(self) -> None:
        """End within a second."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        nvml, events, index = open_nvml(self._folder), ctypes.c_void_p(), ctypes.c_uint()
        if not hasattr(nvml, "nvmlEventSetWait_v2") or nvml.nvmlEventSetCreate(ctypes.byref(events)) != 0:
            return
        for gpu in gpus(self._folder):
            handle = handle_of(gpu.uuid, self._folder)
            nvml.nvmlDeviceRegisterEvents(handle, ctypes.c_ulonglong(_CRITICAL), events)
        while not self._over.is_set():
            event = _Event()
            if nvml.nvmlEventSetWait_v2(events, ctypes.byref(event), _WAIT_MS) != 0:
                continue
            device = ctypes.c_void_p(event.device)
            if event.data in OF_PROGRAMS or nvml.nvmlDeviceGetIndex(device, ctypes.byref(index)) != 0:
                continue
            self._on_error(index.value, int(event.data))
