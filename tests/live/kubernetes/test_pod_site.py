"""The site without a cluster: it decides as the simulator does, counts from the patch on, and gives back."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from berth.cluster import Cluster
from berth.errors import SettingError
from berth.gpu_models import gpu_model
from berth.knowledge import make_knowledge
from berth.live.driver.snapshot import Tenant
from berth.live.driver.wait_reasons import WaitKind
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.pod_site import AVOID_MS, PATIENCE_MS, SILENCE_MS, State
from berth.live.kubernetes.steps import Evict, Lift, Patch, Step
from berth.live.kubernetes.viewing import snapshot
from berth.model import Job, Node, Placement, Share
from berth.policies import Setting, make_policy
from berth.scheduler import Scheduler
from tests.live.kubernetes.steered import (
    MODEL,
    Steered,
    bound,
    ended,
    indices,
    lifted,
    node,
    of,
    pod,
    refused,
    steered,
)

WORDS = "0/1 nodes are available: 1 node(s) had volume node affinity conflict."


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
    board = steered(nodes, pods, policy=policy, knowledge="user")
    placed = {name: (step.node, indices(step)) for name, step in board.lifts(1).items()}
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
    assert placed == simulated
    assert 20 < len(placed) < 150
    assert board.cluster.free_total_milli == cluster.free_total_milli


def test_a_pod_counts_from_the_patch_until_it_has_ended() -> None:
    board = steered([node(gpus=1)], [pod("a")])
    lift = board.lifts(1)["a"]
    board.pods(2, pod("b"))
    for now, there in enumerate((lifted(lift), bound(lift)), 3):
        board.pods(now, there)
        assert board.lifts(now) == {}
    board.pods(6, ended(bound(lift)))
    assert list(board.lifts(6)) == ["b"]


def grown(each: api.Pod, limit_mib: int, ordered: str = "", **more: Any) -> api.Pod:
    """A running pod, as its node's agent says how far it has grown from 20,000 MiB, and what the steerer ordered."""
    memory = {"promise_mib": 20_000, "limit_mib": limit_mib, "max_mib": 60_000, **more}
    said = each.metadata.annotations | {names.GPU_MEMORY: json.dumps(memory)}
    said |= {names.SUSPEND: ordered} if ordered else {}
    return msgspec.structs.replace(each, metadata=msgspec.structs.replace(each.metadata, annotations=said))


def seen(running: api.Pod) -> Tenant:
    """A pod alone on a card, as `berth k8s status` shows it."""
    board = Steered()
    board.nodes(1, node(gpus=1))
    board.pods(1, running)
    (tenant,) = snapshot(board.site, 3, 10).gpus[0].tenants
    return tenant


def test_what_a_pod_has_grown_by_is_given_to_no_other() -> None:
    board = steered([node(gpus=1)], [pod("a", gpu_milli=300, gpu_mem_mib=20_000)])
    first = bound(board.lifts(1)["a"])
    board.pods(2, grown(first, 50_000), pod("b", gpu_milli=300, gpu_mem_mib=40_000))
    assert board.lifts(3) == {}
    tenant = seen(grown(first, 50_000))
    assert (tenant.promise_mib, tenant.mem_mib, tenant.max_mib) == (20_000, 50_000, 60_000)
    board.pods(4, ended(first))
    assert list(board.lifts(5)) == ["b"]


def test_a_pod_that_says_to_have_grown_counts_no_more_than_its_card_and_no_less_than_its_promise() -> None:
    board = steered([node(gpus=1)], [pod("a", gpu_milli=300, gpu_mem_mib=20_000)])
    first = bound(board.lifts(1)["a"])
    for limit_mib, counted in ((1 << 23, 81_920), (1, 20_000), (-5, 20_000)):
        assert seen(grown(first, limit_mib)).mem_mib == counted


@pytest.mark.parametrize("on", ["", "n2"])
def test_a_pod_that_ended_elsewhere_than_it_was_meant_for_leaves_nothing_there(on: str) -> None:
    board = steered([node("n1"), node("n2")], [pod("a", owner="Job/train")])
    lift = board.lifts(1)["a"]
    assert lift.node == "n1"
    board.pods(2, lifted(lift, owner="Job/train"))
    board.pods(3, failed := ended(lifted(lift, owner="Job/train", on=on), "Failed"))
    board.steps(3)
    board.gone(4, failed)
    board.pods(5, pod("b", 2, version=9))
    assert board.lifts(5)["b"].node == "n1"


