"""GPUs of a model that some jobs name are left to them while an inflation goes on."""

import numpy as np
import pytest

from berth.model import Node
from berth_papers.inflate import Arrivals, inflate
from tests.policies.genetic.test_scarcity import A100, T4, any_gpu, one_t4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "held_pct"), [("genetic?fragmentation=0", 100.0), ("genetic?fragmentation=0&scarcity=0", 50.0)]
)
def test_jobs_with_a_choice_leave_the_named_model_to_those_who_come_later(policy, held_pct) -> None:
    # Without scarcity all nodes look alike to the first four, and node `b` comes first.
    nodes = [Node("b", 4, T4), Node("a", 4, A100)]
    usual = [any_gpu(f"a{at}") for at in range(4)] + [one_t4(f"t{at}") for at in range(4)]
    order = Arrivals(np.arange(8))
    run = inflate(nodes, usual, policy, seed=0, arrivals=order, batch=4)
    assert run.curve.allocation_pct[100] == held_pct
