"""The cluster as Gymnasium's environment, on the simulator's own loop."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import SettingError
from berth.experiments.cluster_gym import ClusterEnvironment, Shown
from berth.model import EventKind, Job, Node, gang_of
from berth.traces import read_trace

NODES = [Node("a", 4), Node("b", 2), Node("c", 2)]
TRACE = "synthetic:philly-like?jobs=60&seed=3"


def played(
    env: ClusterEnvironment, choose: Callable[[Shown], int], seed: int = 0
) -> tuple[float, dict[str, float]]:
    """The return of an episode, and what is told at its end."""
    seen, told = env.reset(seed=seed)
    total, over = 0.0, "started" in told
    while not over:
        seen, reward, over, _, told = env.step(np.int64(choose(seen)))
        total += reward
    return total, told


def first_job(seen: Shown) -> int:
    """Start the first job that waits on the first node that fits, else hold: what fifo and first fit do."""
    nodes = len(seen["nodes"])
    fits = np.flatnonzero(seen["action_mask"][1 : 1 + nodes])
    return 1 + int(fits[0]) if len(fits) else 0


def test_gymnasium_finds_nothing_wrong() -> None:
    env = gymnasium.make(
        "berth.experiments.cluster_gym:berth/Cluster-v0", trace=TRACE, cluster="3x4", jobs=20
    )
    check_env(env.unwrapped, skip_render_check=True)


def test_an_agent_that_does_as_a_policy_gets_the_waits_of_its_simulation() -> None:
    jobs = [job for job in read_trace(TRACE).jobs() if job.gpus <= 4 and job.nodes <= 1]
    total, told = played(ClusterEnvironment(jobs, NODES, slots=4), first_job)
    waits_ms = {
        event.job.id: event.time_ms - event.job.submit_ms
        for event in simulate(jobs, Cluster(NODES), "fifo+first-fit")
        if event.kind is EventKind.START
    }
    assert sum(waits_ms.values()) > 0
    assert told["started"] == len(waits_ms)
    assert told["wait_mean_s"] == pytest.approx(np.mean([*waits_ms.values()]) / 1000)
    assert total == pytest.approx(-sum(waits_ms.values()) / 3_600_000)


def test_any_allowed_actions_start_every_job_that_fits_the_cluster_once() -> None:
    jobs = [
        Job("one", 0, 5000), Job("two", 0, 4000, gpus=4, nodes=2), Job("wide", 10, 3000, gpus=5, nodes=0),
        Job("never", 20, 10, gpus=9), gang_of([Job("g1", 30, 50, gpus=2), Job("g2", 30, 50, gpus=2)]),
        Job("last", 50, 9),
    ]  # fmt: skip
    draw = np.random.default_rng(1)
    env = ClusterEnvironment(jobs, NODES, slots=3)
    for seed in range(5):
        _, told = played(env, lambda _: int(draw.choice(np.flatnonzero(env.action_masks()))), seed)
        assert told["started"] == 6


def test_what_is_forbidden_holds_and_holding_for_ever_starts_what_waits() -> None:
    env = ClusterEnvironment([Job("a", 0, 10, gpus=4), Job("b", 5, 10, gpus=4)], NODES, slots=2)
    seen, told = env.reset(seed=0)
    assert (seen["action_mask"].tolist(), told["now_ms"]) == ([1, 1, 0, 0, 0, 0, 0], 0)
    _, _, over, _, told = env.step(np.int64(2))  # node b has two GPUs
    assert (over, told["now_ms"]) == (False, 5)
    _, reward, over, _, told = env.step(np.int64(0))  # nothing runs or comes: the first start
    assert (over, told["now_ms"], reward) == (False, 15, pytest.approx(-10 / 3_600_000))
    _, _, over, _, told = env.step(np.int64(4))
    assert (over, told["started"], told["wait_mean_s"]) == (True, 2, 0.0075)


def test_episodes_are_parts_of_the_trace_that_the_seed_draws() -> None:
    env = ClusterEnvironment([Job(str(at), at, 1) for at in range(100)], NODES, jobs=5)
    times = {env.reset(seed=seed)[1]["now_ms"] for seed in range(20)}
    assert len(times) > 5
    assert max(times) <= 95
    assert env.reset(seed=0, options={"first": 7})[1]["now_ms"] == 7
    for first in (-1, 96):
        with pytest.raises(SettingError, match=f"cannot begin at job {first}; expected 0 to 95"):
            env.reset(seed=0, options={"first": first})


def test_arrivals_of_jobs_are_compressed_as_those_of_a_trace_are() -> None:
    jobs = [Job("a", 0, 1), Job("b", 1000, 1)]
    env = ClusterEnvironment(jobs, NODES, compress=10)
    env.reset(seed=0)
    assert env.step(np.int64(1))[4]["now_ms"] == 100
    assert [job.submit_ms for job in jobs] == [0, 1000]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(
        SettingError, match="0 waiting jobs shown and None jobs an episode; expected 1 or more"
    ):
        ClusterEnvironment([], NODES, slots=0)
    for trace in ("synthetic:demo?jobs=1", [Job("a", 0, 1)]):
        with pytest.raises(SettingError, match="compressed by a positive number, not by 0"):
            ClusterEnvironment(trace, NODES, compress=0)
    env = ClusterEnvironment([Job("a", 0, 1)], NODES, slots=1)
    env.reset(seed=0)
    with pytest.raises(SettingError, match=r"action .*4.*; expected a whole number from 0 to 3"):
        env.step(np.int64(4))
