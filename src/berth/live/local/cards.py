"""The GPUs of this machine as the broker sees them: what there is, what runs on them, and which one is lost."""

from __future__ import annotations

import ctypes
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from berth.errors import LiveError, PartitionError
from berth.live.local.entry import Limits
from berth.partition import fake_driver_folder, mem_mib
from berth.partition.gpus import (
    Gpu,
    Memory,
    busy_of_processes,
    gpus,
    handle_of,
    open_nvml,
    plain_uuid,
    processes_of,
)
from berth.partition.regions import partitions

_FAKE = re.compile(r"(\d+)x([A-Za-z0-9]+(?:-[A-Za-z0-9]+)*?)-(\d+(?:\.\d+)?[MGT])")
_MOST_FAKE = 64
_LOST = (15, 16)  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED
SMALL_MIB = 1024
"""A stranger that holds less counts with its memory alone: a desktop is no reason to keep a GPU from a whole job."""


@dataclass(frozen=True, slots=True)
class Card:
    index: int
    """Its place among the GPUs of the queue: NVML's number, unless GPUs were lost before the queue first started."""
    uuid: str
    model: str
    mem_mib: int

    @property
    def gpu(self) -> Gpu:
        return Gpu(self.index, self.uuid, self.mem_mib)


@dataclass(frozen=True, slots=True)
class Stranger:
    """A process on a GPU that is no job's."""

    pid: int
    mem_mib: int
    command: str


@dataclass(frozen=True, slots=True)
class Promised:
    """A partition's part of a GPU: it is not to be given away, whether it is used or not."""

    name: str
    mem_mib: int
    core_pct: int = 0
    pids: frozenset[int] = frozenset()
    """Its processes, whose memory is within what it was promised."""
    peak_mib: int = 0
    """The most that its processes held at one time, by its own counters."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment."""

    index: int
    used_mib: int
    use_pct: int | None
    strangers: tuple[Stranger, ...]
    lost: bool = False
    partitions: tuple[Promised, ...] = ()
    """What is promised to partitions; behind `Watch`, to those of no job of this queue."""
    runs: Mapping[str, tuple[float | None, int]] = field(default_factory=dict)
    """Of each run on it: per cent of the multiprocessors' time since the last reading, if known, and MiB."""
    pids: Mapping[str, list[int]] = field(default_factory=dict)
    """Of each run on it: the processes that the driver shows."""

    @property
    def taken(self) -> tuple[int, int]:
        """Milli and MiB that are not to be given away; all of a lost GPU."""
        if self.lost:
            return 1000, 1 << 30
        inside = {pid for each in self.partitions for pid in each.pids}
        held = sum(stranger.mem_mib for stranger in self.strangers if stranger.pid not in inside)
        promised = sum(each.mem_mib for each in self.partitions)
        milli = 10 * sum(each.core_pct for each in self.partitions)
        # A job that asks for a whole GPU is promised all of it, so that it never runs beside a partition.
        least = 100 if held >= SMALL_MIB or self.partitions else 0
        return min(1000, max(milli, least)), held + promised


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


