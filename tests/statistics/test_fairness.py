"""Fairness: worked by hand, and what must hold of any run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.cluster import Cluster
from berth.engine import simulate
from berth.model import Job, Node
from berth.statistics import event_columns, finish_time_fairness, jain_index, service


def test_jains_index_is_one_for_equals_and_one_nth_where_one_has_all() -> None:
    assert jain_index(np.array([3.0, 3.0, 3.0])) == pytest.approx(1)
    assert jain_index(np.array([5.0, 0.0, 0.0, 0.0])) == pytest.approx(1 / 4)
    assert jain_index(np.array([1.0, 2.0])) == pytest.approx(9 / 10)
    assert np.isnan(jain_index(np.empty(0)))


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=20))
def test_jains_index_lies_between_one_nth_and_one(values: list[float]) -> None:
    index = jain_index(np.array(values))
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9


def test_two_jobs_on_one_gpu_are_worked_by_hand() -> None:
    nodes = [Node("a", 1)]
    jobs = [Job("one", 0, 100, "ann"), Job("two", 0, 100, "bob")]
    columns = event_columns(simulate(jobs, Cluster(nodes), "fifo"))
    # Both are there until 100, when contention falls from 2 to 1: 100 / (100·2), and 200 / (100·1.5).
    assert finish_time_fairness(columns, nodes).tolist() == pytest.approx([0.5, 4 / 3])
    assert service(columns, columns.users).tolist() == pytest.approx([1.0, 0.5])


def test_who_has_no_name_and_what_has_no_work_is_left_out() -> None:
    nodes = [Node("a", 1)]
    jobs = [Job("nameless", 0, 100), Job("nothing", 0, 0, "ann"), Job("cpu", 0, 10, "bob", gpus=0)]
    columns = event_columns(simulate(jobs, Cluster(nodes), "fifo"))
    assert len(finish_time_fairness(columns, nodes)) == 2
    assert service(columns, columns.users).tolist() == pytest.approx([0.0, 10 / 110])  # the order is strict
