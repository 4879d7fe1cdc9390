"""Reads the GPUs of this node through NVML (nvidia-ml-py); the library is libnvidia-ml.so.1 of the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType, TracebackType
from typing import Any, Final

from berth.errors import MissingExtraError, SamplingError
from berth.sampling.readings import GpuReading, ProcessReading

__all__ = ["Nvml"]

_log = logging.getLogger(__name__)

_SM_ACTIVITY: Final = 2
"""NVML_GPM_METRIC_SM_UTIL: what DCGM calls SM activity; of Hopper and later."""


class Nvml:
    """The GPUs of this node, opened once and read many times; a context manager."""

    def __init__(self) -> None:
        self._nvml = _library()
        self._gpus: list[_Gpu] = []

    def __enter__(self) -> Nvml:
        nvml = self._nvml
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
            self._gpus = [_Gpu(nvml, index) for index in range(count)]
        except nvml.NVMLError as error:
            raise SamplingError(
                f"NVML says: {error}. berth sample needs the NVIDIA driver of the node (libnvidia-ml.so.1); "
                "where nvidia-smi works, it does"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for gpu in self._gpus:
            gpu.close()
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def read(self) -> tuple[GpuReading, ...]:
        """All GPUs now; what processes took is since the last time.

        A GPU that is lost is told once, and left out from then on: it comes back with a restart of the node or of this
        process. Raises SamplingError if no GPU is left.
        """
        found: list[GpuReading] = []
        left: list[_Gpu] = []
        lost: SamplingError | None = None
        for gpu in self._gpus:
            try:
                found.append(gpu.read())
            except SamplingError as error:
                lost = error
                _log.warning("%s; the other GPUs are sampled on", error)
            else:
                left.append(gpu)
        self._gpus = left
        if lost is not None and not left:
            raise SamplingError(f"{lost}; no GPU is left to sample") from lost
        return tuple(found)


class _Gpu:
    """One GPU and what it does not tell, so that it is not asked for that again."""

    def __init__(self, nvml: ModuleType, index: int) -> None:
        self._nvml = nvml
        self._index = index
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self._uuid = str(nvml.nvmlDeviceGetUUID(self._handle))
        self._mute: set[str] = set()
        self._since_us = 0
        self._gpm: _Gpm | None = None
        with suppress(nvml.NVMLError, AttributeError):
            if nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                self._gpm = _Gpm(nvml, self._handle)

    def read(self) -> GpuReading:
        nvml, handle = self._nvml, self._handle
        memory = self._ask("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        use = self._ask("use", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        links = [
            self._ask(f"pcie{way}", lambda way=way: nvml.nvmlDeviceGetPcieThroughput(handle, way))  # type: ignore[misc]
            for way in (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES)
        ]
        return GpuReading(
            index=self._index,
            uuid=self._uuid,
            mem_total_bytes=int(memory.total) if memory else 0,
            mem_used_bytes=int(memory.used) if memory else None,
            use_pct=use,
            sm_pct=self._gpm.sm_pct() if self._gpm else None,
            pcie_kbps=None if None in links else sum(links),
            power_mw=self._ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle)),
            processes=self._processes(),
        )

    def close(self) -> None:
        if self._gpm:
            self._gpm.close()

    def _processes(self) -> tuple[ProcessReading, ...]:
        nvml, handle = self._nvml, self._handle
        held: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            ask = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses")
            for process in self._ask(kind, lambda ask=ask: ask(handle)) or ():  # type: ignore[misc]
                held[process.pid] = process.usedGpuMemory
        busy: dict[int, float] = {}
        for sample in self._utilisation():
            busy[sample.pid] = float(sample.smUtil)  # the latest of a process comes last
            self._since_us = max(self._since_us, int(sample.timeStamp))
        told = "by process" not in self._mute
        return tuple(
            ProcessReading(pid, memory, busy.get(pid, 0.0) if told else None)
            for pid, memory in sorted(held.items())
        )

    def _utilisation(self) -> list[Any]:
        if "by process" in self._mute:
            return []
        nvml = self._nvml
        try:
            return list(nvml.nvmlDeviceGetProcessUtilization(self._handle, self._since_us))
        except nvml.NVMLError as error:
            # Nothing has run since the last look: NVML says so as an error.
            if error.value not in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND):
                self._mute.add("by process")
            return []

    def _ask(self, what: str, question: Callable[[], Any]) -> Any:
        """An answer of the driver; None where this card does not give it."""
        if what in self._mute:
            return None
        nvml = self._nvml
        try:
            return question()
        except nvml.NVMLLibraryMismatchError:  # a driver older than this form of the question
            self._mute.add(what)
            return None
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                raise SamplingError(f"GPU {self._index} ({self._uuid}) is lost: {error}") from error
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                self._mute.add(what)
            return None


class _Gpm:
    """SM activity from the card's own counters, between two looks at them."""

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        self._seen = False

    def sm_pct(self) -> float | None:
        nvml = self._nvml
        before, now = self._samples
        try:
            nvml.nvmlGpmSampleGet(self._handle, now)
            self._samples = [now, before]
            if not self._seen:
                self._seen = True
                return None
            question = nvml.c_nvmlGpmMetricsGet_t()
            question.version = nvml.NVML_GPM_METRICS_GET_VERSION
            question.numMetrics = 1
            question.sample1, question.sample2 = before, now
            question.metrics[0].metricId = _SM_ACTIVITY
            answer = nvml.nvmlGpmMetricsGet(question).metrics[0]
        except nvml.NVMLError:
            return None
        return float(answer.value) if answer.nvmlReturn == nvml.NVML_SUCCESS else None

    def close(self) -> None:
        for sample in self._samples:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)


def _library() -> ModuleType:
    try:
        import pynvml
    except ImportError as error:
        raise MissingExtraError("berth sample", "sample") from error
    module: ModuleType = pynvml
    return module
