"""The fake driver's unkindnesses, taken pairwise: no instant is above the limit, and nothing is left."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from berth.partition.regions import read, regions_in
from conftest import Card

SWITCHES: dict[str, dict[str, str]] = {
    "graphs apart": {"BERTH_FAKE_LIKE": "nodes"},
    "lazy modules": {"BERTH_FAKE_LIKE": "lazy"},
    "lazy heap": {"BERTH_FAKE_LIKE": "heap"},
    "small steps": {"BERTH_FAKE_POOL_MIB": "2"},
    "old driver": {"BERTH_FAKE_VERSION": "11080"},
    "no attributes": {"BERTH_FAKE_ERRORS": "cuMemPoolGetAttribute:0:1,cuDeviceGetGraphMemAttribute:0:1"},
    "no limits told": {"BERTH_FAKE_ERRORS": "cuCtxGetLimit:0:801"},
    "swap": {"BERTH_GPU_OVERSUBSCRIBE_MIB": "32"},
    "two GPUs": {"BERTH_FAKE_GPUS": "2"},
    "NVML without processes": {"BERTH_FAKE_NVML": "total"},
    "NVML with 0 bytes": {"BERTH_FAKE_NVML": "own"},
    "no NVML": {"BERTH_FAKE_NVML": "missing"},
}


def together(first: str, second: str) -> dict[str, str]:
    """Both switches; lists of one variable are joined."""
    joined = dict(SWITCHES[first])
    for name, value in SWITCHES[second].items():
        if name not in joined:
            joined[name] = value
        else:
            joined[name] = f"{joined[name]},{value}"
    return joined


PAIRS = list(combinations(SWITCHES, 2))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_no_instant_is_above_the_limit_under_any_two_switches(card: Card, first: str, second: str) -> None:
    """Eight processes that do all that memory can be had by, some of which are killed."""
    limits = together(first, second) | {"BERTH_LOG": ""}
    code, output = card.run("churn", "8", "1", "50", **limits)
    assert code == 0, output
    seen = json.loads(output)
    assert (seen["left_bytes"], seen["driver_bytes"], seen["failed"]) == (0, 0, 0)
    assert seen["violations"] == 0, output
    assert seen["operations"] > 20  # a busy machine does few in a second
    assert seen["refused"] > 0
    region = card.folder / "region"
    (now, *_) = (read(region, uuid, "") for uuid in regions_in(region))
    assert (now.used_bytes, now.swapped_bytes, now.processes) == (0, 0, ())


@pytest.mark.slow
def test_the_same_without_the_library_goes_over(card: Card) -> None:
    """A checker that saw nothing then would be none."""
    _, output = card.run("churn", "8", "2", "100", LD_PRELOAD=None)
    assert json.loads(output)["violations"] > 0
