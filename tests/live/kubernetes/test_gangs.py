"""Gangs: whole or not at all, through restarts, preemption and others that never fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from berth.live.kubernetes import objects as api
from berth.live.kubernetes.gangs import TIME_OUT_MS
from berth.live.kubernetes.names import GATE
from berth.live.kubernetes.pod_site import PATIENCE_MS
from berth.live.kubernetes.steps import Evict, Lift
from tests.live.kubernetes.steered import Steered, bound, ended, lifted, node, pod, refused, steered


def test_a_completed_pod_counts_after_a_restart_as_it_did_before() -> None:
    before = steered([node("n1", 4)], [pod(f"g{at}", gang="g/4") for at in range(4)])
    binds = before.lifts(1)
    there = [bound(binds["g0"], gang="g/4"), bound(binds["g1"], gang="g/4")]
    done = ended(bound(binds["g2"], gang="g/4"))
    again = pod("g4", gang="g/4")  # its owner made it anew for g3
    after = steered([node("n1", 4)], [done, *there, again])
    assert sorted(after.lifts(1)) == ["g4"]


def test_a_gang_runs_again_while_the_pods_of_its_last_run_are_there() -> None:
    first = steered([node("n1", 2)], [pod(f"g{at}", gang="g/2") for at in range(2)])
    old = [ended(bound(bind, gang="g/2")) for bind in first.lifts(1).values()]
    for each in old:
        first.pods(2, each)
    for board in (first, steered([node("n1", 2)], old)):
        board.pods(3, pod("h0", gang="g/2"))
        assert board.lifts(4) == {}
        board.pods(5, pod("h1", gang="g/2"))
        assert sorted(board.lifts(6)) == ["h0", "h1"]


def test_a_gang_gives_way_whole() -> None:
    board = steered(
        [node("n1", 2), node("n2", 2)],
        [pod(f"g{at}", gang="g/4", gpu_milli=1000, gpu_mem_mib=1000) for at in range(4)],
        policy="preempt+fifo+best-fit",
    )
    for bind in board.lifts(1).values():
        board.pods(2, bound(bind, gang="g/4", gpu_milli=1000, gpu_mem_mib=1000))
    urgent = pod("urgent", gpu_milli=1000, gpu_mem_mib=1000)
    urgent.spec.priority = 1000
    board.pods(3, urgent)
    steps = board.steps(4)
    assert sorted(step.name for step in steps if isinstance(step, Evict)) == ["g0", "g1", "g2", "g3"]


def test_a_pod_whose_gang_is_edited_while_it_runs_is_forgotten_by_the_gang_that_it_was_in() -> None:
    board = steered([node("n1", 4)], [pod(f"g{at}", gang="g/2", owner="Job/train") for at in range(2)])
    lifts = board.lifts(1)
    board.pods(2, *(lifted(lift, gang="g/2", owner="Job/train") for lift in lifts.values()))
    board.pods(3, edited := lifted(lifts["g0"], gang="h/2", owner="Job/train"))
    board.steps(3)
    assert (board.site.gangs.pods(("n", "g")), board.site.gangs.pods(("n", "h"))) == (["uid-g1"], ["uid-g0"])
    board.gone(4, edited)
    board.pods(5, refused(lifted(lifts["g1"], gang="g/2", owner="Job/train"), "no"))
    board.steps(5)
    assert board.evicted(5 + PATIENCE_MS) == ["g1"]


def test_gangs_that_never_fit_stop_no_other_and_hold_nothing() -> None:
    large = [
        pod(f"l{gang:02}-{at}", gang=f"l{gang:02}/5", version=gang) for gang in range(20) for at in range(5)
    ]
    small = [pod(f"s{at}", gang="s/2", version=99) for at in range(2)]
    board = steered([node("n1", 4)], [*large, *small])
    lifts: dict[str, Lift] = {}
    for now in range(1, 4):
        lifts |= board.lifts(now)
    assert sorted(lifts) == ["s0", "s1"]


LWS = {
    "leaderworkerset.sigs.k8s.io/name": "serve",
    "leaderworkerset.sigs.k8s.io/group-index": "{group}",
    "leaderworkerset.sigs.k8s.io/worker-index": "{member}",
    "leaderworkerset.sigs.k8s.io/group-key": "4{group}8b8a9dfb5a0e1f",
    "leaderworkerset.sigs.k8s.io/template-revision-hash": "794ccff98",
}
JOB_SET = {
    "jobset.sigs.k8s.io/jobset-name": "train",
    "jobset.sigs.k8s.io/replicatedjob-name": "node",
    "jobset.sigs.k8s.io/replicatedjob-replicas": "2",
    "jobset.sigs.k8s.io/job-index": "{member}",
    "jobset.sigs.k8s.io/job-global-index": "{member}",
    "jobset.sigs.k8s.io/restart-attempt": "{group}",
    "batch.kubernetes.io/job-name": "train-node-{member}",
}
KUBEFLOW = {
    "training.kubeflow.org/job-name": "bert{group}",
    "training.kubeflow.org/operator-name": "pytorchjob-controller",
    "training.kubeflow.org/replica-type": "worker",
    "training.kubeflow.org/replica-index": "{member}",
}


def grouped(labels: dict[str, str], group: int, member: int, **said: object) -> api.Pod:
    """A pod as a controller labels it."""
    made = pod(f"g{group}-{member}", **said)  # type: ignore[arg-type]
    made.metadata.labels = {key: text.format(group=group, member=member) for key, text in labels.items()}
    return made


@pytest.mark.parametrize(
    ("labels", "title"),
    [(LWS, "LeaderWorkerSet:serve-1"), (JOB_SET, "JobSet:train-1"), (KUBEFLOW, "Kubeflow:bert1")],
)
def test_pods_with_a_size_alone_start_with_the_group_of_their_controllers_labels(
    labels: dict[str, str], title: str
) -> None:
    board = steered(
        [node("n1", 8)],
        [grouped(labels, 0, 0, gang="2"), grouped(labels, 0, 1, gang="2"), grouped(labels, 1, 0, gang="2")],
    )
    assert sorted(board.lifts(1)) == ["g0-0", "g0-1"]
    assert board.why("g1-0") == f"waits for 1 more task of gang {title}"
    board.pods(2, grouped(labels, 1, 1, gang="2"))
    assert sorted(board.lifts(3)) == ["g1-0", "g1-1"]


EXAMPLES = Path(__file__).parents[3] / "examples" / "kubernetes" / "gangs"


@pytest.mark.parametrize(
    ("example", "template", "labels", "size"),
    [
        ("jobset", "spec.replicatedJobs.0.template.spec.template", JOB_SET, 4),
        ("pytorchjob", "spec.pytorchReplicaSpecs.Worker.template", KUBEFLOW, 3),
        ("leaderworkerset", "spec.leaderWorkerTemplate.workerTemplate", LWS, 2),
        ("podgroup", "spec.template", {}, 3),
        ("workload", "spec.template", {}, 3),
    ],
)
def test_the_pods_of_each_kind_of_gang_start_together_by_its_manifest(
    example: str, template: str, labels: dict[str, str], size: int
) -> None:
    """Pods as the controllers make them of the manifests in `examples`, with their labels."""
    *groups, of_pods = yaml.safe_load_all((EXAMPLES / f"{example}.yaml").read_text())
    found = of_pods
    for word in template.split("."):
        found = found[int(word) if word.isdecimal() else word]
    pods = []
    for at in range(size):
        made = grouped(labels, 0, at)
        meta = found.get("metadata", {})
        of_controller = made.metadata.labels
        made = api_pod(
            made, {"metadata": meta, "spec": {**found["spec"], "schedulingGates": [{"name": GATE}]}}
        )
        made.metadata.labels |= of_controller
        pods.append(made)
    board = steered([node("n1", 8)], pods[:-1])
    for each in groups:
        kind = msgspec.convert({**each, "metadata": {**each["metadata"], "namespace": "n"}}, api.PodGroup)
        board.site.pod_group_changed(each["apiVersion"].partition("/")[0], kind, 1)
    assert board.lifts(1) == {}
    board.pods(2, pods[-1])
    assert sorted(board.lifts(3)) == [f"g0-{at}" for at in range(size)]


def api_pod(known: api.Pod, body: dict[str, Any]) -> api.Pod:
    """A pod of this body, with the identity of a known one."""
    made = msgspec.convert(body, api.Pod)
    for name in ("name", "namespace", "uid", "resource_version", "creation_timestamp"):
        setattr(made.metadata, name, getattr(known.metadata, name))
    return made


@pytest.mark.parametrize("labels", [LWS, JOB_SET, KUBEFLOW])
def test_groups_whose_pods_say_no_size_start_pod_by_pod(labels: dict[str, str]) -> None:
    assert sorted(steered([node("n1", 8)], [grouped(labels, 0, 0)]).lifts(1)) == ["g0-0"]


def test_groups_of_one_name_of_two_controllers_and_of_a_user_are_three_gangs() -> None:
    alike = {"training.kubeflow.org/job-name": "g"}, {"jobset.sigs.k8s.io/jobset-name": "g"}
    pods = [grouped(labels, 0, at, gang="2") for at, labels in enumerate(alike)]
    board = steered([node("n1", 8)], [*pods, pod("named", gang="g/2")])
    assert board.lifts(1) == {}


def test_a_size_without_a_name_or_a_group_is_explained() -> None:
    board = steered([node("n1", 8)], [pod("a", gang="2")])
    assert board.lifts(1) == {}
    assert board.why("a") == (
        "annotation berth.dev/gang is '2'; a size without a name is for pods of LeaderWorkerSet, JobSet, Kubeflow;"
        " expected NAME/SIZE, such as train/4"
    )


@pytest.mark.parametrize(
    ("policy", "others"), [("passing+fifo+best-fit", ["s0", "s1"]), ("fifo+best-fit", [])]
)
def test_gangs_that_have_no_room_hold_up_others_as_the_policy_says(policy: str, others: list[str]) -> None:
    large = [
        pod(f"l{gang:02}-{at}", gang=f"l{gang:02}/4", version=gang) for gang in range(20) for at in range(4)
    ]
    fits = [pod(f"s{at}", gang="s/2", version=99, gpu_milli=1, gpu_mem_mib=1) for at in range(2)]
    full = pod("full", 4, on="n1", gpu_milli=999, gpu_mem_mib=80_000)
    before = steered([node("n1", 4)], [pod("full", 4, gpu_milli=999, gpu_mem_mib=80_000)])
    full = bound(before.lifts(1)["full"], gpu_milli=999, gpu_mem_mib=80_000)
    full.spec.containers = pod("full", 4).spec.containers
    board = steered([node("n1", 4)], [full, *large, *fits], policy=policy)
    lifts: dict[str, Lift] = {}
    for now in range(1, 5):
        lifts |= board.lifts(now)
    assert sorted(lifts) == others


def test_a_gate_that_cannot_be_lifted_waits_longer_each_time_and_keeps_no_place() -> None:
    board = steered([node("n1", 1)], [pod("a"), pod("b", version=2)])
    assert sorted(board.lifts(1)) == ["a"]
    board.site.start_failed("uid-a", "a webhook says no")
    assert sorted(board.lifts(11)) == ["b"]
    assert board.driver.next_ms(11) == 1011
    assert "a webhook says no" in board.why("a")
    board.gone(12, pod("b"))
    assert board.lifts(13) == {}
    assert sorted(board.lifts(1011)) == ["a"]
    board.site.start_failed("uid-a", "a webhook says no")
    assert board.lifts(2000) == {}
    assert board.driver.next_ms(2000) == 4000


def test_a_gang_of_which_one_pod_is_refused_gives_back_all_that_kube_scheduler_has_not_bound() -> None:
    said = {"gang": "g/3", "owner": "Job/train"}
    board = steered([node("n1", 3)], [pod(f"g{at}", **said) for at in range(3)])
    lifts = board.lifts(1)
    board.pods(2, refused(lifted(lifts["g0"], **said), "no"), lifted(lifts["g1"], **said))
    board.pods(2, bound(lifts["g2"], **said))
    assert board.evicted(3) == []
    assert board.evicted(2 + PATIENCE_MS) == ["g0", "g1"]


def in_part(**more: object) -> tuple[Steered, dict[str, object]]:
    """A gang of three of which kube-scheduler has bound two, and refused one: its controller makes that one anew."""
    said = {"gang": "g/3", "owner": "Job/train"} | more
    board = steered([node("n1", 1), node("n2", 1), node("n3", 1)], [pod(f"g{at}", **said) for at in range(3)])
    lifts = board.lifts(1)
    board.pods(2, *(bound(lifts[name], **said) for name in ("g0", "g1")))
    board.pods(2, refused(lifted(lifts["g2"], **said), "no"))
    assert board.evicted(2 + PATIENCE_MS) == ["g2"]
    board.gone(3 + PATIENCE_MS, lifted(lifts["g2"], **said))
    board.pods(4 + PATIENCE_MS, pod("g3", **said))
    assert board.lifts(5 + PATIENCE_MS) == {}  # there is no other node
    return board, said


def test_a_gang_that_is_started_in_part_for_too_long_gives_all_its_parts_back() -> None:
    board, _ = in_part()
    late_ms = 1 + TIME_OUT_MS
    assert board.site.next_ms() is not None
    assert board.evicted(late_ms - 1) == []
    assert board.evicted(late_ms) == ["g0", "g1"]
    assert board.evicted(late_ms + TIME_OUT_MS) == []


def test_a_steerer_that_begins_anew_knows_since_when_a_gang_has_been_started_in_part() -> None:
    said = {"gang": "g/3", "owner": "Job/train"}
    nodes = [node(f"n{at}", 1) for at in range(3)]
    lifts = steered(nodes, [pod(f"g{at}", **said) for at in range(3)]).lifts(1000)
    pods = [bound(lifts["g0"], **said), bound(lifts["g1"], **said), lifted(lifts["g2"], **said)]
    anew = steered(nodes, pods)
    late_ms = 1000 + TIME_OUT_MS
    assert anew.evicted(late_ms - 1) == []
    assert anew.evicted(late_ms) == ["g0", "g1", "g2"]
    pods[0].status.start_time = "1970-01-01T00:00:05Z"  # kube-scheduler was down before that
    pods[1].status.start_time = "1970-01-01T00:00:06Z"
    again = steered(nodes, pods)
    assert again.evicted(late_ms) == []
    assert again.site.next_ms() == 5000 + TIME_OUT_MS
    assert again.evicted(5000 + TIME_OUT_MS) == ["g0", "g1", "g2"]


def test_a_gang_that_is_whole_in_time_runs_on() -> None:
    board, said = in_part()
    board.nodes(20_000, node("n4", 1))
    (lift,) = board.lifts(20_001).values()
    board.pods(20_002, bound(lift, **said))
    assert board.evicted(2 + PATIENCE_MS + TIME_OUT_MS) == []


def test_a_gang_of_which_a_gate_stays_gives_its_parts_back_though_none_was_bound_by_then() -> None:
    said = {"gang": "g/3", "owner": "Job/train"}
    nodes = {name: node(name, 1) for name in ("n1", "n2", "n3")}
    board = steered(nodes.values(), [pod(f"g{at}", **said) for at in range(3)])
    lifts = board.lifts(1)
    board.pods(2, *(lifted(lifts[name], **said) for name in ("g0", "g1")))
    board.site.start_failed("uid-g2", "its gate is not lifted")
    nodes[lifts["g2"].node].spec.unschedulable = True
    board.nodes(3, nodes[lifts["g2"].node])
    assert board.evicted(4) == []
    board.pods(5, *(bound(lifts[name], **said) for name in ("g0", "g1")))
    assert board.evicted(4 + TIME_OUT_MS - 1) == []
    assert board.evicted(4 + TIME_OUT_MS) == ["g0", "g1"]


def test_bound_pods_that_nothing_would_make_anew_are_not_evicted_with_their_gang() -> None:
    board = steered([node("n1", 1), node("n2", 1)], [pod(f"g{at}", gang="g/2") for at in range(2)])
    lifts = board.lifts(1)
    board.pods(2, bound(lifts["g0"], gang="g/2"), refused(lifted(lifts["g1"], gang="g/2"), "no"))
    board.steps(2 + PATIENCE_MS)
    assert board.evicted(2 + PATIENCE_MS + TIME_OUT_MS) == []


def arrivals_until_large_starts(policy: str, *, gangs: bool, priority: int = 0, most: int = 40) -> int:
    """Two GPUs, a waiting pod of both, and pods of one GPU for 10 minutes every 5 minutes: how many of these arrive
    before the large one is bound."""
    board = steered([node("n1", 2)], [], policy=policy)
    ends: dict[str, tuple[int, api.Pod]] = {}
    large = pod("large", 2, version=1)
    large.spec.priority = priority
    for at in range(most):
        now = 1 + at * 300_000
        for name, (end_ms, there) in list(ends.items()):
            if end_ms <= now:
                del ends[name]
                board.pods(now, ended(there))
                board.gone(now, there)
        said = {"gang": f"g{at}/1"} if gangs else {}
        small = pod(f"s{at}", version=2 + at, **said)
        small.spec.priority = -5 if priority else 0
        board.pods(now, small)
        if at == 0:
            board.pods(now, large)
        for bind in board.lifts(now).values():
            if bind.name == "large":
                return at + 1
            there = bound(bind, **said)
            board.pods(now, there)
            ends[bind.name] = (now + 600_000, there)
    return most


@pytest.mark.parametrize("policy", ["fifo+best-fit", "easy+fifo+best-fit", "priority+best-fit"])
@pytest.mark.parametrize("priority", [0, 1000])
def test_small_gangs_starve_a_large_pod_no_more_than_small_pods_do(policy: str, priority: int) -> None:
    plain = arrivals_until_large_starts(policy, gangs=False, priority=priority)
    assert plain < 5
    assert arrivals_until_large_starts(policy, gangs=True, priority=priority) == plain


def test_a_gang_does_not_pass_a_pod_of_a_higher_priority() -> None:
    board = steered([node("n1", 2)], [pod("runs")], policy="priority+best-fit")
    assert sorted(board.lifts(1)) == ["runs"]
    high = pod("high", 2)
    high.spec.priority = 1000
    low = pod("low", gang="low/1")
    low.spec.priority = -5
    for each in (low, high):
        board.pods(2, each)
    assert board.lifts(3) == {}
    board.gone(4, pod("runs"))
    assert sorted(board.lifts(5)) == ["high"]


def test_pods_of_a_gang_run_on_when_another_of_it_loses_its_node() -> None:
    board = steered([node("n1", 1), node("n2", 1)], [pod(f"g{at}", gang="g/2") for at in range(2)])
    for bind in board.lifts(1).values():
        board.pods(2, bound(bind, gang="g/2"))
    board.site.node_gone(node("n2", 1))
    assert board.steps(3) == []
    assert len(board.cluster.running) == 1
