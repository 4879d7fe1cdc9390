"""Settings of the policies of the baselines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import berth_papers.baselines
from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.errors import ModelError, PolicyError, SettingError
from berth.interference import make_interference, make_speeds
from berth.interference.profiled import ProfiledInterference
from berth.knowledge import Oracle
from berth.model import EventKind, Job, Node, Placement, Profile
from berth.policies import Setting, make_policy
from berth.policies.colocation.colocating import Colocating
from berth.profiles import THESIS_GPU, thesis_profiles

PEAKS = Path(berth_papers.baselines.__file__).parent / "models" / "deeprm-max-mps.npz"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            f"learned?model={PEAKS}",
            ModelError,
            "learned from the peak of jobs; learned is shown their series",
        ),
        (
            "deeprm-mean?model=deeprm-max-mps",
            ModelError,
            "deeprm-mean is shown their mean: .*--learner deeprm-mean",
        ),
        ("deeprm-max?model=learned-mps", ModelError, "model 'learned-mps' learned from the series of jobs"),
        ("deeprm-max?window=3", SettingError, "no setting 'window'; there are model"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_can(
    name: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message.replace("?", r"\?")):
        make_policy(name)
    assert not issubclass(kind, PolicyError)


@pytest.mark.parametrize("name", ["deeprm-max", "deeprm-mean", "dqn"])
def test_what_is_kept_of_a_cluster_lies_on_its_memo_alone(name: str) -> None:
    policy = make_policy(name, Setting(0, knowledge=Oracle((), make_interference("mps"))))
    assert isinstance(policy, Colocating)
    before = {key for key, value in vars(policy).items() if isinstance(value, dict | list | set) and value}
    cluster, queue = Cluster([Node(f"n{at}", 2, THESIS_GPU) for at in range(2)]), Queue()
    for at, application in enumerate(sorted(thesis_profiles())):
        queue.add(Job(f"j{at}", 0, 100_000, application=application))
    for now_ms in (0, 1000):
        for decision in policy(queue, cluster, now_ms):
            if isinstance(decision, Placement):
                cluster.place(decision, now_ms=now_ms)
                queue.remove(decision.job)
    kept = cluster.memo[policy]
    assert kept.may
    own = {key for key, value in vars(policy).items() if isinstance(value, dict | list | set) and value}
    assert own - before <= {"_pairs", "_demands", "_catalogues"}  # of profiles, whatever the cluster
    cluster.memo.clear()  # as when a node changes
    list(policy(queue, cluster, 2000))
    assert cluster.memo[policy] is not kept


@pytest.mark.parametrize("column", [0, 2, 3], ids=["gpu", "cores", "pcie"])
@pytest.mark.parametrize(
    ("name", "together"), [("deeprm-max", False), ("dqn", False), ("deeprm-max?within=memory", True)]
)
def test_two_jobs_that_ask_for_more_than_a_resource_run_in_turn(
    name: str, together: bool, column: int
) -> None:
    usage = np.zeros((60, 4))
    usage[:, column] = 0.6
    profiles = {"half": Profile("half", "", 0, "", THESIS_GPU, 1000, usage)}
    interference = ProfiledInterference(profiles, make_speeds("mps"))
    jobs = [Job(str(at), 0, 60_000, application="half") for at in range(2)]
    policy = make_policy(name, Setting(0, knowledge=Oracle(jobs, interference)))
    one = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
    events = list(simulate(jobs, one, policy, interference=interference))
    starts_ms = [event.time_ms for event in events if event.kind == EventKind.START]
    assert (starts_ms[1] == 0) == together
