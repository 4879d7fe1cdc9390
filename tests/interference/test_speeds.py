"""Every model of speeds: alone is 1000, nobody is ever faster, nobody gains by a neighbour more."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from berth.errors import SettingError
from berth.interference import SPEEDS, make_speeds, mode_of, no_interference
from berth.interference.contention import MOST_STRESS, Contention, cells_of
from berth.interference.mig import COMPUTE, mig
from berth.interference.named import published_names
from berth.interference.speeds import crossed, effective_milli, pcie_shared
from berth.interference.time_sliced import SWITCH_MILLI, time_sliced
from tests.every_policy import some

Usage = NDArray[np.int32]
ROW = st.tuples(*(st.integers(0, most) for most in (1000, 90_000, 1000, 1000)))
ONE_CARD = [name for name in SPEEDS if name != "mig"]
"""Models under which the memory is one for all tenants."""
MODES = ["time-sliced", "mps", "mig"]
TENANTS = st.lists(ROW, min_size=1, max_size=10)
CARD_MIB = 12_288


def speeds_of(model: str, rows: list[tuple[int, ...]]) -> list[int]:
    found = make_speeds(model)(np.array(rows, dtype=np.int32), np.ones(len(rows), dtype=bool), CARD_MIB)
    assert found.dtype == np.int32
    return found.tolist()


@pytest.mark.parametrize("model", ONE_CARD)
@given(rows=TENANTS)
def test_nobody_is_faster_than_alone(model: str, rows: list[tuple[int, ...]]) -> None:
    speeds = speeds_of(model, rows)
    assert all(0 < speed <= 1000 for speed in speeds)
    assert [speeds_of(model, [row]) for row in rows] == [[1000]] * len(rows)


@pytest.mark.parametrize("model", SPEEDS)
@given(rows=TENANTS, more=ROW, at=st.integers(0, 10))
def test_a_neighbour_more_helps_nobody(
    model: str, rows: list[tuple[int, ...]], more: tuple[int, ...], at: int
) -> None:
    place = min(at, len(rows))
    before = speeds_of(model, rows)
    after = speeds_of(model, [*rows[:place], more, *rows[place:]])
    del after[place]
    assert all(now <= then for now, then in zip(after, before, strict=True))


@pytest.mark.parametrize("model", SPEEDS)
@given(rows=TENANTS, data=st.data())
def test_the_order_of_tenants_does_not_matter(
    model: str, rows: list[tuple[int, ...]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    speeds = speeds_of(model, rows)
    assert speeds_of(model, [rows[at] for at in order]) == [speeds[at] for at in order]


@pytest.mark.parametrize("model", SPEEDS)
@given(rows=st.lists(ROW, min_size=4, max_size=4), present=st.lists(st.booleans(), min_size=4, max_size=4))
def test_who_is_not_there_has_no_speed_and_slows_nobody(
    model: str, rows: list[tuple[int, ...]], present: list[bool]
) -> None:
    found = make_speeds(model)(np.array(rows, dtype=np.int32), np.array(present), CARD_MIB).tolist()
    there = [row for row, here in zip(rows, present, strict=True) if here]
    alone = iter(speeds_of(model, there) if there else [])
    assert found == [next(alone) if here else 0 for here in present]


@pytest.mark.parametrize("model", SPEEDS)
def test_leading_axes_are_as_many_calls(model: str) -> None:
    draw = np.random.default_rng(1)
    usage = draw.integers(0, 1001, (3, 5, 4, 4)).astype(np.int32)
    present = draw.random((3, 5, 4)) < 0.7
    speeds = make_speeds(model)
    whole = speeds(usage, present, CARD_MIB)
    assert whole.shape == (3, 5, 4)
    for at in np.ndindex(3, 5):
        assert whole[at].tolist() == speeds(usage[at], present[at], CARD_MIB).tolist()
    each = speeds(usage[0, 0], present, CARD_MIB)
    assert each.shape == (3, 5, 4)
    for at in np.ndindex(3, 5):
        assert each[at].tolist() == speeds(usage[0, 0], present[at], CARD_MIB).tolist()


@pytest.mark.parametrize("model", some(SPEEDS))
def test_jax_says_the_same_to_the_bit(model: str) -> None:
    jax = pytest.importorskip("jax", reason="the extra 'learn' is not installed")
    draw = np.random.default_rng(2)
    usage = draw.integers(0, 1001, (500, 6, 4)).astype(np.int32)
    usage[..., 1] *= 12
    present = draw.random((500, 6)) < 0.7
    speeds = make_speeds(model)
    with jax.numpy_rank_promotion("raise"):
        compiled = jax.jit(lambda usage, present: speeds(usage, present, CARD_MIB, xp=jax.numpy))
        assert (np.asarray(compiled(usage, present)) == speeds(usage, present, CARD_MIB)).all()
        full = jax.jit(lambda usage, present: crossed(usage, usage // 2, present, CARD_MIB, xp=jax.numpy))
        assert (np.asarray(full(usage, present)) == crossed(usage, usage // 2, present, CARD_MIB)).all()


SMALL = st.tuples(*(st.integers(0, most) for most in (1000, 1_500, 1000, 300)))
"""A row whose memory fits in the smallest slice of the card."""


@st.composite
def contentions(draw: st.DrawFn) -> Contention:
    """Any model that `berth interference fit` could write."""
    rows = np.array(draw(st.lists(ROW, min_size=1, max_size=5)), dtype=np.int32)
    centres = np.unique(cells_of(rows), axis=0)
    count = len(centres)
    stress = draw(st.lists(st.integers(0, MOST_STRESS), min_size=count**2, max_size=count**2))
    named = draw(st.permutations(stress))
    use_milli = draw(st.integers(1, 1000))
    tables = [np.array(one, np.int32).reshape(count, count) for one in (stress, named)]
    return Contention("mps", use_milli, centres, tables[0], {f"{at}": at for at in range(count)}, tables[1])


@pytest.mark.parametrize("model", MODES)
@given(data=st.data())
def test_more_use_by_a_neighbour_never_helps(model: str, data: st.DataObject) -> None:
    rows = data.draw(st.lists(ROW if model != "mig" else SMALL, min_size=2, max_size=6))
    more = data.draw(ROW if model != "mig" else SMALL)
    speeds = data.draw(contentions()) if model == "mps" and data.draw(st.booleans()) else make_speeds(model)
    there = np.ones(len(rows), dtype=bool)
    before = speeds(np.array(rows, dtype=np.int32), there, CARD_MIB)
    rows[0] = tuple(max(pair) for pair in zip(rows[0], more, strict=True))
    after = speeds(np.array(rows, dtype=np.int32), there, CARD_MIB)
    assert (after[1:] <= before[1:]).all()


@pytest.mark.parametrize("model", MODES)
@given(rows=st.lists(SMALL, min_size=1, max_size=7))
def test_no_more_of_the_card_is_used_than_there_is(model: str, rows: list[tuple[int, ...]]) -> None:
    speeds, usage = make_speeds(model), np.array(rows, dtype=np.int32)
    assert mode_of(speeds) == model
    found = speeds(usage, np.ones(len(rows), dtype=bool), CARD_MIB).astype(np.int64)
    assert (effective_milli(speeds, usage) * found).sum() <= 1_000_000
    if model == "mps":  # cores and the link as well
        assert ((usage[:, 2:] * found[:, None]).sum(axis=0) <= 1_000_000).all()


def test_without_a_mode_more_is_used_than_there_is() -> None:
    usage = np.array([(1000, 0, 0, 0)] * 2, dtype=np.int32)
    speeds = make_speeds("none")
    assert mode_of(speeds) == mode_of(no_interference) == "none"
    found = speeds(usage, np.ones(2, dtype=bool), CARD_MIB).astype(np.int64)
    assert (effective_milli(speeds, usage) * found).sum() == 2_000_000


def test_ten_jobs_of_a_third_get_no_more_than_the_measured_pairs() -> None:
    speeds = speeds_of("mps", [(300, 500, 100, 0)] * 10)
    assert sum(speeds) * 0.3 <= 1000 / 0.7  # utilisation times speed, of the pairs 1.43 cards at most


@given(model=contentions(), rows=TENANTS)
def test_whatever_was_fitted_a_neighbour_more_helps_nobody(
    model: Contention, rows: list[tuple[int, ...]]
) -> None:
    def speeds(count: int) -> list[int]:
        found: Usage = model(np.array(rows[:count], dtype=np.int32), np.ones(count, dtype=bool), 0)
        return found.tolist()

    assert speeds(1) == [1000]
    for count in range(2, len(rows) + 1):
        assert all(0 <= now <= then for now, then in zip(speeds(count), speeds(count - 1), strict=False))


@given(model=contentions(), rows=TENANTS, more=ROW, data=st.data())
def test_by_name_as_by_use_none_is_faster_than_alone_or_for_more_use_or_a_neighbour_more(
    model: Contention, rows: list[tuple[int, ...]], more: tuple[int, ...], data: st.DataObject
) -> None:
    count = len(rows)
    numbers = st.integers(-1, len(model.names) - 1)
    centre = np.array(data.draw(st.lists(numbers, min_size=count, max_size=count)))

    def speeds(rows: list[tuple[int, ...]], count: int) -> Usage:
        return model.among(np.array(rows[:count], np.int32), np.ones(count, dtype=bool), centre[:count])

    assert speeds(rows, 1).tolist() == [1000]
    found = [speeds(rows, some) for some in range(1, count + 1)]
    assert all((now[:-1] <= then).all() for then, now in pairwise(found))
    last = found[-1].astype(np.int64)
    for wanted in (model.effective_milli(np.array(rows)), *np.array(rows).T[2:]):
        assert (wanted * last).sum() <= 1_000_000 or last.min() == 1  # none stands still for good
    rows[0] = tuple(max(pair) for pair in zip(rows[0], more, strict=True))
    assert (speeds(rows, count)[1:] <= last[1:]).all()
    unnamed = model.among(np.array(rows, np.int32), np.ones(count, dtype=bool), np.full(count, -1))
    assert (unnamed == model(np.array(rows, np.int32), np.ones(count, dtype=bool), 0)).all()


def test_with_a_table_of_cells_or_without_it_and_a_centre_at_a_time_the_speeds_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = np.random.default_rng(4)
    usage = draw.integers(0, 1001, (20, 5, 4)).astype(np.int32)
    usage[..., 1] *= 40
    there = np.ones((20, 5), dtype=bool)
    speeds = make_speeds("mps")
    by_table = speeds(usage, there, CARD_MIB)
    assert (speeds(usage[7:9], there[7:9], CARD_MIB) == by_table[7:9]).all()
    monkeypatch.setattr("berth.interference.contention.MOST_CELLS", 0)
    made = Contention.from_json(speeds.to_json(), "here")
    assert (made(usage, there, CARD_MIB) == by_table).all()
    monkeypatch.setattr("berth.interference.contention._AT_ONCE", 0)
    assert (made(usage, there, CARD_MIB) == by_table).all()


def slices(*mem_mib: int, cores: int = 1000) -> list[int]:
    """Speeds of tenants that the card always holds up: what their slices can do."""
    found = mig()(
        np.array([(1000, mem, cores, 0) for mem in mem_mib], np.int32), np.ones(len(mem_mib), bool), 8_000
    )
    return found.tolist()


def test_slices_are_as_large_as_all_can_have_and_as_memory_needs() -> None:
    work = dict(zip(COMPUTE, mig().work_milli, strict=True))

    def near(found: list[int], sizes: list[int]) -> bool:
        return all(abs(speed - work[size]) <= 1 for speed, size in zip(found, sizes, strict=True))

    assert near(slices(100), [7])
    assert near(slices(100, 100), [3, 3])
    assert near(slices(100, 100, 100), [2, 2, 2])
    assert near(slices(100, 100, 100, 100), [1, 1, 1, 1])
    assert near(slices(4_000, 100), [3, 3])
    assert near(slices(4_000, 100, 100), [3, 2, 2])
    assert near(slices(2_000, 2_000, 2_000, 900), [2, 2, 2, 1])
    assert slices(100, 100, 100, cores=0) == [1000, 1000, 1000]
    assert slices(4_001, 100) == [0, 0]  # the whole card, and one more
    assert slices(*[100] * 8) == [0] * 8
    rows = np.array([(1000, mem, 0, 0) for mem in (4_000, 4_001)], np.int32)
    before = np.array([(1000, mem, 0, 0) for mem in (4_000, 4_000)], np.int32)
    assert int(mig().crossed(rows, before, np.ones(2, bool), 8_000)) == 1
    assert int(mig().crossed(before, before, np.ones(2, bool), 8_000)) == -1


def test_time_slices_are_even_and_switching_costs() -> None:
    busy, calm = (1000, 0, 500, 0), (200, 0, 50, 0)
    even = 1_000_000 // (1000 + SWITCH_MILLI) // 2
    assert speeds_of("time-sliced", [busy, busy]) == [even, even]
    assert speeds_of("time-sliced", [calm, (0, 9_000, 0, 0)]) == [1000, 1000]
    quiet, loud = speeds_of("time-sliced", [calm, busy])
    assert quiet > loud  # who asks for less than its part keeps it
    cheap = time_sliced(np.array([busy, busy], dtype=np.int32), np.ones(2, bool), 0, switch_milli=0)
    assert cheap.tolist() == [500, 500]


def test_a_full_link_slows_who_uses_it() -> None:
    usage = np.array([[0, 0, 0, 900], [0, 0, 0, 600], [0, 0, 0, 0]], dtype=np.int32)
    assert pcie_shared(usage, np.ones(3, dtype=bool)).tolist() == [666, 666, 1000]


@pytest.mark.parametrize(
    ("now", "before", "present", "index"),
    [
        ([6_000, 6_288], [6_000, 6_288], [1, 1], -1),
        ([6_000, 6_289], [5_000, 6_289], [1, 1], 0),
        ([6_000, 6_289], [5_000, 6_000], [1, 1], 1),  # both have grown: the last
        ([6_000, 6_289], [6_000, 6_289], [1, 1], 1),  # nobody has: the last there is
        ([6_000, 6_289, 9_000], [5_000, 6_289, 0], [1, 1, 0], 0),
        ([6_000, 9_000], [0, 0], [1, 0], -1),
        ([12_289], [0], [1], 0),
        ([7_000, 3_000, 3_000], [7_000, 3_000, 0], [1, 1, 1], 2),  # a newcomer
    ],
)
def test_who_crosses_the_card_s_memory_fails(
    now: list[int], before: list[int], present: list[int], index: int
) -> None:
    def column(memory: list[int]) -> Usage:
        return np.array([[0, mem_mib, 0, 0] for mem_mib in memory], dtype=np.int32)

    found = crossed(column(now), column(before), np.array(present, dtype=bool), CARD_MIB)
    assert (int(found), found.dtype) == (index, np.int32)
    assert int(crossed(column(now), column(before), np.array(present, dtype=bool), 0)) == -1


def test_named_pairs_answer_for_their_cards_alone() -> None:
    named = published_names()
    resnet = "ResNet-50 (batch size 64)"
    pair = named.speeds_milli((resnet, "A3C"), "V100M32")
    assert pair is not None
    assert all(0 < speed < 1000 for speed in pair)
    three = named.speeds_milli((resnet, "A3C", resnet), "V100")
    assert three is not None
    assert all(now <= then for now, then in zip(three, pair, strict=False))
    assert named.speeds_milli((resnet,), "K80") == (1000,)
    assert named.speeds_milli((resnet, "mine"), "V100") is None
    assert named.speeds_milli((resnet, resnet), "A100-40") is None


def test_an_unknown_model_is_refused_with_the_choices() -> None:
    with pytest.raises(
        SettingError, match="no model of speeds 'fast'; there are none, time-sliced, mps, mig"
    ):
        make_speeds("fast")


@pytest.mark.parametrize("model", ONE_CARD)
def test_in_any_crowd_everybody_gets_on(model: str) -> None:
    assert min(speeds_of(model, [(1000, 100, 900, 1000)] * 1_500)) >= 1
