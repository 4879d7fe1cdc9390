"""The board without a cluster: it decides as the simulator does, and nothing that was decided gets lost."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from berth.cluster import Cluster
from berth.errors import PolicyError
from berth.gpu_models import gpu_model
from berth.knowledge import make_knowledge
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.board import Board
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.entries import Settings
from berth.live.kubernetes.scheduling import Options, Scheduling
from berth.live.kubernetes.steps import Bind
from berth.model import Job, Node, Placement, Share
from berth.policies import Setting, make_policy
from berth.scheduler import Scheduler

MODEL = "A100-80"
CARD_MIB = 81_920


def node(name: str, gpus: int = 2, cpu: int = 64) -> api.Node:
    labels = {
        names.LABEL_GPU_COUNT: str(gpus),
        names.LABEL_GPU_MODEL: MODEL,
        names.LABEL_GPU_MEMORY_MIB: str(CARD_MIB),
    }
    there = {"cpu": str(cpu), "memory": "256Gi", names.RESOURCE: str(16 * gpus)}
    return _of(api.Node, {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": there}})


def pod(
    name: str, gpus: int = 1, *, on: str = "", cpu: str = "1", version: int = 1, **said: object
) -> api.Pod:
    takes = {"cpu": cpu, "memory": "1Gi", names.RESOURCE: str(gpus)}
    annotations = {f"berth.dev/{key.replace('_', '-')}": str(value) for key, value in said.items()}
    meta = {"name": name, "namespace": "n", "uid": f"uid-{name}", "annotations": annotations,
            "resourceVersion": str(version), "creationTimestamp": "2026-11-22T12:00:00Z"}  # fmt: skip
    spec = {"schedulerName": "berth", "nodeName": on, "containers": [{"resources": {"requests": takes}}]}
    return _of(api.Pod, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})


def _of(kind: type[Any], body: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def board_of(nodes: list[api.Node], pods: list[api.Pod], **settings: Any) -> Board:
    board = Board(Settings(**settings))
    for each in nodes:
        board.nodes.changed(each)
    board.sync_nodes(0)
    for each in pods:
        board.pod_changed(each, 0)
    board.begin(0)
    return board


@pytest.mark.parametrize(
    "policy", ["fifo+best-fit", "fifo+fgd", "easy+fifo+best-fit", "sjf-requested+first-fit"]
)
def test_pods_are_placed_as_the_simulator_places_the_same_jobs(policy: str) -> None:
    draw = random.Random(7)
    shapes = [
        (draw.choice((1, 1, 1, 2)), draw.choice((100, 250, 500, 1000)), draw.choice((1_000, 20_000, 60_000)))
        for _ in range(150)
    ]
    nodes = [node(f"n{at}", 4) for at in range(6)]
    pods = [
        pod(f"p{at}", gpus, version=at, gpu_milli=milli, gpu_mem_mib=mem)
        for at, (gpus, milli, mem) in enumerate(shapes)
    ]
    board = board_of(nodes, pods, policy=policy)
    bound = {step.name: (step.node, _indices(step)) for step in board.decide(1) if isinstance(step, Bind)}
    knowledge = make_knowledge("user")
    cluster = Cluster([Node(f"n{at}", 4, gpu_model(MODEL), 64_000, 256 * 1024) for at in range(6)])
    scheduler = Scheduler(cluster, make_policy(policy, Setting(knowledge=knowledge)), knowledge)
    for at, (gpus, milli, mem) in enumerate(shapes):
        scheduler.submit(
            Job(f"p{at}", 0, None, gpus=gpus, share=Share(milli, mem), cpu_milli=1000, mem_mib=1024)
        )
    simulated = {
        outcome.job.id: (cluster.nodes[outcome.slots[0].node].name, [slot.index for slot in outcome.slots])
        for outcome in scheduler.decide(1)
        if isinstance(outcome, Placement)
    }
    assert bound == simulated
    assert 20 < len(bound) < 150
    assert board.cluster.free_total_milli == cluster.free_total_milli


def _indices(step: Bind) -> list[int]:
    return [gpu["index"] for gpu in json.loads(step.placement)["gpus"]]


def test_a_gang_whose_handing_out_was_stopped_is_handed_out_whole() -> None:
    board = board_of([node("n1", 4)], [pod(f"g{at}", gang="g/4") for at in range(4)])
    steps = board.decide(1)
    first = [next(steps)]
    steps.close()  # type: ignore[attr-defined]
    rest = list(board.decide(2))
    assert sorted(step.name for step in [*first, *rest]) == ["g0", "g1", "g2", "g3"]


def test_a_restart_guesses_the_gpus_of_others_after_it_knows_its_own() -> None:
    before = board_of([node("n1", 2)], [pod("z")])
    (bind,) = before.decide(1)
    assert isinstance(bind, Bind)
    ours = pod("z", on="n1", placement=bind.placement, placed_uid="uid-z")
    theirs = pod("a", on="n1")  # listed first, and does not say which GPU it has
    after = board_of([node("n1", 2)], [theirs, ours])
    assert after.entries["uid-z"].state == "bound"
    assert after.overcommitted == set()
    after.pod_changed(pod("b", gpu_milli=1), 2)
    assert list(after.decide(3)) == []


def test_a_pod_of_ours_is_not_stopped_because_others_took_its_cpu() -> None:
    (bind,) = board_of([node("n1", 2, cpu=2)], [pod("a", cpu="2")]).decide(1)
    assert isinstance(bind, Bind)
    bound = pod("a", on="n1", cpu="2", placement=bind.placement, placed_uid="uid-a")
    after = board_of([node("n1", 2, cpu=1)], [bound])
    assert after.overcommitted == set()
    after.pod_changed(pod("b", 2, cpu="0"), 2)
    assert list(after.decide(3)) == []  # its GPU is not given away all the same


def test_what_two_leaders_gave_twice_is_noticed() -> None:
    (bind,) = board_of([node("n1", 1)], [pod("a", gpu_milli=600)]).decide(1)
    assert isinstance(bind, Bind)
    pods = [
        pod(name, on="n1", gpu_milli=600, placement=bind.placement, placed_uid=f"uid-{name}") for name in "ab"
    ]
    assert board_of([node("n1", 1)], pods).overcommitted == {"uid-b"}


def test_what_cannot_change_a_decision_leads_to_none() -> None:
    board = board_of([node("n1", 1)], [pod("a"), pod("waits")])
    assert board.has_news(1)
    (bind,) = board.decide(1)
    assert isinstance(bind, Bind)
    assert not board.has_news(2)
    board.bound("uid-a", 2)
    told = pod("waits", version=7)  # its condition was written
    told.status.conditions = [api.Condition("PodScheduled", "False")]
    board.pod_changed(told, 3)
    bound = pod("a", on="n1", placement=bind.placement, placed_uid="uid-a")
    board.pod_changed(bound, 4)
    bound.status.phase = "Running"
    board.pod_changed(bound, 5)
    board.nodes.changed(node("n1", 1))  # its kubelet lives
    assert not board.has_news(6)
    board.pod_changed(pod("b"), 7)
    assert board.has_news(7)
    assert list(board.decide(8)) == []
    assert not board.has_news(9)
    board.pod_gone(bound, 10)
    assert board.has_news(10)
    assert [step.name for step in board.decide(11) if isinstance(step, Bind)] == ["waits"]


@pytest.mark.parametrize("change", ["node", "ended", "failed", "foreign"])
def test_whatever_can_change_a_decision_leads_to_one(change: str) -> None:
    board = board_of([node("n1", 2)], [pod("a"), pod("waits", 2)])
    (bind,) = board.decide(1)
    assert isinstance(bind, Bind)
    assert not board.has_news(2)
    if change == "node":
        board.nodes.changed(node("n2", 2))
    elif change == "failed":
        board.bind_failed("uid-a", 2, again=True)
    elif change == "ended":
        done = pod("a", on="n1", placement=bind.placement, placed_uid="uid-a")
        done.status.phase = "Succeeded"
        board.pod_changed(done, 2)
    else:
        theirs = pod("theirs", on="n1")
        theirs.spec.scheduler_name = "other"
        board.pod_changed(theirs, 2)
    assert board.has_news(3)


def test_what_a_policy_that_failed_left_undecided_is_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Iterator[Any]:
        raise PolicyError("this once")

    async def decide() -> Board:
        scheduling = Scheduling(cast("Api", None), Options())
        scheduling.board = board = board_of([node("n1", 1)], [pod("a")])
        policy, board.scheduler.policy = board.scheduler.policy, fails
        assert await scheduling._decide_for_a_while()
        board.scheduler.policy = policy
        return board

    monkeypatch.setattr("berth.live.kubernetes.scheduling.RESTARTS_S", 0.0)
    board = asyncio.run(decide())
    assert board.has_news(1)
    assert [step.name for step in board.decide(1) if isinstance(step, Bind)] == ["a"]