def test_the_pin_is_added_to_what_the_pod_requires_of_nodes() -> None:
    each = pod("a")
    terms = (api.Term((api.Expression("disk", "In", ("ssd",)),)),)
    each.spec.affinity = api.Affinity(api.NodeAffinity(api.NodeSelector(terms)))
    there = node("n2")
    there.metadata.labels["disk"] = "ssd"
    lift = steered([node("n1"), there], [each]).lifts(1)["a"]
    assert (lift.node, lift.terms) == ("n2", tuple(terms))


def on_hosts(*nodes: api.Node) -> list[api.Node]:
    for each in nodes:
        each.metadata.labels[names.HOSTNAME] = f"host-{each.metadata.name}"
    return list(nodes)


UNREAD: dict[str, dict[str, Any]] = {
    "anti-affinity": {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}
    },
    "affinity": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
    "spread": {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
    "volume": {"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]},
    "claim": {"resourceClaims": [{"name": "d"}]},
    "port": {"containers": [{"name": "main", "ports": [{"hostPort": 80}]}]},
    "resource": {"containers": [{"name": "main", "resources": {"requests": {"example.com/fpga": "1"}}}]},
}


def ruled(each: api.Pod, rule: dict[str, Any]) -> api.Pod:
    body = json.loads(msgspec.json.encode(each))
    more = dict(rule)
    for container in more.pop("containers", ()):
        main = body["spec"]["containers"][0]
        main["ports"] = container.get("ports", [])
        main["resources"]["requests"] |= container.get("resources", {}).get("requests", {})
    body["spec"] |= more
    return of(api.Pod, body)  # type: ignore[no-any-return]


@pytest.mark.parametrize("rule", UNREAD)
def test_a_pod_of_which_kube_scheduler_alone_can_tell_may_go_to_all_nodes_that_have_room(rule: str) -> None:
    full = pod("full", 2, on="n3", placement='{"node": "n3", "gpus": []}')
    nodes = on_hosts(node("n1"), node("n2"), node("n3", cpu=1), node("n4"))
    del nodes[3].metadata.labels[names.HOSTNAME]
    pod_requests = ruled(pod("a", cpu="2"), UNREAD[rule])
    lifts = steered(nodes, [pod_requests, pod("plain", cpu="2"), full]).lifts(1)
    assert lifts["plain"].hosts == ()
    assert lifts["a"].node == "n1"
    assert lifts["a"].hosts == ("host-n1", "host-n2")


def test_a_pod_goes_to_one_of_several_nodes_where_others_keep_pods_away() -> None:
    nodes = on_hosts(node("n1"), node("n2"))
    board = steered(nodes, [ruled(pod("wary", 0, on="n1"), UNREAD["anti-affinity"]), pod("a")])
    assert board.lifts(1)["a"].hosts == ("host-n1", "host-n2")
    board.gone(2, pod("wary", 0, on="n1"))
    board.pods(3, pod("b", version=2))
    assert board.lifts(3)["b"].hosts == ()


def test_all_nodes_that_refused_a_pod_are_avoided_by_those_alike() -> None:
    rule = UNREAD["volume"]
    board = steered(on_hosts(node("n1"), node("n2"), node("n3")), [ruled(pod("a", owner="Job/t"), rule)])
    lift = board.lifts(1)["a"]
    assert lift.hosts == ("host-n1", "host-n2", "host-n3")
    pinned = ruled(lifted(lift, owner="Job/t"), rule)
    terms = (api.Term((api.Expression(names.HOSTNAME, "In", ("host-n1", "host-n2")),)),)
    pinned.spec.affinity = api.Affinity(api.NodeAffinity(api.NodeSelector(terms)))
    board.pods(2, refused(pinned, WORDS))
    board.steps(3)
    board.steps(2 + PATIENCE_MS)
    board.gone(PATIENCE_MS + 3, pinned)
    board.pods(PATIENCE_MS + 4, ruled(pod("b", owner="Job/t", version=2), rule))
    assert board.lifts(PATIENCE_MS + 4)["b"].node == "n3"


def withdrawn(steps: list[Step]) -> list[str]:
    """The pods whose placements are taken away if they have not changed meanwhile."""
    gone = {names.PLACEMENT: None, names.PLACED_UID: None, names.ENOUGH: None}
    patches = [step for step in steps if isinstance(step, Patch)]
    assert all(step.body["metadata"]["resourceVersion"] for step in patches)
    return [step.name for step in patches if step.body["metadata"]["annotations"] == gone]


@pytest.mark.parametrize("owner", ["Job/train", ""])
def test_a_part_that_its_node_refuses_is_given_back_and_pods_alike_go_elsewhere(owner: str) -> None:
    board = steered([node("n1", 1), node("n2", 1)], [pod("a", owner=owner)])
    lift = board.lifts(1)["a"]
    board.pods(2, refused(lifted(lift, owner=owner), WORDS))
    assert board.steps(3) == []  # it may pass
    steps = board.steps(2 + PATIENCE_MS)
    if owner:
        assert [step.name for step in steps if isinstance(step, Evict)] == ["a"]
        board.gone(PATIENCE_MS + 3, lifted(lift, owner=owner))
    else:
        assert withdrawn(steps) == ["a"]
        board.pods(PATIENCE_MS + 3, refused(pod("a", gates=()), WORDS))
        assert board.state("a") is State.STRAY
        assert WORDS in board.why("a")
        assert "kubectl delete pod -n n a" in board.why("a")
    now = PATIENCE_MS + 4
    board.pods(now, pod("b", owner=owner, version=2), pod("other", version=3))
    again = board.lifts(now)
    assert again["b"].node != lift.node  # a pod alike
    if owner:
        assert again["other"].node == lift.node  # any other


def test_a_node_that_refused_is_looked_at_again_after_a_while_or_as_soon_as_it_changes() -> None:
    for changes in (False, True):
        board = steered([node("n1", 1)], [pod("a", owner="Job/train")])
        lift = board.lifts(1)["a"]
        there = lifted(lift, owner="Job/train")
        board.pods(2, refused(there, WORDS))
        board.steps(2 + PATIENCE_MS)
        board.gone(PATIENCE_MS + 3, there)
        board.pods(PATIENCE_MS + 4, pod("b", owner="Job/train"))
        assert board.lifts(PATIENCE_MS + 4) == {}
        assert "refused by kube-scheduler before" in board.why("b")
        if changes:
            board.nodes(PATIENCE_MS + 5, node("n1", 1, zone="b"))
            assert list(board.lifts(PATIENCE_MS + 5)) == ["b"]
        else:
            assert board.site.next_ms() == 2 + PATIENCE_MS + AVOID_MS
            assert list(board.lifts(2 + PATIENCE_MS + AVOID_MS)) == ["b"]


def test_a_pod_of_which_kube_scheduler_says_nothing_is_told_and_keeps_its_part_while_it_may_not_run() -> None:
    board = steered([node()], [pod("a", owner="Job/t")])
    lift = board.lifts(1)["a"]
    board.pods(2, lifted(lift, owner="Job/t"))
    assert board.steps(3) == []
    silent = board.site.entries["uid-a"]
    assert not silent.why
    assert not board.site.is_reported_silent(silent)
    board.pods(4, pod("b"))
    later = board.lifts(4)["b"]
    assert board.site.next_ms() == 1 + PATIENCE_MS
    assert board.steps(1 + PATIENCE_MS) == []
    assert "kube-scheduler says nothing of it" in board.why("a")
    assert board.site.is_reported_silent(silent)
    assert board.site.next_ms() == 1 + SILENCE_MS
    assert board.evicted(1 + SILENCE_MS) == []  # it has bound nothing since
    board.pods(2 + SILENCE_MS, bound(later))
    assert board.evicted(2 + SILENCE_MS) == ["a"]  # it runs, and leaves this one aside


def test_each_part_of_a_gang_that_kube_scheduler_leaves_aside_is_given_back_once() -> None:
    board = steered([node(), node("n2")], [pod(f"a{at}", gang="g/3", version=at) for at in range(3)])
    lifts = board.lifts(1)
    board.pods(2, *(lifted(lift, gang="g/3") for lift in lifts.values()), pod("b"))
    later = board.lifts(3)["b"]
    board.pods(4, bound(later))
    given_back = withdrawn(board.steps(1 + SILENCE_MS))
    assert given_back == ["a0", "a1", "a2"]


def test_a_part_of_a_pod_that_was_bound_before_does_not_tell_that_kube_scheduler_runs() -> None:
    board = steered([node(gpus=2)], [pod("a")])
    board.pods(2, lifted(board.lifts(1)["a"]))
    board.pods(3, pod("b", on="n1"))
    (told,) = (step for step in board.steps(3) if isinstance(step, Lift))
    assert told.is_bound
    board.pods(4, bound(told))
    assert board.steps(1 + SILENCE_MS) == []


def test_a_pod_that_kube_scheduler_has_looked_at_is_not_silent() -> None:
    board = steered([node()], [pod("a")])
    there = refused(lifted(board.lifts(1)["a"]), WORDS)
    there.status.nominated_node_name = "n1"  # it makes room for it
    board.pods(2, there)
    assert board.steps(1 + SILENCE_MS) == []
    assert not board.site.entries["uid-a"].why


def test_a_pod_for_which_kube_scheduler_makes_room_keeps_its_part() -> None:
    board = steered([node(gpus=1)], [pod("a", owner="Job/train")])
    there = refused(lifted(board.lifts(1)["a"], owner="Job/train"), "preemption is under way")
    there.status.nominated_node_name = "n1"
    board.pods(2, there)
    assert board.steps(2 + PATIENCE_MS) == []


def test_a_pod_that_was_bound_without_a_part_gets_one_on_its_node() -> None:
    board = steered([node("n1", 1), node("n2", 1)], [pod("a", on="n2")])
    (step,) = board.steps(1)
    assert isinstance(step, Lift)
    assert step.is_bound
    assert (step.node, indices(step)) == ("n2", [0])
    board.pods(2, bound(step))
    assert board.state("a") is State.RUNS
    board.pods(3, pod("late", on="n2"))
    assert board.steps(3) == []
    assert board.why("late") == "waits for room"
    board.gone(4, bound(step))
    assert [step.name for step in board.steps(4)] == ["late"]


def test_a_placement_that_is_for_another_node_is_none() -> None:
    board = steered([node("n1", 1), node("n2", 1)], [pod("a")])
    lift = board.lifts(1)["a"]
    other = "n2" if lift.node == "n1" else "n1"
    board.pods(2, lifted(lift))
    board.pods(3, lifted(lift, on=other))  # somebody bound it past its pin
    (step,) = board.steps(3)
    assert isinstance(step, Lift)
    assert step.is_bound
    assert step.node == other
    board.pods(4, pod("b"))
    assert board.lifts(4)["b"].node == lift.node


def test_gates_of_others_come_first() -> None:
    kueue = "kueue.x-k8s.io/admission"
    board = steered([node(gpus=1)], [pod("a", gates=(kueue, names.GATE))])
    assert board.steps(1) == []
    assert board.why("a") == f"held by scheduling gate {kueue}"
    board.pods(2, pod("a"))
    assert list(board.lifts(2)) == ["a"]


def test_a_pod_of_berth_0_2_keeps_its_place_and_one_that_waits_is_told() -> None:
    placed = '{"gpus":[{"index":1,"uuid":null,"milli":600,"mem_mib":4000}],"policy":"fifo"}'
    runs = pod("old", on="n1", gpu_milli=600, gpu_mem_mib=4000, placement=placed, placed_uid="uid-old")
    waits = pod("waits", gates=())
    for each in (runs, waits):
        each.spec.scheduler_name = "berth"
    board = steered([node(gpus=2)], [runs, waits])
    assert board.steps(1) == []
    assert board.state("old") is State.RUNS
    assert board.cluster.free_total_milli == 1400
    assert "make it again without schedulerName" in board.why("waits")


def test_what_cannot_change_a_decision_leads_to_none() -> None:
    board = steered([node(gpus=1)], [pod("a"), pod("waits", version=2)])
    lift = board.lifts(1)["a"]
    assert not board.site.has_news
    told = pod("waits", version=7)  # its condition was written
    told.status.conditions = [api.Condition("PodScheduled", "False")]
    board.pods(2, told)
    board.nodes(3, node(gpus=1))  # its kubelet lives
    assert not board.site.has_news
    board.pods(4, lifted(lift))
    board.steps(4)
    runs = bound(lift)
    board.pods(5, runs)
    board.steps(5)
    runs.status.phase = "Running"
    board.pods(6, runs)
    assert not board.site.has_news
    board.gone(7, runs)
    assert board.site.has_news
    assert list(board.lifts(7)) == ["waits"]


def test_a_steerer_that_begins_again_knows_what_it_gave() -> None:
    pods = [pod(f"p{at}", version=at, gpu_milli=600, gpu_mem_mib=1000) for at in range(4)]
    first = steered([node("n1", 2), node("n2", 2)], pods)
    lifts = first.lifts(1)
    there = [
        (bound if at % 2 else lifted)(lifts[f"p{at}"], gpu_milli=600, gpu_mem_mib=1000) for at in range(4)
    ]
    again = steered(
        [node("n1", 2), node("n2", 2)], [*there, pod("next", gpu_milli=500), pod("fits", gpu_milli=400)]
    )
    assert list(again.lifts(1)) == ["fits"]
    assert {run.job.id for run in again.cluster.running.values()} >= {f"uid-p{at}" for at in range(4)}


def test_what_two_steerers_gave_twice_is_taken_from_the_one_that_came_second() -> None:
    lift = steered([node(gpus=1)], [pod("a", gpu_milli=600)]).lifts(1)["a"]
    pods = [
        pod(name, on="n1", gpu_milli=600, placement=lift.placement, placed_uid=f"uid-{name}", owner=owner)
        for name, owner in (("a", ""), ("b", ""), ("c", "Job/train"))
    ]
    board = steered([node(gpus=1)], pods)
    steps = board.steps(1)
    assert withdrawn(steps) == ["b"]
    assert [step.name for step in steps if isinstance(step, Evict)] == ["c"]
    board.nodes(2, node("n2", 1))
    assert withdrawn(board.steps(3)) == []  # it is under way
    running = steered([node(gpus=1)], [ended(each, "Running") for each in pods[:2]])
    assert running.steps(1) == []  # it has begun


def test_a_pod_that_had_no_room_gets_its_part_when_its_node_comes_back_with_room() -> None:
    lift = steered([node(gpus=1)], [pod("a", gpu_milli=600)]).lifts(1)["a"]
    begun = [
        pod(name, on="n1", gpu_milli=600, placement=lift.placement, placed_uid=f"uid-{name}") for name in "ab"
    ]
    a, b = (ended(each, "Running") for each in begun)
    board = steered([there := node(gpus=1)], [a, b])
    for now, state in ((1, State.OTHER), (4, State.OTHER), (7, State.RUNS)):
        board.steps(now)
        assert (board.state("b"), board.site.entries["uid-b"].no_room) == (state, state is State.OTHER)
        if now == 4:
            board.gone(5, a)
        board.site.node_gone(there)
        board.steps(now + 1)
        board.nodes(now + 2, there)


def test_a_pod_of_ours_keeps_its_gpu_though_others_took_its_cpu() -> None:
    lift = steered([node(cpu=2)], [pod("a", cpu="2")]).lifts(1)["a"]
    board = steered([node(cpu=1)], [bound(lift, cpu="2")])
    assert board.steps(1) == []
    board.pods(2, pod("b", 2, cpu="0"))
    assert board.steps(3) == []  # its GPU is not given away all the same


def test_what_the_pod_asks_for_as_a_whole_and_what_a_resize_left_it_is_counted() -> None:
    whole = pod("whole", 0, cpu="1")
    whole.spec.resources = api.Resources({"cpu": "60"})
    resized = pod("resized", 0, on="n1", cpu="1")
    resized.status.container_statuses = [api.ContainerStatus("main", resources=api.Resources({"cpu": "4"}))]
    board = steered([node(cpu=64)], [whole, resized])
    assert list(board.lifts(1)) == ["whole"]
    assert board.site.nodes()[0].node.cpu_milli == 60_000
    board.pods(2, pod("small", 0, cpu="1"))
    assert board.steps(2) == []


def test_a_pod_of_higher_priority_starts_when_its_victim_has_left() -> None:
    board = steered([node(gpus=1)], [pod("low")], policy="preempt+fifo+best-fit")
    there = bound(board.lifts(1)["low"])
    board.pods(2, there)
    board.steps(2)
    urgent = pod("urgent", version=2)
    urgent.spec.priority = 1000
    board.pods(3, urgent)
    steps = board.steps(3)
    assert [step.name for step in steps if isinstance(step, Evict)] == ["low"]
    lifts = [step for step in steps if isinstance(step, Lift)]
    assert [(step.name, step.after) for step in lifts] in ([], [("urgent", frozenset({"uid-low"}))])
    board.gone(4, there)
    assert lifts or list(board.lifts(4)) == ["urgent"]


def suspend(said: str | None) -> Patch:
    meta = {"uid": "uid-low", "annotations": {names.SUSPEND: said}}
    return Patch("uid-low", "n", "low", {"metadata": meta})


def urged() -> tuple[Steered, api.Pod, Lift]:
    """A pod that its node's agent can suspend is to make way for another, whose gate is lifted after that."""
    board = steered([node(gpus=1)], [pod("low")], policy="preempt+fifo+best-fit")
    there = grown(bound(board.lifts(1)["low"]), 81_920, leaves=True)
    board.pods(2, there)
    board.steps(2)
    urgent = pod("urgent", version=2)
    urgent.spec.priority = 1000
    board.pods(3, urgent)
    steps = board.steps(3)
    assert [step for step in steps if isinstance(step, Patch | Evict)] == [suspend("true")]
    (lift,) = (step for step in steps if isinstance(step, Lift))
    assert (lift.name, lift.after) == ("urgent", {"uid-low"})
    return board, there, lift


def test_a_pod_that_can_leave_its_gpus_is_suspended_and_runs_on_later() -> None:
    board, there, lift = urged()
    assert board.site.holds("uid-low")
    away = grown(there, 81_920, "true", leaves=False, suspended_ms=4)
    board.pods(4, away)
    assert not board.site.holds("uid-low")
    assert board.lifts(4) == {}
    board.pods(5, bound(lift))
    board.steps(5)
    board.pods(6, ended(bound(lift)))
    assert [step for step in board.steps(6) if isinstance(step, Patch)] == [suspend(None)]
    board.pods(7, there)
    board.steps(7)
    assert (board.state("low"), [*board.cluster.running]) == (State.RUNS, ["uid-low"])


def test_a_pod_that_idles_away_from_its_gpu_is_left_to_its_agent_and_its_room_to_others() -> None:
    board = steered([node(gpus=1)], [pod("low")], policy="fifo+best-fit")
    there = bound(board.lifts(1)["low"])
    board.pods(2, grown(there, 81_920, suspended_ms=2, idle=True))
    assert not [step for step in board.steps(2) if isinstance(step, Patch)]
    board.pods(3, pod("next", version=2))
    assert list(board.lifts(3)) == ["next"]


def test_a_pod_that_could_not_leave_its_gpus_is_evicted() -> None:
    board, there, _ = urged()
    board.pods(4, grown(there, 81_920, "true", why="it uses MPS"))
    steps = board.steps(4)
    (evicted,) = (step for step in steps if isinstance(step, Evict))
    assert (evicted.name, "it uses MPS" in evicted.why) == ("low", True)
    board.gone(5, there)
    assert not board.site.holds("uid-low")


def test_a_pod_that_does_not_leave_in_time_is_evicted() -> None:
    """Its node's agent is dead, or its owner wrote what an agent writes."""
    board, there, _ = urged()
    board.pods(4, grown(there, 81_920, "true", leaves=True))
    due_ms = board.site.next_ms()
    assert due_ms is not None
    assert board.evicted(due_ms - 1) == []
    assert board.evicted(due_ms) == ["low"]
    assert (board.evicted(due_ms + 1), board.site.next_ms()) == ([], None)


def test_a_pod_that_ends_before_it_has_left_keeps_nobody_waiting_and_is_not_evicted() -> None:
    board, there, lift = urged()
    board.pods(4, grown(there, 81_920, "true", leaves=True))
    board.pods(5, ended(there), bound(lift))
    board.steps(5)
    assert (board.site.holds("uid-low"), board.site.next_ms()) == (False, None)


def test_a_new_steerer_waits_for_a_pod_that_was_told_to_leave() -> None:
    _, there, _ = urged()
    board = steered([node(gpus=1)])
    board.pods(1, grown(there, 81_920, "true", leaves=True))
    assert board.site.holds("uid-low")


def test_a_volume_of_any_kind_is_no_reason_to_leave_a_pod_out() -> None:
    body = {
        "metadata": {"name": "a", "namespace": "n", "uid": "u"},
        "spec": {
            "schedulingGates": [{"name": names.GATE}],
            "volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}],
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "14"}}}],
        },
    }
    board = steered([node(cpu=8)], [of(api.Pod, body)])
    assert board.steps(1) == []
    assert "waits" in board.site.entries["u"].why or board.driver.misfits


