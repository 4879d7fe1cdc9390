"""The environment shows what the thesis draws, allows what it allows, and earns what was asked for."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from berth.errors import SettingError
from berth.interference import make_speeds
from berth.learning.environment import Environment, Settings
from berth.learning.jobsets import JobSets, make_task, thesis_sets, thesis_task
from berth.model import GpuModel, Profile
from berth.network.combinations import combinations

UNITS = 5
CARD = GpuModel("five-units", mem_mib=5000, cores=1, pcie_mbps=1)
PURPLE = ((1, 1, 0, 1), (2, 3, 2, 1), (3, 0, 2, 1), (0, 0, 3, 1), (0, 0, 0, 1))
"""GPU, GPU memory, GPU cores and PCIe of the purple job of figure 7 in each of five steps."""

FIGURE_7 = """
#.... ##... ###.. ..... .....
#.... ###.. ..... ..... .....
..... ##... ##... ###.. .....
#.... #.... #.... #.... #....
"""
"""Its images: a line a resource, a word a step."""


def profile(name: str, rows: tuple[tuple[int, ...], ...]) -> Profile:
    return Profile(name, "", 0, "", CARD, 1000, np.array(rows) / UNITS)


class Compiled(Environment):
    """The environment with its functions compiled, rather than each of their operations."""

    def __init__(self, *given, **settings) -> None:
        super().__init__(*given, **settings)
        for name in (
            "reset",
            "step",
            "observe",
            "mask",
        ):  # shared by tests: compiling takes longer than they do
            setattr(self, name, jax.jit(getattr(self, name)))


@cache
def small(slots: int = 2) -> Environment:
    profiles = {"purple": profile("purple", PURPLE), "green": profile("green", ((4, 1, 1, 1),) * 3)}
    task = make_task(profiles, CARD, horizon=5, step_ms=1000)
    return Compiled(task, make_speeds("none"), settings=Settings(slots))


def jobs(*applications: int) -> JobSets:
    work = {0: 5000, 1: 3000}
    return JobSets(np.array(applications, np.int32), np.array([work[one] for one in applications], np.int32))


def fields(amounts, capacity, units: int) -> np.ndarray:
    """Fields of 0 and 1 (Oh 2019, figure 7), (4, H, units), of amounts (H, 4): a unit of which a part is used is
    filled."""
    filled = -(-np.asarray(amounts) * units // np.asarray(capacity))
    return filled.T[..., None] > np.arange(units)


def test_the_purple_job_of_figure_7_looks_as_in_the_thesis() -> None:
    environment = small()
    seen = environment.observe(environment.reset(jobs(0, 1)))
    images = fields(seen.jobs[0], environment.capacity, UNITS)
    drawn = "\n".join(" ".join("".join(".#"[int(cell)] for cell in row) for row in image) for image in images)
    assert drawn == FIGURE_7.strip()


def test_a_started_job_moves_from_its_slot_to_the_cluster_and_up_with_time() -> None:
    environment = small()
    state = environment.reset(jobs(0, 1))
    before = environment.observe(state).jobs[0]
    state, _ = environment.step(state, 1)
    seen = environment.observe(state)
    assert np.array_equal(seen.cluster, before)
    assert not np.asarray(seen.jobs[0]).any()
    later, _ = environment.step(state, 0)
    assert int(later.now_ms) == 1000
    assert np.array_equal(environment.observe(later).cluster[:-1], before[1:])


def test_three_slots_give_the_seven_virtual_slots_of_the_thesis() -> None:
    letters = np.array(list("abc"))
    names = ["".join(letters[member]) for member in combinations(3)]
    assert names == ["", "a", "b", "ab", "c", "ac", "bc", "abc"]
    environment = small(slots=3)
    seen = environment.observe(environment.reset(jobs(0, 1, 0)))
    virtual = np.asarray(environment.virtual(seen.jobs))
    for action, member in enumerate(combinations(3)):
        assert np.array_equal(virtual[action], np.asarray(seen.jobs)[member].sum(axis=0))


@pytest.mark.slow
def test_a_start_is_allowed_where_every_resource_stays_within_capacity_in_every_step() -> None:
    task = thesis_task()
    environment = Compiled(task, make_speeds("time-sliced"), settings=Settings(4))
    step, observe = environment.step, environment.observe
    sets = thesis_sets(task, "random", 0, 3)
    draw = np.random.default_rng(1)
    allowed = 0
    for at in range(3):
        state = environment.reset(sets.take(at))
        for _ in range(40):
            seen = observe(state)
            free = np.asarray(environment.capacity) - np.asarray(seen.cluster)
            waiting = np.asarray(state.slot) >= 0
            running = int(np.sum(np.asarray(state.tenant) >= 0))
            expected = [
                bool((np.asarray(seen.jobs)[member].sum(axis=0) <= free).all())
                and bool(waiting[member].all())
                and running + int(member.sum()) <= 4
                for member in combinations(4)
            ]
            expected[0] = running > 0 or not any(expected[1:])
            assert np.asarray(seen.mask).tolist() == expected
            allowed += sum(expected[1:])
            state, _ = step(state, int(draw.choice(np.flatnonzero(expected))))
    assert allowed > 30


def test_what_is_not_allowed_counts_as_holding() -> None:
    environment = small()
    state, _ = environment.step(environment.reset(jobs(1, 1)), 1)
    assert not bool(environment.mask(state)[2]), "two jobs of four units do not fit on five"
    held, reward = environment.step(state, 0)
    tried, same = environment.step(state, 2)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), held, tried))
    assert float(reward) == float(same) < 0


def test_the_return_is_minus_the_total_time() -> None:
    environment = small()
    state = environment.reset(jobs(1, 0, 1))
    earned = 0.0
    for action in (1, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0):
        state, reward = environment.step(state, action)
        earned += float(reward)
    ends = np.asarray(state.end_ms)
    assert ends.min() >= 0
    assert earned == pytest.approx(-ends.max() / 1000, rel=1e-5)


@pytest.mark.slow
def test_step_is_compiled_once() -> None:
    environment = small()
    step_itself = Environment.step
    traces = 0

    def counted(state, action):
        nonlocal traces
        traces += 1
        return step_itself(environment, state, action)

    step = jax.jit(counted)
    state = environment.reset(jobs(0, 1, 0, 1))
    for action in (1, 0, 2, 0, 0, 3, 0, 0, 0, 0, 1, 0):
        state, _ = step(state, jnp.int32(action))
    assert traces == 1


def test_settings_outside_their_range_are_refused() -> None:
    with pytest.raises(SettingError, match=r"13 waiting jobs to combine; expected 1…12"):
        Settings(13)
    with pytest.raises(SettingError, match="expected 0 or more of each"):
        Settings(2, retries=-1)
    with pytest.raises(SettingError, match="'green' needs 1000 MiB, a tiny has 10"):
        make_task({"green": profile("green", ((1, 1, 1, 1),))}, GpuModel("tiny", mem_mib=10))
