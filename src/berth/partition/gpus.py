"""The GPUs of this machine, asked from NVML (or the fake one)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from berth.errors import PartitionError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or MIG instance, as NVML counts."""

    index: int
    uuid: str
    mem_mib: int


def plain_uuid(uuid: str) -> str:
    """A GPU's UUID as its region's files are named by it."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


class Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def open_nvml(driver_folder: Path | None = None) -> ctypes.CDLL:
    """NVML, started; the one in `driver_folder` where one is given."""
    name = "libnvidia-ml.so.1"
    try:
        nvml = ctypes.CDLL(str(driver_folder / name) if driver_folder else name)
    except OSError as error:
        raise PartitionError(
            f"there is no {name} on this machine; install NVIDIA's driver, or use --fake-gpu with a command that"
            " has it"
        ) from error
    if nvml.nvmlInit_v2() != 0:
        raise PartitionError(
            "NVML does not start; see what nvidia-smi says"
            if driver_folder is None
            else "the fake card cannot be made or read; free some room in /dev/shm, "
            "or name its file elsewhere with BERTH_FAKE_CARD"
        )
    return nvml


class _ProcessInfo(ctypes.Structure):
    """NVML's nvmlProcessInfo_t of versions 2 and 3."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


_UNKNOWN_BYTES = 2**64 - 1
_MOST_PROCESSES = 4096
_NOT_FOUND = 6  # NVML_ERROR_NOT_FOUND: no process was busy


def bytes_of_processes(uuid: str, driver_folder: Path | None = None) -> dict[int, int]:
    """The memory that NVML shows for each process of a GPU, by its pid; without those that it does not tell."""
    found = processes_of(open_nvml(driver_folder), handle_of(uuid, driver_folder), "Compute")
    return {pid: held_bytes for pid, held_bytes in found.items() if held_bytes is not None}


def processes_of(nvml: ctypes.CDLL, handle: ctypes.c_void_p, kind: str) -> dict[int, int | None]:
    """The processes of a GPU, `Compute` or `Graphics`, by their pids, with the memory of each; None: NVML does not tell
    it."""
    listed, count = (_ProcessInfo * _MOST_PROCESSES)(), ctypes.c_uint(_MOST_PROCESSES)
    for version in (3, 2):
        ask = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_v{version}", None)
        if ask is not None and ask(handle, ctypes.byref(count), listed) == 0:
            return {
                one.pid: None if one.bytes == _UNKNOWN_BYTES else int(one.bytes)
                for one in listed[: count.value]
            }
    return {}


class _Busy(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("time_us", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


def busy_of_processes(
    nvml: ctypes.CDLL, handle: ctypes.c_void_p, since_us: int
) -> tuple[dict[int, float] | None, int]:
    """Per cent of a GPU's multiprocessors' time that each process took since then, by its pid, and the time of the last
    sample; None if NVML does not tell."""
    samples, count = (_Busy * 1024)(), ctypes.c_uint(1024)
    ask = getattr(nvml, "nvmlDeviceGetProcessUtilization", None)
    answer = ask and ask(handle, samples, ctypes.byref(count), ctypes.c_ulonglong(since_us))
    if answer not in (0, _NOT_FOUND):
        return None, since_us
    found: dict[int, float] = {}
    for sample in samples[: count.value] if answer == 0 else ():
        found[sample.pid] = max(found.get(sample.pid, 0.0), float(sample.sm))
        since_us = max(since_us, int(sample.time_us))
    return found, since_us


def free_bytes(uuid: str, driver_folder: Path | None = None) -> int:
    """The memory of a GPU that is free now. Raises PartitionError if NVML does not tell it."""
    memory = Memory()
    if open_nvml(driver_folder).nvmlDeviceGetMemoryInfo(handle_of(uuid, driver_folder), ctypes.byref(memory)):
        raise PartitionError(
            f"NVML does not tell how much memory GPU {uuid} has free; see what nvidia-smi says"
        )
    return int(memory.free)


def driver_version(driver_folder: Path | None = None) -> str:
    """The version of the driver, as NVML writes it; empty if it does not."""
    text = ctypes.create_string_buffer(96)
    failed = open_nvml(driver_folder).nvmlSystemGetDriverVersion(text, 96)
    return "" if failed else text.value.decode(errors="replace")


def handle_of(uuid: str, driver_folder: Path | None = None) -> ctypes.c_void_p:
    """NVML's handle of a GPU. Raises PartitionError if there is none of this UUID."""
    handle = ctypes.c_void_p()
    if open_nvml(driver_folder).nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != 0:
        raise PartitionError(f"NVML has no GPU {uuid}; see what nvidia-smi says")
    return handle


def minor_of(gpu: Gpu, driver_folder: Path | None = None) -> int:
    """The number of a GPU's /dev/nvidiaN; its index where NVML does not tell."""
    number = ctypes.c_uint()
    ask = getattr(open_nvml(driver_folder), "nvmlDeviceGetMinorNumber", None)
    known = ask is not None and ask(handle_of(gpu.uuid, driver_folder), ctypes.byref(number)) == 0
    return number.value if known else gpu.index


def gpus(driver_folder: Path | None = None) -> list[Gpu]:
    """All of them, in NVML's order; from the NVML in `driver_folder` where one is given."""
    nvml, count = open_nvml(driver_folder), ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        raise PartitionError("NVML does not tell how many GPUs there are; see what nvidia-smi says")
    found = []
    for index in range(count.value):
        handle, memory, uuid = ctypes.c_void_p(), Memory(), ctypes.create_string_buffer(96)
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
            continue
        if (
            nvml.nvmlDeviceGetUUID(handle, uuid, 96) == 0
            and nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
        ):
            found.append(Gpu(index, uuid.value.decode(), memory.total >> 20))
    return found


def gpu_named(text: str, among: list[Gpu]) -> Gpu:
    """By index, or by UUID or the beginning of one, with or without `GPU-`."""
    by_index = [gpu for gpu in among if text == str(gpu.index)]
    begins = text.removeprefix("GPU-").lower()
    by_uuid = [gpu for gpu in among if len(begins) >= 4 and gpu.uuid.removeprefix("GPU-").startswith(begins)]
    matching = by_index or by_uuid
    choices = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in among) or "none"
    if len(matching) > 1:
        raise PartitionError(
            f"more than one GPU begins with '{text}'; write more of it; there are: {choices}"
        )
    if not matching:
        raise PartitionError(f"no GPU '{text}'; there are: {choices}")
    return matching[0]


def knows_instance(uuid: str, driver_folder: Path | None = None) -> bool:
    """Whether NVML has a MIG instance of this UUID, such as one that was made with nvidia-smi."""
    try:
        handle_of(uuid, driver_folder)
    except PartitionError:
        return False
    return True
