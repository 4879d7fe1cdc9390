"""All switches of the fake driver, pairwise: no instant is above the limit, nothing is left, every share is kept.

Each row of the table sets every switch, so that any two values of two switches come together in some row. In each,
eight processes take memory by every path there is while some are killed; then kernels are launched under a share.
"""

from __future__ import annotations

import json
import random
from itertools import combinations

import pytest
from tests.partition.conftest import Card
from tests.partition.test_shares import KINDS, POINTS, REAL, TELLING, VARYING, beside, run
from tests.partition.test_shares import program as program

from berth.partition.regions import read, regions_in

ERRORS = ["", "cuMemPoolGetAttribute:0:1,cuDeviceGetGraphMemAttribute:0:1", "cuCtxGetLimit:0:801"]
MEMORY = {
    "BERTH_FAKE_NVML": KINDS,
    "graphs apart": ["", "nodes"],
    "lazy modules": ["", "lazy"],
    "lazy heap": ["", "heap"],
    "BERTH_FAKE_POOL_MIB": ["32", "2"],
    "BERTH_FAKE_VERSION": ["13050", "11080"],
    "BERTH_FAKE_ERRORS": ERRORS,
    "BERTH_FAKE_GPUS": ["1", "2"],
}
COMPUTE = {
    "kernel": ["wave_1000", *VARYING],
    "wait": ["", " sync"],
    "neighbour": ["", "wave_1000", "spin_50000", "even_1000 sync"],
    "jump_ms": ["0", "-900000", "3600000"],
}
LIKE = ("graphs apart", "lazy modules", "lazy heap")
Row = dict[str, str]


def pairs(row: Row) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(pair) for pair in combinations(row.items(), 2)}


def pairwise(factors: dict[str, list[str]]) -> list[Row]:
    """Rows in which every two values of two factors come together at least once: the best of some drawn ones."""
    draw = random.Random(20261122)
    wanted = {
        frozenset([(one, a), (two, b)])
        for one, two in combinations(factors, 2)
        for a in factors[one]
        for b in factors[two]
    }
    rows = []
    while wanted:
        first = dict(draw.choice([tuple(sorted(pair)) for pair in sorted(wanted, key=sorted)]))
        drawn = [{name: draw.choice(values) for name, values in factors.items()} | first for _ in range(40)]
        best = max(drawn, key=lambda row: len(pairs(row) & wanted))
        wanted -= pairs(best)
        rows.append(best)
    return rows


ROWS = pairwise(MEMORY | COMPUTE)


def settings(row: Row, *left_out: str) -> dict[str, str]:
    """The environment of a row's switches of the driver."""
    like = ",".join(filter(None, (row[name] for name in LIKE)))
    named = {name: row[name] for name in MEMORY if name not in LIKE and name not in left_out}
    return {name: value for name, value in {**named, "BERTH_FAKE_LIKE": like}.items() if value}


def test_the_rows_hold_every_pair() -> None:
    factors = MEMORY | COMPUTE
    covered = set().union(*(pairs(row) for row in ROWS))
    values = sum(len(factors[one]) * len(factors[two]) for one, two in combinations(factors, 2))
    assert (len(covered), len(ROWS) < 70) == (values, True)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_no_instant_is_above_the_limit_and_no_share_is_missed(card: Card, program: str, row: Row) -> None:
    code, output = card.run(
        "churn", "8", "4000", "200", **settings(row), BERTH_FAKE_CONTEXT_MIB="2", BERTH_LOG=""
    )
    assert code == 0, output
    seen = json.loads(output)
    assert (seen["violations"], seen["uncounted"], seen["driver_bytes"], seen["failed"]) == (0, 0, 0, 0), (
        output
    )
    assert (seen["killed"], seen["operations"] >= 4000) == (20, True)
    assert seen["refused"] > 0
    region = card.folder / "region"
    (now, *_) = (read(region, uuid, "") for uuid in regions_in(region))
    assert (now.used_bytes, now.processes) == (0, ())
    (card.folder / "card").unlink()

    words = [(f"{row['kernel']} 132 24{row['wait']}", {"BERTH_GPU_CORE_PCT": "30"})]
    if row["neighbour"]:
        kernel, *wait = row["neighbour"].split()
        words.append((" ".join([kernel, "132", "24", *wait]), {"BERTH_GPU_CORE_PCT": "40"}))
    jump = {"BERTH_TEST_CLOCK_JUMP": f"12000:{row['jump_ms']}"}
    limits = settings(row, "BERTH_FAKE_NVML", "BERTH_FAKE_GPUS") | REAL | jump
    (share, _), *others = run(card, program, *beside(card, row["BERTH_FAKE_NVML"], *words), **limits)
    told = row["BERTH_FAKE_NVML"] in TELLING or not others
    assert (30 - POINTS if told else 0) <= share <= 30 + POINTS
    assert all(other <= 40 + POINTS for other, _ in others)


@pytest.mark.slow
def test_the_same_without_the_library_goes_over(card: Card) -> None:
    """A checker that saw nothing then would be none."""
    _, output = card.run("churn", "8", "4000", "200", LD_PRELOAD=None)
    assert json.loads(output)["violations"] > 0
