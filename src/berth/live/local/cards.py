"""The GPUs of this machine as the broker sees them: what there is, who is on them, and which one is lost."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from berth.errors import LiveError, PartitionError
from berth.partition import fake_driver_folder, mem_mib
from berth.partition.gpus import Gpu, gpus, open_nvml

__all__ = ["Card", "Cards", "Look", "Stranger", "fake_gpus"]

_FAKE = re.compile(r"(\d+)x([A-Za-z0-9]+(?:-[A-Za-z0-9]+)*?)-(\d+(?:\.\d+)?[MGT])")
_UNKNOWN = (1 << 64) - 1
_MOST_FAKE = 8
_LOST = (15, 16)  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED
SMALL_MIB = 1024
"""A stranger that holds less counts with its memory alone: a desktop is no reason to keep a GPU from a whole job."""


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU."""

    index: int
    uuid: str
    model: str
    mem_mib: int

    @property
    def gpu(self) -> Gpu:
        """As partitions name it."""
        return Gpu(self.index, self.uuid, self.mem_mib)


@dataclass(frozen=True, slots=True)
class Stranger:
    """A process on a GPU that is no job's."""

    pid: int
    mem_mib: int
    command: str


@dataclass(frozen=True, slots=True)
class Look:
    """One GPU at one moment."""

    index: int
    used_mib: int
    use_pct: int | None
    strangers: tuple[Stranger, ...]
    lost: bool = False

    @property
    def taken(self) -> tuple[int, int]:
        """Milli and MiB that are not to be given away; all of a lost GPU."""
        if self.lost:
            return 1000, 1 << 30
        held = sum(stranger.mem_mib for stranger in self.strangers)
        return (100 if held >= SMALL_MIB else 0), held


def fake_gpus(text: str) -> dict[str, str]:
    """The environment that makes fake GPUs of `4xA100-80G`; LiveError where that is none."""
    found = _FAKE.fullmatch(text)
    if not found or not 1 <= int(found[1]) <= _MOST_FAKE:
        raise LiveError(
            f"--fake-gpus '{text}'; write NxMODEL-SIZE with at most {_MOST_FAKE} GPUs, such as 4xA100-80G"
        )
    return {
        "BERTH_FAKE_GPUS": found[1],
        "BERTH_FAKE_MEM_MIB": str(mem_mib(found[3])),
        "BERTH_FAKE_MODEL": f"{found[2]}-{found[3]}",
    }


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Use(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Cards:
    """NVML, asked now and then; the fake one where `fake` is given."""

    def __init__(self, *, fake: bool = False, none: bool = False) -> None:
        """LiveError where NVML does not answer; with `none` there is no GPU and nobody is asked."""
        self.fake = fake
        self.cards: tuple[Card, ...] = ()
        if none:
            return
        folder = fake_driver_folder() if fake else None
        try:
            self._nvml = open_nvml(folder)
            found = gpus(folder)
        except PartitionError as error:
            raise LiveError(
                f"the GPUs cannot be told: {error}. Without GPUs: berth up --no-gpus; to try it: --fake-gpus 4xA100-80G"
            ) from error
        self._handles = {}
        for gpu in found:
            handle = ctypes.c_void_p()
            self._nvml.nvmlDeviceGetHandleByIndex_v2(gpu.index, ctypes.byref(handle))
            self._handles[gpu.index] = handle
        self.cards = tuple(Card(gpu.index, gpu.uuid, self._name(gpu.index), gpu.mem_mib) for gpu in found)

    def _name(self, index: int) -> str:
        if self.fake:
            return os.environ.get("BERTH_FAKE_MODEL", "fake")
        text = ctypes.create_string_buffer(96)
        self._nvml.nvmlDeviceGetName(self._handles[index], text, 96)
        return text.value.decode(errors="replace")

    def look(self, is_ours: Callable[[int], bool]) -> tuple[Look, ...]:
        """Each GPU now; `is_ours` tells which processes are jobs'. To be called in a thread: a driver may hang."""
        return tuple(self._look(card, is_ours) for card in self.cards)

    def _look(self, card: Card, is_ours: Callable[[int], bool]) -> Look:
        handle, memory = self._handles[card.index], _Memory()
        if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) in _LOST:
            return Look(card.index, 0, None, (), lost=True)
        use = _Use()
        asked = getattr(self._nvml, "nvmlDeviceGetUtilizationRates", None)
        known = asked is not None and asked(handle, ctypes.byref(use)) == 0
        held: dict[int, int] = {}
        for kind in ("Compute", "Graphics"):
            for process in self._processes(kind, handle):
                told = 0 if process.used == _UNKNOWN else int(process.used) >> 20
                held[process.pid] = max(told, held.get(process.pid, 0))
        strangers = tuple(
            Stranger(pid, mib, command_of(pid))
            for pid, mib in sorted(held.items())
            if mib and not is_ours(pid)
        )
        return Look(card.index, int(memory.used) >> 20, int(use.gpu) if known else None, strangers)

    def _processes(self, kind: str, handle: ctypes.c_void_p) -> Iterable[_Process]:
        ask = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3", None)
        if ask is None:
            return ()
        for size in (64, 1024):
            listed, count = (_Process * size)(), ctypes.c_uint(size)
            if ask(handle, ctypes.byref(count), listed) == 0:
                return listed[: count.value]
        return ()


def command_of(pid: int) -> str:
    """The name of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
