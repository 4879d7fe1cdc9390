"""GPUs in a label, and what a claim consumes: both are written on one side and read on the other."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.errors import AskError
from berth.live.kubernetes.nodes import indices_of, label_of
from berth.live.kubernetes.pod_requests import consumed_of
from tests.examples import examples

LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
"""What Kubernetes takes as a label's value."""


@settings(max_examples=examples(50))
@given(st.sets(st.integers(0, 40), max_size=16))
def test_what_is_written_into_a_label_is_read_again(indices: set[int]) -> None:
    text = label_of(indices)
    assert LABEL.fullmatch(text)
    assert len(text) <= 63
    assert indices_of(text) == tuple(sorted(indices))


def test_gpus_that_follow_each_other_are_one_range() -> None:
    assert label_of([0, 1, 2, 3, 6]) == "0-3.6"
    assert label_of([]) == ""


@pytest.mark.parametrize("text", ["a", "0..1", "3-1", "-1", "0-9999", "0,1", "²", "0-40.50-90"])
def test_a_label_that_names_no_gpus_is_refused(text: str) -> None:
    with pytest.raises(AskError, match="GPUs"):
        indices_of(text)


def test_gpus_that_do_not_fit_into_a_label_are_refused_at_its_writer() -> None:
    with pytest.raises(AskError, match="63 characters"):
        label_of(range(0, 60, 2))


def test_what_a_claim_consumes_is_read_by_both_ways_of_writing_it() -> None:
    assert consumed_of({"memory": "8Gi", "milli": "200"}) == (8192, 200)
    assert consumed_of({"gpu.berth.dev/memory": "8Gi", "gpu.berth.dev/milli": "1k"}) == (8192, 1000)
    assert consumed_of({"memory": "8Gi"}) == (8192, None)
    with pytest.raises(AskError):
        consumed_of({"memory": "much"})
