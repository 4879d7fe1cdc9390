"""Records a profile: runs a command and samples its GPU through NVML, and DCGM where that runs, until it ends.

The card should run nothing else: what it used before the command starts is taken off the memory, everything else
counts as the command's.

`SmActivity` is how busy a GPU's cores are, as DCGM tells it: NVML does not know. `dcgmi dmon` prints a line an
interval; field 1002 is `DCGM_FI_PROF_SM_ACTIVE`, the part of the time in which a warp was on a multiprocessor, the mean
over all of them (NVIDIA, *DCGM User Guide*, "Profiling Metrics").
"""

from __future__ import annotations

import ctypes
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from berth.errors import PartitionError, ProfileError
from berth.gpu_models import GPU_MODELS
from berth.model import GpuModel, Profile
from berth.partition.gpus import Memory, open_nvml
from berth.profiles.file import checked

TX, RX = 0, 1  # nvmlPcieUtilCounter_t


class Sample(NamedTuple):
    gpu: float
    """Part of the time in which some kernel ran, 0…1."""
    mem_mib: float
    cores: float
    """How busy the cores were, 0…1, or what stands for that: the card's `cores_are` tells which."""
    pcie_mbps: float


class Card(Protocol):
    """A GPU that can be asked what it does."""

    model: GpuModel
    cores_are: str
    """`sm-activity`, or if that is unknown `memory-activity`: the part of the time in which memory was busy."""

    def sample(self) -> Sample:
        """What it does now."""


