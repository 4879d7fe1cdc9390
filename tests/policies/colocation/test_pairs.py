"""`pairs` starts the best pair of a waiting job and a GPU first, and never one that costs more than to wait."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.errors import ModelError
from berth.interference import make_interference
from berth.knowledge import Noise, Noisy, Oracle
from berth.model import EventKind, GpuModel, GpuSlot, Job, Node, Placement, WakeAt
from berth.network.model_file import archive_bytes
from berth.network.pair_network import (
    FORMAT,
    INPUTS,
    NO_NETWORK,
    VERSION,
    PairNetwork,
    pair_network_bytes,
    read_pair_network,
)
from berth.policies import Setting, make_policy
from berth.policies.colocation import pair_kernels
from berth.policies.colocation.forecast import Candidate, Forecaster, Offer
from berth.policies.colocation.pair_kernels import (
    DONE,
    FITS,
    LATER,
    NEVER_MS,
    NONE,
    NOT_FIT,
    Classes,
    Gpus,
    Rows,
    line_up,
    start_best,
)
from berth.profiles import THESIS_GPU, run_time_ms, thesis_profiles

PROFILES = thesis_profiles()
MPS = make_interference("mps")
V100 = GpuModel("V100", mem_mib=16_384, cores=5120, pcie_mbps=15_750)


def job(name: str, application: str, submit_ms: int = 0, **more: object) -> Job:
    return Job(name, submit_ms, run_time_ms(PROFILES[application]), application=application, **more)  # type: ignore[arg-type]


def started(
    jobs: Sequence[Job], nodes: Sequence[Node], policy: str = "pairs"
) -> dict[str, tuple[int, GpuSlot]]:
    """When and where each job starts."""
    events = list(simulate(jobs, Cluster(nodes), policy, interference=MPS))
    assert sum(event.kind is EventKind.FINISH for event in events) == len(jobs)
    return {
        event.job.id: (event.time_ms, event.slots[0]) for event in events if event.kind is EventKind.START
    }


def test_a_job_goes_beside_the_tenant_with_which_it_loses_least() -> None:
    tenants, names = ("vgg16", "GROMACS"), sorted(PROFILES)
    forecaster = Forecaster(PROFILES, MPS.speeds)  # type: ignore[attr-defined]
    told = 0
    for name in names:
        work_us = run_time_ms(PROFILES[name]) * 1000
        costs = []
        for tenant in tenants:
            there = run_time_ms(PROFILES[tenant]) * 1000
            offer = Offer((Candidate(tenant, there, there),), (Candidate(name, work_us, work_us),))
            found = forecaster.forecasts([offer], THESIS_GPU)
            longer_ms = found.ends_ms[0, 1].sum() - found.ends_ms[0, 0].sum() - work_us // 1000
            costs.append(longer_ms if found.fits[0, 1] else None)
        if None in costs or costs[0] == costs[1]:
            continue
        best = int(np.argmin(costs))
        jobs = [job("t0", tenants[0]), job("t1", tenants[1]), job("new", name, 1)]
        found_ = started(jobs, [Node("n", 2, THESIS_GPU)])
        if found_["new"][0] == 1:
            assert found_["new"][1] == found_[f"t{best}"][1], name
            told += 1
    assert told >= 2


def test_a_job_waits_for_a_gpu_that_is_soon_empty_instead_of_slowing_a_long_job() -> None:
    """Under time slicing two jobs that keep the GPU busy only delay each other."""
    sliced = make_interference("time-sliced")
    short, long = replace(job("short", "vgg16"), work_ms=20_000), job("long", "vgg16")
    late = job("late", "vgg16", 5_000)
    events = list(
        simulate([short, long, late], Cluster([Node("n", 2, THESIS_GPU)]), "pairs", interference=sliced)
    )
    begun = {event.job.id: event.time_ms for event in events if event.kind is EventKind.START}
    assert begun["short"] == begun["long"] == 0
    assert begun["late"] > 12_000, "it may load while the short one ends"


def test_a_refused_pair_is_not_offered_again_at_the_same_moment() -> None:
    """A caller that takes nothing is asked about each GPU once, and the decision ends."""
    jobs = [job(f"j{at}", name) for at, name in enumerate(sorted(PROFILES) * 3)]
    queue, cluster = Queue(), Cluster([Node("n", 4, THESIS_GPU)])
    for one in jobs:
        queue.add(one)
    for knowledge in (Oracle(jobs, MPS), Noisy(Oracle(jobs, MPS), Noise(run=0.3, memory=0.1, pair=0.1))):
        policy = make_policy("pairs", Setting(0, knowledge=knowledge))
        offered = [one.slots[0] for one in policy(queue, cluster, 0) if isinstance(one, Placement)]
        assert sorted(offered) == [GpuSlot(0, index) for index in range(4)]


def test_it_asks_to_be_called_again_only_later() -> None:
    jobs = [job(f"j{at}", name) for at, name in enumerate(sorted(PROFILES) * 4)]
    knowledge = Noisy(Oracle(jobs, MPS), Noise(run=0.3, memory=0.1, pair=0.1))
    policy = make_policy("pairs", Setting(0, knowledge=knowledge))
    queue, cluster = Queue(), Cluster([Node("n", 2, THESIS_GPU)])
    for one in jobs:
        queue.add(one)
    for now_ms in (0, 700, 1400):
        for decision in policy(queue, cluster, now_ms):
            if isinstance(decision, Placement):
                cluster.place(decision, now_ms=now_ms)
                queue.remove(decision.job)
            else:
                assert isinstance(decision, WakeAt)
                assert decision.time_ms > now_ms
    assert len(queue)


def test_costs_are_found_anew_only_where_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    forecasts = Forecaster.forecasts

    def counting(self: Forecaster, offers: Sequence[Offer], *more: object) -> object:
        asked.append(len(offers))
        return forecasts(self, offers, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Forecaster, "forecasts", counting)
    jobs = [job(f"j{at}", name) for at, name in enumerate(sorted(PROFILES) * 40)]
    policy = make_policy("pairs", Setting(0, knowledge=Oracle(jobs, MPS)))
    queue, cluster = Queue(), Cluster([Node("n", 8, THESIS_GPU)])
    for one in jobs:
        queue.add(one)

    def decide(now_ms: int) -> int:
        asked.clear()
        for decision in policy(queue, cluster, now_ms):
            if isinstance(decision, Placement):
                cluster.place(decision, now_ms=now_ms)
                queue.remove(decision.job)
        return sum(asked)

    assert decide(0)
    assert not decide(1)
    run = next(iter(cluster.running.values()))
    cluster.release(run.job.id, now_ms=2)
    before = len(cluster.running)
    again = decide(2)
    starts = len(cluster.running) - before
    assert 0 < again <= (1 + starts) * len(PROFILES), "of one GPU, and of each after a start there"


def test_one_gpu_and_many_take_the_same_compiled_code() -> None:
    for gpus in (1, 6):
        jobs = [job(f"j{at}", name) for at, name in enumerate(sorted(PROFILES) * 2)]
        started(jobs, [Node("n", gpus, THESIS_GPU)])
    for kernel in (pair_kernels.start_best, pair_kernels.line_up):
        assert len(kernel.signatures) == 1  # type: ignore[attr-defined]


def world(draw: random.Random) -> tuple[Classes, Gpus, Rows, np.ndarray, np.ndarray, np.ndarray]:
    """Random classes, GPUs and rows, without classes that come after."""
    gpus, kinds, many_rows, longest = (
        draw.randint(1, 6),
        draw.randint(1, 4),
        draw.randint(1, 3),
        draw.randint(1, 3),
    )
    numbers = np.random.default_rng(draw.randrange(2**32))
    idle = numbers.random(gpus) < 0.3
    work_ms = numbers.integers(10, 100, kinds)
    extra_ms = np.where(idle[:, None], work_ms, numbers.integers(0, 100, (gpus, kinds)))
    classes = Classes(
        np.where(idle[:, None], 0, numbers.integers(0, 200, (gpus, kinds))),
        extra_ms,
        numbers.choice([FITS, FITS, NOT_FIT], (gpus, kinds)),
        np.full((gpus, kinds), LATER),
        idle,
        np.zeros(gpus, np.int64),
        numbers.random((gpus, 4)),
        np.full(gpus, NONE),
        *np.zeros((3, gpus), np.int64),
    )
    room = Gpus(
        np.full(gpus, NONE),
        numbers.integers(0, 2, gpus),
        numbers.choice([0, 100, 1000], gpus),
        np.full(gpus, 1000),
        numbers.choice([0, 1000, 3000], 2),
        np.full(2, 1000),
    )
    rows = Rows(
        numbers.integers(0, kinds, (many_rows, longest)),
        numbers.permutation(many_rows * longest).reshape(many_rows, longest).astype(float),
        numbers.integers(1, longest + 1, many_rows),
        np.zeros(many_rows, np.bool_),
        np.zeros(many_rows, np.int64),
        np.stack(
            [np.full(kinds, 100), numbers.choice([0, 1000], kinds), *np.zeros((2, kinds), np.int64)], axis=1
        ),
        work_ms,
        numbers.random((1, kinds, 3)),
    )
    of = np.arange(gpus)
    of[numbers.random(gpus) < 0.2] = NONE
    line = np.sort(numbers.integers(1, 200, (1, gpus)))
    return classes, room, rows, of, line, np.array([draw.randint(0, gpus)])


NOW_MS, MEAN_MS = 70, 50


def added(
    classes: Classes,
    rows: Rows,
    gpu: int,
    row: int,
    at: int,
    left: int,
    part_idle: float,
    network: PairNetwork,
) -> tuple[float, float]:
    """What the network adds to a pair's cost, and how much less than waiting it must cost."""
    kind = rows.kind[row, at]
    work_ms, tenants, queue = rows.work_ms[kind], classes.tenants[gpu], np.log1p(left / len(classes.idle))
    seen = np.array(
        [
            min(2, classes.cost_ms[gpu, kind] / work_ms), classes.extra_ms[gpu, kind] / work_ms,
            tenants[0] / 4, tenants[1], tenants[2], min(3, tenants[3] / MEAN_MS), *rows.needs[0, kind],
            np.log(work_ms / MEAN_MS), min(4, (NOW_MS - rows.turn[row, at]) / MEAN_MS), queue, part_idle, 1,
        ]
    )  # fmt: skip
    direct = seen @ network.direct
    units = seen @ network.first
    last = units / (1 + np.abs(units)) @ network.last
    return direct[0] + queue * direct[1] + last[0], max(0, direct[2] + last[1])


