"""What a lower bound rests on where it merges rows of profiles: nobody is faster in any row than in its segment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.interference import Speeds, make_speeds
from berth.interference.contention import LEAST_MEM_MIB, STEPS, Contention, cells_of
from berth.interference.profiled import ProfiledInterference
from berth.model import Job, Profile
from berth.profiles import THESIS_GPU
from berth_papers.bounds import least_total_time, time_bound
from berth_papers.bounds.segment_speeds import segment_speeds
from tests.examples import examples

SHIPPED = make_speeds("mps")
assert isinstance(SHIPPED, Contention)
CARD = np.array([1000, THESIS_GPU.mem_mib, 1000, 1000])

anywhere = st.tuples(
    st.integers(0, 1000), st.integers(0, 12_288), st.integers(0, 1000), st.sampled_from((0, 0, 300, 800))
)


GPU_STEP, CORES_STEP, MEM_STEP = STEPS


def near(centres: np.ndarray) -> st.SearchStrategy[tuple[int, int, int, int]]:
    """In the cell of one of the centres, or just outside it, in any direction."""
    corners = (centres * np.array(STEPS)).tolist()

    @st.composite
    def drawn(draw: st.DrawFn) -> tuple[int, int, int, int]:
        gpu, cores, mem = draw(st.sampled_from(corners))
        return (
            min(max(gpu + draw(st.integers(-5, GPU_STEP + 5)), 0), 1000),
            min(max(mem + draw(st.integers(-100, MEM_STEP + 100)), 0), 12_288),
            min(max(cores + draw(st.integers(-5, CORES_STEP + 5)), 0), 1000),
            draw(st.sampled_from((0, 0, 400))),
        )

    return drawn()


@st.composite
def contentions(draw: st.DrawFn) -> Contention:
    """Any model that `berth interference fit` could write: wild stress between a few centres."""
    rows = np.array(draw(st.lists(anywhere, min_size=1, max_size=4)), dtype=np.int32)
    centres = np.unique(cells_of(rows), axis=0)
    count = len(centres)
    stress = draw(st.lists(st.integers(0, 20_000), min_size=count**2, max_size=count**2))
    use_milli = draw(st.integers(300, 1000))
    names = draw(st.sampled_from(({}, {"A": 0, "B": count - 1})))
    tables = [
        np.array(one, np.int32).reshape(count, count) for one in (stress, draw(st.permutations(stress)))
    ]
    return Contention("mps", use_milli, centres, tables[0], names, tables[1])


@st.composite
def models_and_rows(draw: st.DrawFn) -> tuple[Speeds, np.ndarray]:
    model = draw(st.one_of(st.just(SHIPPED), contentions(), st.sampled_from(["time-sliced", "mig", "none"])))
    speeds = make_speeds(model) if isinstance(model, str) else model
    row = anywhere
    if isinstance(speeds, Contention):
        row = st.one_of(near(speeds.centres), near(speeds.centres), anywhere)
    return speeds, np.array(draw(st.lists(row, min_size=1, max_size=8)), dtype=np.int32)


@settings(max_examples=examples(300), deadline=None)
@given(drawn=models_and_rows(), data=st.data())
def test_nobody_is_faster_in_any_row_than_in_its_segment(
    drawn: tuple[Speeds, np.ndarray], data: st.DataObject
) -> None:
    speeds, rows = drawn
    labels = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    segment = np.unique(np.array(labels), return_inverse=True)[1].reshape(-1)
    who = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5)))
    empty = data.draw(st.integers(0, 2))
    tenants = np.append(segment[who], np.full(empty, segment.max() + 1))
    bound = segment_speeds(rows, segment, tenants[None, :], speeds, 0)[0]
    there = np.ones(len(who), dtype=np.bool_)
    found = np.asarray(speeds(rows[who], there, 0))
    assert (bound[: len(who)] >= found).all()
    if isinstance(speeds, Contention) and speeds.names:
        known = st.sampled_from((-1, *speeds.names.values()))
        centre = data.draw(st.lists(known, min_size=len(who), max_size=len(who)))
        assert (bound[: len(who)] >= speeds.among(rows[who], there, np.array(centre))).all()
    assert (bound[: len(who)] <= 1000).all()
    assert (bound[len(who) :] == 0).all()


@given(rows=st.lists(anywhere, min_size=1, max_size=4))
@pytest.mark.parametrize("name", ["mps", "time-sliced", "none"])
def test_where_nothing_is_merged_the_speeds_are_the_model_s(name: str, rows: list[tuple[int, ...]]) -> None:
    usage = np.array(rows, dtype=np.int32)
    alone = np.arange(len(usage))
    bound = segment_speeds(usage, alone, alone[None, :], make_speeds(name), 0)[0]
    assert bound.tolist() == np.asarray(make_speeds(name)(usage, np.ones(len(usage), bool), 0)).tolist()


def worst_case() -> tuple[list[Job], dict[str, Profile]]:
    """Fifty different rows a side that lie in cells of two centres of `mps`, and some just below the cell's edge."""
    assert isinstance(SHIPPED, Contention)
    roomy = [at for at, centre in enumerate(SHIPPED.centres) if centre[2] * MEM_STEP == LEAST_MEM_MIB]
    one, other = ([gpu, mem, cores, 0] for gpu, cores, mem in SHIPPED.centres[roomy[-2:]] * np.array(STEPS))
    rows = []
    for pcie in range(50):
        inside = [min(one[0], 1000), one[1], one[2], pcie]
        rows += [inside, inside, inside, [inside[0], inside[1], inside[2] - 1, pcie]]
    beside = [[min(other[0], 1000), other[1] + 5, other[2], 0]] * len(rows)
    profiles = {
        name: Profile(name, "", 0, "", THESIS_GPU, 1000, np.array(usage) / CARD)
        for name, usage in (("A", rows), ("B", beside))
    }
    return [Job(name, 0, 1000 * len(rows), application=name) for name in profiles], profiles


