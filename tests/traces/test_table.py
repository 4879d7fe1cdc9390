"""Blocks of plain lines have the fields that `csv` finds in them."""

from __future__ import annotations

import csv

from hypothesis import given
from hypothesis import strategies as st

from berth.traces.table import PlainBlock, RowBlock

FIELD = st.text(st.sampled_from("0123456789a -é\0\udcff"), max_size=3) | st.integers(0, 10**20).map(str)


@given(
    st.integers(2, 4).flatmap(
        lambda width: st.lists(st.lists(FIELD, min_size=width, max_size=width), min_size=1)
    )
)
def test_a_plain_block_has_the_fields_and_numbers_of_its_rows(rows: list[list[str]]) -> None:
    width = len(rows[0])
    lines = [",".join(row) + "\r\n" for row in rows]
    plain, by_csv = PlainBlock.of(lines, width, 2), RowBlock([*csv.reader(lines)], range(2, 2 + len(rows)))
    assert plain is not None
    assert (
        (plain.rows, [*plain.last_lines])
        == (by_csv.rows, [*by_csv.last_lines])
        == (rows, [*by_csv.last_lines])
    )
    assert plain.is_even(width)
    assert by_csv.is_even(width)
    for column in range(width):
        assert [*plain.texts(column)] == [*by_csv.texts(column)]
        found, expected = plain.whole_numbers(column), by_csv.whole_numbers(column)
        assert (found is None) == (expected is None)
        assert found is None or expected is None or found.tolist() == expected.tolist()


def test_lines_with_quotes_or_another_number_of_fields_are_no_plain_block() -> None:
    for lines in (['"a",1\n'], ["a,1\n", "b\n"], ["a\n", "b,1,2\n"], ["a,1\r", "b,1\n"], ["\n"]):
        assert PlainBlock.of(lines, 2, 2) is None
    assert PlainBlock.of(["a,1\n", "b,2"], 2, 2) is not None