def plainly(
    classes: Classes, room: Gpus, rows: Rows, of: np.ndarray, line: np.ndarray, lines: int, waiting: int,
    network: PairNetwork,
) -> list[tuple[int, int]]:  # fmt: skip
    """The rule as one would say it: GPU and row of each start."""
    milli, cpu = room.milli.copy(), room.cpu_milli.copy()
    at, found, open_ = [0] * len(rows.length), [], [gpu for gpu in range(len(of)) if of[gpu] != NONE]
    blocked: set[tuple[int, int]] = set()
    while True:
        left = max(0, waiting - len(found) - 1)
        pairs = []
        for row, length in enumerate(rows.length.tolist()):
            if at[row] == length:
                continue
            kind = int(rows.kind[row, at[row]])
            fit = [gpu for gpu in open_ if classes.state[gpu, kind] == FITS and (gpu, row) not in blocked]
            idle = sum(bool(classes.idle[gpu]) for gpu in fit)
            ahead = left // 2
            if ahead < idle:
                wait_ms = 0
            elif lines:
                turn, rounds = (ahead - idle) % lines, (ahead - idle) // lines
                wait_ms = line[0, turn] + rounds * MEAN_MS
            else:
                wait_ms = ahead // idle * MEAN_MS if idle else NEVER_MS
            for gpu in fit:
                work_ms = rows.work_ms[kind]
                lost_ms = classes.cost_ms[gpu, kind] + left / len(of) * (
                    classes.extra_ms[gpu, kind] - work_ms
                )
                more, less = added(classes, rows, gpu, row, at[row], left, idle / len(of), network)
                if lost_ms + less * work_ms <= wait_ms or classes.idle[gpu]:
                    pairs.append((lost_ms / work_ms + more, rows.turn[row, at[row]], gpu, row, kind))
        if not pairs:
            return found
        _, _, gpu, row, kind = min(pairs)
        ask_cpu = rows.asks[kind, 1]
        if milli[gpu] < 100 or cpu[room.node[gpu]] < ask_cpu:
            blocked.add((gpu, row))
            continue
        milli[gpu] -= 100
        cpu[room.node[gpu]] -= ask_cpu
        open_.remove(gpu)
        at[row] += 1
        found.append((gpu, row))