def test_the_bound_holds_where_using_less_is_felt_otherwise() -> None:
    pytest.importorskip("highspy", reason="the bound needs the extra 'optimum'")
    jobs, profiles = worst_case()
    least = least_total_time(jobs, ProfiledInterference(profiles, SHIPPED), THESIS_GPU)
    assert time_bound(jobs, profiles, SHIPPED, THESIS_GPU).total_ms <= least.total_ms
    exactly = time_bound(jobs, profiles, SHIPPED, THESIS_GPU, segments=200).total_ms
    assert 0.99 * least.total_ms < exactly <= least.total_ms


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(drawn=models_and_rows(), data=st.data())
def test_the_bound_is_below_the_shortest_schedule_of_any_profiles(
    drawn: tuple[Speeds, np.ndarray], data: st.DataObject
) -> None:
    """Two or three jobs with less, as much or more work than their profiles are long, merged as far as can be."""
    pytest.importorskip("highspy", reason="the bound needs the extra 'optimum'")
    speeds, rows = drawn
    interval_ms = data.draw(st.sampled_from((10, 1000)))
    split = data.draw(st.integers(1, len(rows)))
    profiles = {
        name: Profile(name, "", 0, "", THESIS_GPU, interval_ms, usage / CARD)
        for name, usage in (("A", rows[:split]), ("B", rows[split:]))
        if len(usage)
    }
    jobs = []
    for number in range(data.draw(st.integers(2, 3))):
        name = data.draw(st.sampled_from(sorted(profiles)))
        work_ms = data.draw(st.integers(1, 2 * interval_ms * len(profiles[name].usage)))
        jobs.append(Job(str(number), 0, work_ms, application=name))
    exact = least_total_time(jobs, ProfiledInterference(profiles, speeds), THESIS_GPU, every_row=True)
    segments = data.draw(st.sampled_from((1, 2, 40)))
    bound = time_bound(jobs, profiles, speeds, THESIS_GPU, segments=segments)
    assert bound.total_ms <= exact.total_ms + 1e-6
