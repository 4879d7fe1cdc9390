"""Reads the GPUs of this node through NVML (nvidia-ml-py); the library is libnvidia-ml.so.1 of the driver."""

from __future__ import annotations

import logging
from contextlib import suppress
from types import ModuleType, TracebackType
from typing import Any, Final

from berth.errors import MissingExtraError, SamplingError
from berth.sampling.readings import GpuReading, ProcessReading

_log = logging.getLogger(__name__)

_COMPUTE_USE: Final = 1
"""NVML_GPM_METRIC_GRAPHICS_UTIL: per cent of the time in which a kernel ran; of Hopper and later."""
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
            self._gpus = [_Gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(number)) for number in range(count)]
        except nvml.NVMLError as error:
            raise SamplingError(
                f"NVML cannot be used: {error}; berth sample needs NVIDIA's driver with libnvidia-ml.so.1, as"
                " nvidia-smi does"
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

        Each instance of a GPU that is split by MIG is a GPU of its own, as Slurm counts them; they are numbered in
        NVML's order, GPU by GPU. A GPU that is lost is told once, and left out from then on: it comes
        back with a restart of the node or of this process. Raises SamplingError if no GPU is left.
        """
        found: list[GpuReading] = []
        index = 0
        for gpu in self._gpus:
            if not gpu.lost:
                try:
                    found.extend(gpu.read(index))
                except SamplingError as error:
                    gpu.lost = str(error)
                    _log.warning("%s; the other GPUs are sampled on", error)
            index += gpu.width
        if self._gpus and all(gpu.lost for gpu in self._gpus):
            raise SamplingError(f"{self._gpus[-1].lost}; no GPU is left to sample")
        return tuple(found)


class _Gpu:
    """One GPU, or one instance of it, and what it does not tell, so that it is not asked for that again."""

    def __init__(self, nvml: ModuleType, handle: Any, instance_of: Any = None) -> None:
        self._nvml = nvml
        self._handle = handle
        self._uuid = str(nvml.nvmlDeviceGetUUID(handle))
        self._mute: set[str] = set()
        self._since_us = 0
        self._is_instance = instance_of is not None
        self._instances: dict[str, _Gpu] = {}
        self.lost = ""
        """Why it is read no more."""
        self.width = 1
        """How many numbers it takes: one, or one for each instance."""
        self._gpm: _Gpm | None = None
        with suppress(nvml.NVMLError, AttributeError):
            whole = instance_of if self._is_instance else handle
            if nvml.nvmlGpmQueryDeviceSupport(whole).isSupportedDevice:
                number = nvml.nvmlDeviceGetGpuInstanceId(handle) if self._is_instance else None
                self._gpm = _Gpm(nvml, whole, number)

    def read(self, index: int) -> list[GpuReading]:
        """The GPU, or its instances if it is split by MIG; the first of them has this index."""
        if self._is_split():
            instances = self._instances_now()
            self.width = len(instances)
            return [reading for number, one in enumerate(instances) for reading in one.read(index + number)]
        self.width = 1
        memory = self._ask("MemoryInfo")
        ways = self._nvml.NVML_PCIE_UTIL_TX_BYTES, self._nvml.NVML_PCIE_UTIL_RX_BYTES
        links = [self._ask("PcieThroughput", way) for way in ways]
        use, sm = self._gpm.read() if self._gpm else (None, None)
        if not self._is_instance:  # NVML tells no utilisation of one; its counters do, where it has them
            rates = self._ask("UtilizationRates")
            use = rates and rates.gpu
        one = GpuReading(
            index=index,
            uuid=self._uuid,
            mem_total_bytes=int(memory.total) if memory else 0,
            mem_used_bytes=int(memory.used) if memory else None,
            use_pct=use,
            sm_pct=sm,
            pcie_kbps=None if None in links else sum(links),
            power_mw=self._ask("PowerUsage"),
            processes=self._processes(),
        )
        return [one]

    def _is_split(self) -> bool:
        """Whether MIG is on; a driver that has no MIG says that it does not know the question."""
        mode = None if self._is_instance else self._ask("MigMode")
        return mode is not None and mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE

    def _instances_now(self) -> list[_Gpu]:
        """The instances that there are now, which may have been made or removed since the last look."""
        nvml = self._nvml
        now: dict[str, _Gpu] = {}
        for number in range(self._ask("MaxMigDeviceCount") or 0):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(self._handle, number)
                uuid = str(nvml.nvmlDeviceGetUUID(handle))
                now[uuid] = self._instances.get(uuid) or _Gpu(nvml, handle, self._handle)
            except nvml.NVMLError:
                continue  # there is no instance of this number
        for uuid, gone in self._instances.items():
            if uuid not in now:
                gone.close()
        self._instances = now
        return list(now.values())

    def close(self) -> None:
        for instance in self._instances.values():
            instance.close()
        if self._gpm:
            self._gpm.close()

    def _processes(self) -> tuple[ProcessReading, ...]:
        held: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            for process in self._ask(f"{kind}RunningProcesses") or ():
                held[process.pid] = process.usedGpuMemory
        busy: dict[int, float] = {}
        for sample in self._utilisation():
            busy[sample.pid] = float(sample.smUtil)  # the latest of a process comes last
            self._since_us = max(self._since_us, int(sample.timeStamp))
        by_process = "by process" not in self._mute
        return tuple(
            ProcessReading(pid, memory, busy.get(pid, 0.0) if by_process else None)
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

    def _ask(self, what: str, *words: object) -> Any:
        """The answer of `nvmlDeviceGet…`; None where this card does not give it."""
        if what in self._mute:
            return None
        nvml = self._nvml
        try:
            return getattr(nvml, f"nvmlDeviceGet{what}")(self._handle, *words)
        except nvml.NVMLLibraryMismatchError:  # a driver older than this form of the question
            self._mute.add(what)
            return None
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                raise SamplingError(f"GPU {self._uuid} is lost: {error}") from error
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                self._mute.add(what)
            return None


class _Gpm:
    """What the card's own counters say between two looks at them, of a GPU or of one of its instances."""

    def __init__(self, nvml: ModuleType, handle: Any, instance: int | None) -> None:
        self._nvml = nvml
        self._handle = handle
        self._instance = instance
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        self._seen = False

    def read(self) -> tuple[float | None, float | None]:
        """Time in which a kernel ran, and SM activity, in per cent; None where the card does not tell."""
        nvml = self._nvml
        before, now = self._samples
        try:
            if self._instance is None:
                nvml.nvmlGpmSampleGet(self._handle, now)
            else:
                nvml.nvmlGpmMigSampleGet(self._handle, self._instance, now)
            self._samples = [now, before]
            if not self._seen:
                self._seen = True
                return None, None
            question = nvml.c_nvmlGpmMetricsGet_t()
            question.version = nvml.NVML_GPM_METRICS_GET_VERSION
            question.numMetrics = 2
            question.sample1, question.sample2 = before, now
            question.metrics[0].metricId = _COMPUTE_USE
            question.metrics[1].metricId = _SM_ACTIVITY
            answers = nvml.nvmlGpmMetricsGet(question).metrics
        except nvml.NVMLError:
            return None, None
        use, sm = (
            float(answers[place].value) if answers[place].nvmlReturn == nvml.NVML_SUCCESS else None
            for place in (0, 1)
        )
        return use, sm

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
