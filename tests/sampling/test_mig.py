"""Instances of a GPU that is split by MIG are GPUs of their own, over a stand-in for the module of NVML."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from berth.sampling.nvml import _Gpu
from berth.sampling.readings import GpuReading, uses

GIB = 2**30


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value


class MismatchError(NvmlError):
    pass


class FakeNvml(ModuleType):
    """GPU 'whole', and instances of it under MIG: name, GPU instance, pids."""

    NVML_DEVICE_MIG_ENABLE = 1
    NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND = 0, 3, 6
    NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_GPU_IS_LOST = 13, 15
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_GPM_METRICS_GET_VERSION = 1
    NVMLError = NvmlError
    NVMLLibraryMismatchError = MismatchError

    def __init__(self, instances: dict[str, list[int]], counters: bool) -> None:
        super().__init__("fake")
        self.instances = instances
        self.counters = counters
        self.sampled: list[tuple[str, int]] = []

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        return [1, 1] if self.instances else [0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, number: int) -> str:  # noqa: N802
        if number % 2 or number // 2 >= len(self.instances):  # the numbers have gaps
            raise NvmlError(self.NVML_ERROR_NOT_FOUND)
        return list(self.instances)[number // 2]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=20 * GIB, used=5 * GIB if self.instances.get(handle) else 0)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=GIB) for pid in self.instances.get(handle, ())]

    def nvmlDeviceGetGpuInstanceId(self, handle: str) -> int:  # noqa: N802
        return 5 + list(self.instances).index(handle)

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> SimpleNamespace:  # noqa: N802
        assert handle == "whole"
        return SimpleNamespace(isSupportedDevice=self.counters)

    def nvmlGpmSampleAlloc(self) -> object:  # noqa: N802
        return object()

    def nvmlGpmSampleFree(self, sample: object) -> None:  # noqa: N802
        pass

    def nvmlGpmSampleGet(self, handle: str, sample: object) -> None:  # noqa: N802
        pass

    def nvmlGpmMigSampleGet(self, handle: str, instance: int, sample: object) -> None:  # noqa: N802
        self.sampled.append((handle, instance))

    def c_nvmlGpmMetricsGet_t(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(metrics=[SimpleNamespace(value=0.0, nvmlReturn=0) for _ in range(2)])

    def nvmlGpmMetricsGet(self, question: SimpleNamespace) -> SimpleNamespace:  # noqa: N802
        for metric, value in zip(question.metrics, (60.0, 25.0), strict=True):
            metric.value = value
        return question

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlDeviceGet"):

            def refused(*_: object) -> None:
                raise NvmlError(self.NVML_ERROR_NOT_SUPPORTED)

            return refused
        raise AttributeError(name)


def test_each_instance_of_mig_is_a_gpu_of_its_own() -> None:
    nvml = FakeNvml({"MIG-a": [10], "MIG-b": []}, counters=True)
    gpu = _Gpu(nvml, "whole")
    gpu.read(3)
    first, second = gpu.read(3)
    assert nvml.sampled == [("whole", 5), ("whole", 6)] * 2
    assert (first.index, first.uuid, first.use_pct, first.sm_pct) == (3, "MIG-a", 60.0, 25.0)
    assert (first.mem_used_bytes, first.mem_total_bytes) == (5 * GIB, 20 * GIB)
    assert [process.pid for process in first.processes] == [10]
    assert (second.index, second.uuid, second.processes, gpu.width) == (4, "MIG-b", (), 2)
    (found,) = uses([first, second], {10: "7"}, {"7": ("MIG-a", "MIG-b")})
    assert (found.gpus, found.use, found.mem) == (2, pytest.approx(1.2), 0.25)


def test_of_an_instance_without_counters_nobody_knows_the_use() -> None:
    gpu = _Gpu(FakeNvml({"MIG-a": [10]}, counters=False), "whole")
    (reading,) = gpu.read(0)
    assert (reading.use_pct, reading.sm_pct, reading.mem_used_bytes) == (None, None, 5 * GIB)


def test_instances_come_and_go_between_looks() -> None:
    nvml = FakeNvml({"MIG-a": []}, counters=True)
    gpu = _Gpu(nvml, "whole")
    assert [each.uuid for each in gpu.read(0)] == ["MIG-a"]
    nvml.instances = {"MIG-b": [], "MIG-c": []}
    assert [each.uuid for each in gpu.read(0)] == ["MIG-b", "MIG-c"]
    nvml.instances = {}
    found: list[GpuReading] = gpu.read(0)
    assert [each.uuid for each in found] == ["whole"]