class _Use(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Cards:
    """NVML, asked now and then; the fake one where `fake` is given."""

    def __init__(self, *, fake: bool = False, none: bool = False, before: Iterable[Card] = ()) -> None:
        """LiveError if NVML does not answer; with `none` there is no GPU, and NVML is not asked. `before` are the cards
        that the queue had when the machine was the same: each keeps its index, and one that is not there any more is
        lost."""
        self.fake = fake
        self.cards: tuple[Card, ...] = ()
        self._since_us: dict[int, int] = {}
        if none:
            return
        folder = fake_driver_folder() if fake else None
        try:
            self._nvml = open_nvml(folder)
            found = gpus(folder)
        except PartitionError as error:
            raise LiveError(
                f"the GPUs cannot be listed: {error}. Without GPUs: berth up --no-gpus; to try it:"
                " --fake-gpus 4xA100-80G"
            ) from error
        self._handles: dict[int, ctypes.c_void_p] = {}
        cards = list(before)
        places = {card.uuid: card.index for card in cards}
        for gpu in found:
            handle = handle_of(gpu.uuid, folder)
            at = places.get(gpu.uuid, len(cards))
            self._handles[at] = handle
            if at == len(cards):
                cards.append(Card(at, gpu.uuid, self._name(handle), gpu.mem_mib))
        self.cards = tuple(cards)

    def nodes(self, limits: Limits) -> list[dict[str, Any]]:
        """This machine as nodes, one for each kind of card."""
        groups: dict[tuple[str, int], list[int]] = {}
        for card in self.cards:
            groups.setdefault((card.model, card.mem_mib), []).append(card.index)
        host = socket.gethostname().partition(".")[0] or "here"
        one = len(groups) <= 1
        nodes = [
            {
                "name": host if at == 0 else f"{host}-{at}", "gpus": len(those), "model": model, "card_mib": mib,
                "cpu_milli": limits.cpu_milli if one else None, "mem_mib": limits.mem_mib if one else None,
                "indices": those,
            }
            for at, ((model, mib), those) in enumerate(groups.items())
        ] or [{
            "name": host, "gpus": 0, "model": "", "card_mib": 0, "cpu_milli": limits.cpu_milli,
            "mem_mib": limits.mem_mib,
        }]  # fmt: skip
        return nodes

    def _name(self, handle: ctypes.c_void_p) -> str:
        if self.fake:
            return os.environ.get("BERTH_FAKE_MODEL", "fake")
        text = ctypes.create_string_buffer(96)
        self._nvml.nvmlDeviceGetName(handle, text, 96)
        return text.value.decode(errors="replace")

    def read(self, run_of: Callable[[int], str]) -> tuple[GpuReading, ...]:
        """Each GPU now; `run_of` tells which run a process belongs to. To be called in a thread: a driver may hang."""
        promised = promised_to()
        return tuple(self._read(card, run_of, promised.get(plain_uuid(card.uuid), ())) for card in self.cards)

    def _read(self, card: Card, run_of: Callable[[int], str], promised: Iterable[Promised]) -> GpuReading:
        handle, memory = self._handles.get(card.index), Memory()
        if handle is None or self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) in _LOST:
            return GpuReading(card.index, 0, None, (), lost=True, partitions=tuple(promised))
        use = _Use()
        asked = getattr(self._nvml, "nvmlDeviceGetUtilizationRates", None)
        known = asked is not None and asked(handle, ctypes.byref(use)) == 0
        held: dict[int, int] = {}
        for kind in ("Compute", "Graphics"):
            for pid, held_bytes in processes_of(self._nvml, handle, kind).items():
                held[pid] = max((held_bytes or 0) >> 20, held.get(pid, 0))
        since_us = self._since_us.get(card.index, 0)
        busy, self._since_us[card.index] = busy_of_processes(self._nvml, handle, since_us)
        strangers: list[Stranger] = []
        runs: dict[str, tuple[float | None, int]] = {}
        pids: dict[str, list[int]] = {}
        for pid, mib in sorted(held.items()):
            if run := run_of(pid):
                before_pct, before_mib = runs.get(run, (None if busy is None else 0.0, 0))
                pct = None if busy is None or before_pct is None else before_pct + busy.get(pid, 0.0)
                runs[run] = (pct, before_mib + mib)
                pids.setdefault(run, []).append(pid)
            elif mib:
                strangers.append(Stranger(pid, mib, command_of(pid)))
        used, pct = int(memory.used) >> 20, int(use.gpu) if known else None
        return GpuReading(
            card.index, used, pct, tuple(strangers), partitions=tuple(promised), runs=runs, pids=pids
        )


def promised_to() -> dict[str, list[Promised]]:
    """The partitions of this machine by the UUID of their GPU."""
    found: dict[str, list[Promised]] = {}
    for each in partitions():
        kept = each.hardware
        mem_mib = -(-max(each.limit_bytes, each.used_bytes) >> 20)
        core_pct = each.core_pct if kept is None else kept.core_pct
        pids = frozenset(process.pid for process in each.processes)
        peak_mib = -(-each.peak_bytes >> 20)
        of = each.uuid if kept is None else kept.gpu
        found.setdefault(plain_uuid(of), []).append(Promised(each.name, mem_mib, core_pct, pids, peak_mib))
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
