"""Instances of a GPU that is cut up by its hardware (Multi-Instance GPU), made and taken away through NVML."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from berth.errors import PartitionError
from berth.partition.gpus import Gpu, Memory, handle_of, open_nvml
from berth.partition.hardware import Hardware

_PROFILES, _COMPUTE_PROFILES = 32, 16
"""More than any NVML has numbers for; those that a card lacks answer with an error."""
_NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _IN_USE, _INSUFFICIENT = 3, 4, 6, 19, 23

_uint, _handle = ctypes.c_uint, ctypes.c_void_p


def _uints(names: str) -> list[tuple[str, Any]]:
    return [(name, _uint) for name in names.split()]


_PARTS = "multiprocessors copy_engines decoders encoders jpeg ofa"


class _ProfileInfo(ctypes.Structure):
    """nvmlGpuInstanceProfileInfo_v2_t"""

    _fields_ = (
        *_uints(f"version id p2p slices instances {_PARTS}"),
        ("mem_mib", ctypes.c_ulonglong),
        ("name", ctypes.c_char * 96),
    )


class _ComputeProfileInfo(ctypes.Structure):
    """nvmlComputeInstanceProfileInfo_t"""

    _fields_ = _uints(f"id slices instances {_PARTS}")


class _Placement(ctypes.Structure):
    """nvmlGpuInstancePlacement_t"""

    _fields_ = _uints("start size")


class _GpuInstanceInfo(ctypes.Structure):
    """nvmlGpuInstanceInfo_t"""

    _fields_ = (("device", _handle), ("id", _uint), ("profile", _uint), ("at", _Placement))


class _ComputeInstanceInfo(ctypes.Structure):
    """nvmlComputeInstanceInfo_t"""

    _fields_ = (("device", _handle), ("gpu_instance", _handle), *_uints("id profile start size"))


def is_cut(gpu: Gpu, driver_folder: Path | None = None) -> bool:
    """Whether MIG is on."""
    modes = _mode(open_nvml(driver_folder), handle_of(gpu.uuid, driver_folder))
    return modes is not None and modes[0] == 1


def create_instance(gpu: Gpu, profile: str, driver_folder: Path | None = None) -> Hardware:
    """Make a GPU instance of a profile such as `2g.10gb`, with one compute instance of all of it.

    Raises PartitionError where the card has no such, or no room.
    """
    nvml, device = open_nvml(driver_folder), handle_of(gpu.uuid, driver_folder)
    modes = _mode(nvml, device)
    if modes is None:
        raise PartitionError(
            f"GPU {gpu.index} or its driver does not support MIG; use --mem and --core-pct, or --mps"
        )
    now, pending = modes
    if now != 1:
        after = " once it is reset" if pending == 1 else ""
        raise PartitionError(
            f"MIG is off on GPU {gpu.index}{after}; turn it on with: nvidia-smi -i {gpu.index} -mig 1"
        )
    chosen = _profile_named(nvml, device, gpu, profile)
    made = _handle()
    asked = ("nvmlDeviceCreateGpuInstance", device, chosen.id, ctypes.byref(made))
    _check(_call(nvml, *asked), f"an instance {profile} of GPU {gpu.index}")
    compute = _handle()
    try:
        full = _compute_profile(nvml, made, chosen.slices)
        _check(
            _call(nvml, "nvmlGpuInstanceCreateComputeInstance", made, full, ctypes.byref(compute)),
            f"the compute instance of {profile} on GPU {gpu.index}",
        )
        return _describe(nvml, device, made, compute, gpu, profile)
    except PartitionError:
        if compute.value:
            _call(nvml, "nvmlComputeInstanceDestroy", compute)
        _call(nvml, "nvmlGpuInstanceDestroy", made)
        raise


def destroy_instance(
    gpu_uuid: str, gpu_instance: int, compute_instance: int, driver_folder: Path | None = None
) -> None:
    """Take an instance away; one that is gone already, as after a restart, is none to take."""
    nvml = open_nvml(driver_folder)
    device, made, compute = handle_of(gpu_uuid, driver_folder), _handle(), _handle()
    what = f"the instance {gpu_instance} of {gpu_uuid}"
    found = _call(nvml, "nvmlDeviceGetGpuInstanceById", device, gpu_instance, ctypes.byref(made))
    if found in (_NOT_FOUND, _NOT_SUPPORTED):  # not supported: MIG is off
        return
    _check(found, what)
    got = _call(nvml, "nvmlGpuInstanceGetComputeInstanceById", made, compute_instance, ctypes.byref(compute))
    if got != _NOT_FOUND:
        _check(got, what)
        _check(_call(nvml, "nvmlComputeInstanceDestroy", compute), what)
    _check(_call(nvml, "nvmlGpuInstanceDestroy", made), what)


def _profile_named(nvml: ctypes.CDLL, device: Any, gpu: Gpu, wanted: str) -> _ProfileInfo:
    profiles = list(_profiles(nvml, device))
    for profile in profiles:
        if _plain(profile) == wanted:
            return profile
    names = sorted({_plain(profile) for profile in profiles}, key=lambda name: (len(name), name))
    raise PartitionError(
        f"no MIG profile '{wanted}' on GPU {gpu.index}; it has: {', '.join(names) or 'none that NVML names'}"
    )


def _mode(nvml: ctypes.CDLL, device: Any) -> tuple[int, int] | None:
    """Whether MIG is on (1), and whether it will be after a reset; None if the GPU or its driver has none."""
    mode, pending = _uint(), _uint()
    failed = _call(nvml, "nvmlDeviceGetMigMode", device, ctypes.byref(mode), ctypes.byref(pending))
    return None if failed else (mode.value, pending.value)


def _plain(profile: _ProfileInfo) -> str:
    """`2g.10gb`, of which NVML writes `MIG 2g.10gb`."""
    return bytes(profile.name).split(b"\0")[0].decode().removeprefix("MIG ")


def _profiles(nvml: ctypes.CDLL, device: Any) -> Iterator[_ProfileInfo]:
    for number in range(_PROFILES):
        info = _ProfileInfo(version=ctypes.sizeof(_ProfileInfo) | 2 << 24)
        if _call(nvml, "nvmlDeviceGetGpuInstanceProfileInfoV", device, number, ctypes.byref(info)) == 0:
            yield info


def _compute_profile(nvml: ctypes.CDLL, made: Any, slices: int) -> int:
    """The profile of a compute instance that has all of its GPU instance."""
    for number in range(_COMPUTE_PROFILES):
        info = _ComputeProfileInfo()
        asked = ("nvmlGpuInstanceGetComputeInstanceProfileInfo", made, number, 0, ctypes.byref(info))
        if _call(nvml, *asked) == 0 and info.slices == slices:
            return int(info.id)
    raise PartitionError(
        f"the driver has no compute instance of {slices} slices; make it with nvidia-smi mig"
    )


def _describe(nvml: ctypes.CDLL, device: Any, made: Any, compute: Any, gpu: Gpu, profile: str) -> Hardware:
    whole, part, minor = _GpuInstanceInfo(), _ComputeInstanceInfo(), _uint()
    what = f"the new instance {profile}"
    _check(_call(nvml, "nvmlGpuInstanceGetInfo", made, ctypes.byref(whole)), what)
    _check(_call(nvml, "nvmlComputeInstanceGetInfo_v2", compute, ctypes.byref(part)), what)
    _check(_call(nvml, "nvmlDeviceGetMinorNumber", device, ctypes.byref(minor)), what)
    uuid, memory = ctypes.create_string_buffer(96), Memory()
    _check(_call(nvml, "nvmlDeviceGetUUID", _handle(part.device), uuid, 96), what)
    _check(_call(nvml, "nvmlDeviceGetMemoryInfo", _handle(part.device), ctypes.byref(memory)), what)
    ids = (whole.id, part.id, minor.value)
    return Hardware("mig", gpu.uuid, uuid.value.decode(), memory.total >> 20, profile, *ids)


def _call(nvml: ctypes.CDLL, name: str, *words: object) -> int:
    """An NVML function's answer; 13 (function not found) where this NVML lacks it."""
    function = getattr(nvml, name, None)
    return 13 if function is None else int(function(*words))


def _check(answer: int, what: str) -> None:
    reasons = {
        _NO_PERMISSION: "only root may; run it with sudo",
        _INSUFFICIENT: "the GPU has no room for it; remove other instances first (nvidia-smi mig -lgi)",
        _IN_USE: "it is in use; end the programs that use it first",
    }
    if answer != 0:
        reason = reasons.get(answer, "see what nvidia-smi mig says")
        raise PartitionError(f"{what}: NVML refuses with error {answer}; {reason}")