@pytest.mark.parametrize("asks_network", [False, True])
def test_compiled_code_starts_what_the_rule_and_the_network_say(asks_network: bool) -> None:
    draw, weights = random.Random(5), np.random.default_rng(5)
    seen, judged = np.zeros(INPUTS), np.zeros(2)
    starts = 0
    for _ in range(300):
        classes, room, rows, of, line, lines = world(draw)
        waiting = int(rows.length.sum()) + draw.randint(0, 5)
        network = NO_NETWORK
        if asks_network:
            network = PairNetwork(
                *(weights.normal(0, 0.3, shape) for shape in ((INPUTS, 3), (INPUTS, 4), (4, 2)))
            )
        said = plainly(classes, room, rows, of, line, int(lines[0]), waiting, network)
        counts, asked = np.zeros((2, 2), np.int64)
        line_up(of, classes, room, counts)
        found = np.zeros((int(rows.length.sum()), 3), np.int64)
        blocked = np.zeros((len(of), len(rows.length)), np.bool_)
        why = start_best(
            classes, room, rows, line, lines, waiting, 1 / len(of), MEAN_MS, blocked,
            np.zeros(len(rows.length), np.int64), found, counts, asked, asks_network, network, seen, judged, NOW_MS,
        )  # fmt: skip
        assert why == DONE
        assert [(gpu, row) for gpu, row, _ in found[: counts[0]].tolist()] == said
        starts += len(said)
    assert starts > 100


