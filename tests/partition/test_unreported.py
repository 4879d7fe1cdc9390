"""What the driver does not tell is charged cautiously or refused: a failing question lifts no limit."""

from __future__ import annotations

import shutil

import pytest
from tests.partition.conftest import Card

LIMIT = {"BERTH_GPU_MEM_MIB": "1024", "BERTH_FAKE_WATCH": None}
QUESTIONS = [
    "cuGraphGetNodes",
    "cuGraphNodeGetType",
    "cuGraphMemAllocNodeGetParams",
    "cuCtxGetCurrent",
    "cuDeviceGetMemPool",
    "cuMemPoolGetAttribute",
]


@pytest.mark.parametrize("call", QUESTIONS)
def test_a_question_that_fails_lifts_no_limit(card: Card, call: str) -> None:
    code, said = card.run("edges", "every_path", "1024", **LIMIT, BERTH_FAKE_ERRORS=f"{call}:0:999")
    assert (code, said) == (0, "done\n")
    assert card.log != ""


def driver_without(card: Card, symbol: str) -> str:
    """A folder with a fake driver that does not export a symbol."""
    folder = card.folder / "driver"
    shutil.copytree(card.native / "fake", folder)
    library = folder / "libcuda.so.1"
    library.write_bytes(
        library.read_bytes().replace(b"\0" + symbol.encode() + b"\0", b"\0x" + symbol[1:].encode() + b"\0")
    )
    return str(folder)


@pytest.mark.parametrize("call", QUESTIONS)
def test_a_question_that_cannot_be_asked_lifts_no_limit(card: Card, call: str) -> None:
    driver = driver_without(card, call)
    code, said = card.run("edges", "every_path", "1024", **LIMIT, LD_LIBRARY_PATH=driver)
    assert (code, said) == (0, "done\n")


@pytest.mark.parametrize("family", ["async", "async_per_thread"])
def test_streams_allocate_by_a_driver_that_does_not_name_their_pool(card: Card, family: str) -> None:
    """What is in use counts, in whole steps."""
    driver = driver_without(card, "cuDeviceGetMemPool")
    assert card.run("check", family, LD_LIBRARY_PATH=driver) == (0, "")


@pytest.mark.parametrize("family", ["first_use", "first_kernel"])
def test_functions_count_by_a_driver_that_loads_them_when_they_are_asked_for(card: Card, family: str) -> None:
    """Drivers before CUDA 12.4 have no cuFuncLoad, and load what cuModuleGetFunction names."""
    lazy = {"BERTH_FAKE_LIKE": "lazy,asked", "LD_LIBRARY_PATH": driver_without(card, "cuFuncLoad")}
    assert card.run("check", family, **lazy) == (0, "")


@pytest.mark.parametrize("absent", [True, False])
def test_no_gpu_is_there_if_the_driver_does_not_count_them(card: Card, absent: bool) -> None:
    limits = dict(LIMIT) | (
        {"LD_LIBRARY_PATH": driver_without(card, "cuDeviceGetCount")}
        if absent
        else {"BERTH_FAKE_ERRORS": "cuDeviceGetCount:1:999"}
    )
    assert card.run("edges", "every_path", "1024", **limits) == (0, "no GPU\n")
    assert "no GPU: the driver does not tell how many GPUs there are (cuDeviceGetCount: error" in card.log


def test_managed_memory_counts_without_a_context_and_by_default_pools(card: Card) -> None:
    assert card.run("edges", "managed", "1024", **LIMIT) == (0, "done\n")


def test_a_graph_is_charged_to_the_gpu_of_each_node(card: Card) -> None:
    limits = {"BERTH_GPU_MEM_MIB": "0:4096,1:100", "BERTH_FAKE_WATCH": None, "BERTH_FAKE_GPUS": "2"}
    assert card.run("edges", "second_gpu", "200", **limits) == (0, "done\n")


def test_a_module_that_cannot_be_unloaded_stays_counted(card: Card) -> None:
    """One may be loaded before its size is known; after it nothing more is."""
    limits = LIMIT | {"BERTH_FAKE_ERRORS": "cuModuleUnload:0:999", "BERTH_FAKE_MODULE_KIB": "3000000"}
    code, said = card.run("edges", "modules", "1024", **limits, BERTH_FAKE_NVML="missing")
    assert (code, said) == (0, "module on GPU 0: 2929 MiB\n0 modules\ndone\n")
    assert "are loaded and cannot be unloaded" in card.log


def test_modules_count_though_the_list_of_nvml_lags(card: Card) -> None:
    limits = LIMIT | {
        "BERTH_FAKE_NVML": "lags",
        "BERTH_FAKE_CONTEXT_MIB": "300",
        "BERTH_FAKE_MODULE_KIB": "200000",
    }
    assert card.run("edges", "modules", "1024", **limits) == (0, "3 modules\ndone\n")