class _Utilisation(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class NvmlCard:
    """A GPU of this machine; `open` finds it."""

    def __init__(
        self, nvml: ctypes.CDLL, handle: ctypes.c_void_p, model: GpuModel, sm: SmActivity | None = None
    ) -> None:
        self.model = model
        self.cores_are = "memory-activity" if sm is None else "sm-activity"
        self._nvml = nvml
        self._handle = handle
        self._sm = sm

    @classmethod
    def open(cls, index: int = 0, driver_folder: Path | None = None) -> NvmlCard:
        """The card of that number; ProfileError where there is none, or no driver. Its SM activity is DCGM's, where
        that runs."""
        try:
            nvml = open_nvml(driver_folder)
        except PartitionError as error:
            raise ProfileError(str(error)) from error
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
            raise ProfileError(f"NVML shows no GPU {index}; see what nvidia-smi says")
        return cls(nvml, handle, _model_of(nvml, handle), SmActivity.open(index))

    def sample(self) -> Sample:
        """What it does now; ProfileError where NVML does not tell its use or memory."""
        rates, memory = _Utilisation(), Memory()
        if (
            _asked(self._nvml, "nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(rates)) != 0
            or _asked(self._nvml, "nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory)) != 0
        ):
            raise ProfileError(
                f"NVML does not tell how GPU '{self.model.name}' is used; see what nvidia-smi says"
            )
        kbps = 0
        for direction in (TX, RX):
            counter = ctypes.c_uint()
            _asked(self._nvml, "nvmlDeviceGetPcieThroughput", self._handle, direction, ctypes.byref(counter))
            kbps += counter.value
        cores = rates.memory / 100 if self._sm is None else self._sm.latest or 0.0
        return Sample(rates.gpu / 100, memory.used / 2**20, cores, kbps / 1000)


def record(
    card: Card,
    command: Sequence[str],
    application: str,
    *,
    kind: str = "",
    input_bytes: int = 0,
    parameters: str = "",
    interval_ms: int = 1000,
    samples_an_interval: int = 5,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Profile, int]:
    """Run a command, sample its card until it ends, and return the profile and the command's exit status.

    Raises ProfileError where the command cannot be started.
    """
    before_mib = card.sample().mem_mib
    try:
        process = subprocess.Popen(list(command))
    except OSError as error:
        raise ProfileError(f"'{command[0]}' cannot be started: {error.strerror or error}") from error
    begin_s = now_s()
    taken: list[tuple[int, Sample]] = []
    try:
        while process.poll() is None:
            at_ms = int((now_s() - begin_s) * 1000)
            taken.append((at_ms, card.sample()))
            sleep(interval_ms / 1000 / samples_an_interval)
        status = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    profile = profile_of(
        taken, before_mib, card.model, application, kind, input_bytes, parameters, interval_ms, card.cores_are
    )
    return profile, status


def profile_of(
    taken: Sequence[tuple[int, Sample]],
    before_mib: float,
    hardware: GpuModel,
    application: str,
    kind: str = "",
    input_bytes: int = 0,
    parameters: str = "",
    interval_ms: int = 1000,
    cores_are: str = "",
) -> Profile:
    """The profile of samples `(at_ms, sample)` in order of time: a row an interval, the mean of its samples, of
    memory the most. An interval without a sample is as the one before it. Raises ProfileError for no samples."""
    if not taken:
        raise ProfileError(f"nothing was sampled of '{application}': it ended at once")
    rows = [list[Sample]() for _ in range(taken[-1][0] // interval_ms + 1)]
    for at_ms, sample in taken:
        rows[at_ms // interval_ms].append(sample)
    usage = np.zeros((len(rows), 4))
    whole = np.array([1, max(1, hardware.mem_mib), 1, max(1, hardware.pcie_mbps)])
    for number, samples in enumerate(rows):
        if not samples:
            usage[number] = usage[number - 1] if number else np.nan
            continue
        values = np.array(samples, dtype=np.float64)
        row = values.mean(axis=0)
        row[1] = max(0.0, values[:, 1].max() - before_mib)
        usage[number] = row / whole
    usage[:, 3] = np.minimum(usage[:, 3], 1.0) if hardware.pcie_mbps else 0.0
    usage.flags.writeable = False
    return checked(
        Profile(application, kind, input_bytes, parameters, hardware, interval_ms, usage, cores_are)
    )


def _model_of(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> GpuModel:
    """The card as NVML knows it; what it does not tell, from the catalogue's card that its name holds."""
    name, memory = ctypes.create_string_buffer(96), Memory()
    _asked(nvml, "nvmlDeviceGetName", handle, name, 96)
    _asked(nvml, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    cores = ctypes.c_uint()
    _asked(nvml, "nvmlDeviceGetNumGpuCores", handle, ctypes.byref(cores))
    full_name = name.value.decode(errors="replace")
    words = full_name.upper().replace("-", " ").split()
    known = next((model for key, model in GPU_MODELS.items() if key.split("-")[0] in words), GpuModel(""))
    return GpuModel(
        *(full_name or known.name, known.architecture, memory.total >> 20),
        *(cores.value or known.cores, known.pcie_mbps),
    )


def _asked(nvml: ctypes.CDLL, function: str, *arguments: object) -> int:
    """The status of a call, −1 where this NVML does not have it."""
    call = getattr(nvml, function, None)
    return -1 if call is None else int(call(*arguments))


FIELD = 1002
INTERVAL_MS = 100


class SmActivity:
    """The last value that DCGM printed of one GPU; `open` asks it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.latest: float | None = None
        """0…1; None: there was none yet."""
        self._process = process
        self._answered = threading.Event()
        self._end = weakref.finalize(self, process.kill)  # at the latest when this process ends
        threading.Thread(target=self._follow, daemon=True).start()

    @classmethod
    def open(cls, index: int = 0, command: str = "dcgmi", *, wait_s: float = 3.0) -> SmActivity | None:
        """That of the GPU of this number; None where there is no DCGM, or it prints no number within this time."""
        asked = [command, "dmon", "-i", str(index), "-e", str(FIELD), "-d", str(INTERVAL_MS)]
        try:
            process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return None
        made = cls(process)
        made._answered.wait(wait_s)
        if made.latest is not None:
            return made
        made.close()
        return None

    def close(self) -> None:
        self._end()
        self._process.wait()

    def _follow(self) -> None:
        """Take over each number; a line reads `GPU 0    0.532`, others are headings or say N/A."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                words = line.split()
                value = words[-1].replace(".", "", 1) if len(words) >= 3 and words[0] == "GPU" else ""
                if value.isdecimal() and float(words[-1]) <= 1:
                    self.latest = float(words[-1])
                    self._answered.set()
        self._answered.set()