@pytest.mark.parametrize("borrow", [False, True])
def test_a_namespace_has_its_quota_of_gpus_and_borrows_only_what_others_leave(borrow: bool) -> None:
    def of_team(team: str, at: int) -> api.Pod:
        made = pod(f"{team}-{at}", version=at)
        made.metadata.namespace = team
        return made

    quotas = {"a": 2, "b": 2}
    board = steered([node(gpus=4)], policy="fifo+best-fit", quotas=quotas, borrow=borrow)
    board.pods(1, *(of_team("a", at) for at in range(4)))
    first = board.lifts(1)
    assert sorted(first) == [f"a-{at}" for at in range(4 if borrow else 2)]
    for name, lift in first.items():
        there = bound(lift)
        there.metadata.namespace = "a"
        board.pods(2, there)
        if borrow and name in ("a-2", "a-3"):
            board.pods(3, ended(there))
    board.pods(4, *(of_team("b", 10 + at) for at in range(3)), of_team("a", 20))
    assert sorted(board.lifts(4)) == ["b-10", "b-11"]


def test_a_gang_beyond_the_quota_of_its_namespace_says_so() -> None:
    board = steered([node(gpus=4)], policy="fifo+best-fit", quotas={"n": 1})
    board.pods(1, *(pod(f"a-{at}", gang="g/2", version=at) for at in range(2)))
    assert not board.lifts(1)
    reasons = board.driver.reasons(["uid-a-0", "uid-a-1"])
    assert {each.kind for each in reasons.values()} == {WaitKind.TURN}
    assert {each.obstacle for each in reasons.values()} == {"the quota of 'n' is 1 GPU, of which 0 are taken"}