@pytest.mark.parametrize("asks", [{}, {"cpu_milli": 6_000}])
def test_a_job_on_two_gpus_holds_up_no_others_and_starts_when_two_are_empty(asks: dict[str, int]) -> None:
    """The GPUs that empty first are kept for it, and what it asks of the node."""
    first = [
        replace(job(f"t{at}", "vgg16"), work_ms=40_000 + 20_000 * at, cpu_milli=1_000) for at in range(4)
    ]
    wide = job("wide", "vgg16", 1_000, gpus=2, **asks)
    small = [job(f"s{at}", "alexnet", 2_000 + 3_000 * at, cpu_milli=1_000) for at in range(40)]
    begun, ended = {}, {}
    for event in simulate(
        [*first, wide, *small], Cluster([Node("n", 4, THESIS_GPU, 10_000)]), "pairs", interference=MPS
    ):
        if event.kind is EventKind.START:
            begun[event.job.id] = event.time_ms
        elif event.kind is EventKind.FINISH:
            ended[event.job.id] = event.time_ms
    assert len(ended) == 45
    assert begun["s0"] < begun["wide"]
    assert begun["wide"] == sorted(ended[one.id] for one in first)[1]


@pytest.mark.parametrize("origin_ms", [0, 1_800_000_000_000])
def test_gpus_are_kept_on_nodes_of_different_size_at_any_date(origin_ms: int) -> None:
    """Live, times are milliseconds since 1970."""
    first = [replace(job(f"t{at}", "vgg16"), work_ms=40_000 + 20_000 * at) for at in range(6)]
    wide = job("wide", "vgg16", 1_000, gpus=2)
    small = [job(f"s{at}", "alexnet", 2_000 + 3_000 * at) for at in range(20)]
    jobs = [replace(one, submit_ms=one.submit_ms + origin_ms) for one in (*first, wide, *small)]
    nodes = [Node("two", 2, THESIS_GPU), Node("four", 4, THESIS_GPU)]
    begun = {
        event.job.id: event.time_ms
        for event in simulate(jobs, Cluster(nodes), "pairs", interference=MPS)
        if event.kind is EventKind.START
    }
    assert begun["s0"] < begun["wide"]


@pytest.mark.parametrize("count", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_learned_by_a_network_of_no_weight_decides_as_pairs_does(tmp_path: Path, count: int) -> None:
    path = tmp_path / "none.npz"
    path.write_bytes(pair_network_bytes(NO_NETWORK, "by hand", {}))
    names = sorted(PROFILES)
    jobs = [job(f"j{at}", names[at % len(names)], 3_000 * at) for at in range(count)]
    nodes = [Node("n", 2, THESIS_GPU), Node("m", 2, V100)]
    by_rule = started(jobs, nodes)
    assert started(jobs, nodes, f"learned?pairs={path}") == by_rule
    assert started(jobs, nodes, "learned") != by_rule, "the network that ships corrects costs"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"direct": np.zeros((INPUTS, 2), np.float32)}, "direct is float32"),
        ({"last": np.full((0, 2), 1.0)}, "last is float64"),
        ({"odd": np.zeros(1, np.float32)}, "too many or missing arrays: odd"),
    ],
)
def test_a_network_of_other_arrays_is_refused(
    tmp_path: Path, change: dict[str, np.ndarray], why: str
) -> None:
    arrays = {name: array.astype(np.float32) for name, array in NO_NETWORK._asdict().items()} | change
    path = tmp_path / "odd.npz"
    path.write_bytes(archive_bytes({"format": FORMAT, "version": VERSION}, arrays))
    with pytest.raises(ModelError, match=why):
        read_pair_network(path)
