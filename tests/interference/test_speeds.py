"""Every model of speeds: alone is 1000, nobody is ever faster, nobody gains by a neighbour more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from berth.errors import SettingError
from berth.interference import SPEEDS, make_speeds
from berth.interference.contention import RANK, Contention, Law
from berth.interference.named import published_names
from berth.interference.speeds import crossed, pcie_shared
from berth.interference.time_sliced import SWITCH_MILLI, time_sliced

Usage = NDArray[np.int32]
ROW = st.tuples(*(st.integers(0, most) for most in (1000, 90_000, 1000, 1000)))
TENANTS = st.lists(ROW, min_size=1, max_size=10)
CARD_MIB = 12_288


def speeds_of(model: str, rows: list[tuple[int, ...]]) -> list[int]:
    found = make_speeds(model)(np.array(rows, dtype=np.int32), np.ones(len(rows), dtype=bool), CARD_MIB)
    assert found.dtype == np.int32
    return found.tolist()


@pytest.mark.parametrize("model", SPEEDS)
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


@pytest.mark.parametrize("model", SPEEDS)
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


@given(
    rows=st.lists(ROW, min_size=2, max_size=8),
    numbers=st.lists(st.integers(-2_000, 2_000), min_size=14, max_size=14),
    law=st.tuples(st.floats(-4, 4), st.floats(0, 4), st.floats(0, 4)),
)
def test_whatever_was_fitted_a_neighbour_more_helps_nobody(
    rows: list[tuple[int, ...]], numbers: list[int], law: tuple[float, float, float]
) -> None:
    from berth.interference.contention import cell_of

    known = np.unique(cell_of(np.array(rows[:2], dtype=np.int32)))
    coefficients = np.array(numbers, dtype=np.int32).reshape(2, 3 + 2 * RANK)[: len(known)]
    coefficients[:, -1] = np.abs(coefficients[:, -1]) + 1
    model = Contention(Law(*law), known, coefficients)

    def speeds(count: int) -> list[int]:
        found: Usage = model(np.array(rows[:count], dtype=np.int32), np.ones(count, dtype=bool), 0)
        return found.tolist()

    assert speeds(1) == [1000]
    for count in range(2, len(rows) + 1):
        assert all(0 <= now <= then for now, then in zip(speeds(count), speeds(count - 1), strict=False))


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
        SettingError, match="no model of speeds 'fast'; there are none, measured, time-sliced"
    ):
        make_speeds("fast")


@pytest.mark.parametrize("model", SPEEDS)
def test_in_any_crowd_everybody_gets_on(model: str) -> None:
    assert min(speeds_of(model, [(1000, 100, 900, 1000)] * 1_500)) >= 1