def test_namespaces_share_a_quota_and_none_has_two() -> None:
    def of_team(team: str, at: int) -> api.Pod:
        made = pod(f"{team}-{at}", version=at)
        made.metadata.namespace = team
        return made

    board = steered([node(gpus=4)], policy="fifo+best-fit", quotas={"vision+speech": 2, "ops": 1})
    board.pods(
        1, *(of_team(team, at) for at, team in enumerate(["vision", "speech", "vision", "ops", "else"]))
    )
    assert sorted(board.lifts(1)) == ["ops-3", "speech-1", "vision-0"]
    with pytest.raises(SettingError, match=r"namespace 'ops' has two quotas, 'vision\+ops' and 'ops'"):
        Steered(policy="fifo+best-fit", quotas={"vision+ops": 2, "ops": 1})
    with pytest.raises(SettingError, match=r"quota 'vision\+': expected a namespace"):
        Steered(policy="fifo+best-fit", quotas={"vision+": 2})


def test_a_pod_within_its_quota_has_pods_evicted_that_borrowed_and_starts_when_they_have_left() -> None:
    def of_team(team: str, made: api.Pod) -> api.Pod:
        made.metadata.namespace = team
        return made

    board = steered(
        [node(gpus=4)], policy="fifo+best-fit", quotas={"a": 2, "b": 2}, borrow=True, reclaim=True
    )
    board.pods(1, *(of_team("a", pod(f"a-{at}", version=at)) for at in range(4)))
    there = {name: of_team("a", bound(lift)) for name, lift in board.lifts(1).items()}
    board.pods(2, *there.values())
    board.pods(3, of_team("b", pod("b-0")))
    steps = board.steps(3)
    (removed,) = (step for step in steps if isinstance(step, Evict))
    assert removed.why == "it borrowed GPUs beyond the quota of its namespace, and another takes back its own"
    (lift,) = (step for step in steps if isinstance(step, Lift))
    assert (lift.name, lift.after) == ("b-0", frozenset({removed.uid}))
    board.gone(4, there[removed.name])
    board.pods(5, of_team("b", pod("b-1")), of_team("b", pod("b-2")))
    assert len(board.evicted(5)) == 1  # of two that wait one is within the quota


def test_who_looks_is_told_where_a_steerer_that_only_advises_would_place_a_pod() -> None:
    board = steered([node("n1", 1)], [pod("a", gates=()), pod("large", 2, gates=())], advise=True)
    a, large = snapshot(board.site, 3, 10).jobs
    assert (
        a.why
        == "easy+priority+best-fit places it on node n1, GPU 0; the steerer only advises (--mode advise)"
    )
    assert large.why == "no node can hold it: of 1 nodes, 1 fewer than 2 GPUs"
