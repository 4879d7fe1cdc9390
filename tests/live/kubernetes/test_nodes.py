"""Which GPUs of a node pods may have, and what becomes of pods when nodes come, go and change."""

from __future__ import annotations

import msgspec
import pytest

from berth.live.driver.snapshot import Tenant
from berth.live.kubernetes import constraints, names, pod_site
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.constraints import MOST_OF_ONE
from berth.live.kubernetes.pod_requests import created_ms
from berth.live.kubernetes.pod_site import State
from berth.live.kubernetes.viewing import snapshot
from tests.live.kubernetes.steered import bound, indices, lifted, node, pod, steered


def test_pods_go_to_the_gpus_that_the_label_names() -> None:
    board = steered([node(gpus=2, gpu_indices="2-3")], [pod("a"), pod("b"), pod("c")])
    assert sorted(index for step in board.steps(1) for index in indices(step)) == [2, 3]


def test_a_node_without_the_resource_has_no_gpu_for_pods() -> None:
    board = steered([node(units=0)], [pod("a"), pod("cpu", 0)])
    assert list(board.lifts(1)) == ["cpu"]
    assert "of 1 nodes, 1 no GPU for pods" in board.why("a")


def test_nothing_starts_on_an_ailing_gpu_and_others_go_on() -> None:
    board = steered([node(gpus=2, gpus_ailing="0")], [pod("a"), pod("b")])
    assert [indices(step) for step in board.steps(1)] == [[1]]
    board.nodes(1, node(gpus=2))
    assert [indices(step) for step in board.steps(2)] == [[0]]


def test_nothing_starts_on_a_drained_gpu_what_runs_there_goes_on_and_keeps_it_after_a_restart() -> None:
    board = steered([node(gpus=2)], [pod("a", gpu_milli=400)])
    (bind,) = board.lifts(1).values()
    (at,) = indices(bind)
    drained = node(gpus=2, **{f"gpu_drained_{at}": "true"})
    runs = bound(bind, gpu_milli=400)
    board.pods(2, runs)
    board.nodes(1, drained)
    board.pods(2, pod("b", gpu_milli=400))
    assert [indices(step) for step in board.steps(2)] == [[1 - at]]
    for seen in (steered([drained], [runs]),):
        told = snapshot(seen.site, 3, 10).gpus[at]
        tenants = [(each.job, each.milli) for each in told.tenants]
        assert (tenants, told.strangers, told.drained, told.health) == ([("n/a", 400)], (), True, "")
    board.pods(4, pod("c", gpu_milli=700))
    assert not board.lifts(4)
    board.gone(5, runs)
    assert not board.lifts(5)
    board.nodes(1, node(gpus=2))
    assert [indices(step) for step in board.lifts(6).values()] == [[at]]


def test_a_held_pod_is_not_placed_and_holds_up_nobody() -> None:
    board = steered([node(gpus=1)], [pod("a", hold="true"), pod("b", version=2)])
    assert list(board.lifts(1)) == ["b"]
    board.pods(2, pod("c"))
    board.pods(3, pod("c", hold="true"))  # while it waits
    board.gone(4, pod("b"))
    assert not board.lifts(4)
    board.pods(5, pod("a", hold="false"))
    assert list(board.lifts(5)) == ["a"]


def test_an_init_container_cannot_have_a_gpu() -> None:
    asked = pod("a")
    body = msgspec.json.decode(msgspec.json.encode(asked))
    body["spec"]["initContainers"] = [{"resources": {"limits": {names.RESOURCE: "1"}}}]
    board = steered([node()], [msgspec.json.decode(msgspec.json.encode(body), type=api.Pod)])
    assert board.steps(1) == []
    assert "an init container asks for berth.dev/gpu" in board.why("a")


def test_what_others_use_is_counted_again_when_their_node_comes_back() -> None:
    theirs = pod("theirs", 0, on="n1", cpu="60")
    board = steered([node("n1")], [theirs])
    for at in (1, 3):
        board.site.node_gone(node("n1"))
        board.steps(at)
        board.nodes(1, node("n1"))
        board.steps(at + 1)
    assert board.site.nodes()[0].node.cpu_milli == 4_000
    board.gone(5, theirs)
    board.steps(6)
    assert board.site.nodes()[0].node.cpu_milli == 64_000


def test_pods_keep_their_gpu_when_a_node_gives_others() -> None:
    board = steered([node(gpus=3, gpu_indices="0-2")], [pod("a")])
    (bind,) = board.lifts(1).values()
    (at,) = indices(bind)
    board.pods(2, pod("a", on="n1", placement=bind.placement, placed_uid="uid-a"))
    rest = {0, 1, 2, 3} - {0 if at else 2}
    board.nodes(1, node(gpus=3, gpu_indices=".".join(map(str, sorted(rest)))))
    board.steps(3)
    for name in "bcd":
        board.pods(4, pod(name))
    given = [index for now in (5, 6) for step in board.steps(now) for index in indices(step)]
    assert sorted([*given, at]) == sorted(rest)


def test_a_heartbeat_has_nothing_read_anew() -> None:
    board = steered([node()], [])
    before = board.site.table.views["n1"].node
    board.nodes(1, node())
    board.steps(1)
    assert board.site.table.views["n1"].node is before


def test_a_placement_out_of_range_is_none_and_the_pod_gets_one() -> None:
    forged = '{"gpus":[{"index":0,"uuid":null,"milli":-1000,"mem_mib":1}]}'
    theirs = [pod("forged", on="n1", placement=forged, placed_uid="uid-forged"), pod("other", on="n1")]
    board = steered([node(gpus=2)], theirs)
    assert sorted(index for step in board.steps(1) for index in indices(step)) == [0, 1]
    board.pods(2, pod("a", gpu_milli=1))
    assert board.steps(2) == []


def test_a_placement_that_was_made_smaller_counts_as_much_as_the_pod_asks_for() -> None:
    (bind,) = steered([node(gpus=1)], [pod("a", gpu_milli=600, gpu_mem_mib=60_000)]).lifts(1).values()
    edited = bind.placement.replace("60000", "1").replace("600", "1")
    ours = pod("a", on="n1", gpu_milli=600, gpu_mem_mib=60_000, placement=edited, placed_uid="uid-a")
    board = steered([node(gpus=1)], [ours])
    board.pods(2, pod("b", gpu_milli=100, gpu_mem_mib=30_000))
    assert board.steps(3) == []


def test_impossible_selectors_of_one_namespace_hold_up_nobody() -> None:
    def selects(name: str, namespace: str, **selector: str) -> api.Pod:
        found = pod(name)
        found.metadata.namespace = namespace
        found.spec.node_selector = selector
        return found

    nodes = [node("n1", 4), node("n2", 4)]
    for each, disk in zip(nodes, ("ssd", "hdd"), strict=True):
        each.metadata.labels["disk"] = disk
    impossible = [selects(f"i{at:03}", "greedy", disk=f"none-{at}") for at in range(200)]
    board = steered(nodes, [*impossible, selects("good", "other", disk="ssd")])
    lifts = board.lifts(1)
    assert {name: lift.node for name, lift in lifts.items()} == {"good": "n1"}
    assert "of 2 nodes, 2 no label disk=none-0" in board.why("i000")


def selects(name: str, namespace: str, at: int) -> api.Pod:
    found = pod(name, 0)
    found.metadata.namespace = namespace
    found.spec.node_selector = {"rack": f"r{at:03}"}
    return found


def test_pods_of_a_hundred_sets_of_nodes_are_placed_in_one_decision() -> None:
    nodes = [node(f"n{at:03}", 0) for at in range(100)]
    for at, each in enumerate(nodes):
        each.metadata.labels["rack"] = f"r{at:03}"
    board = steered(nodes, [selects(f"m{at:03}", "many", at) for at in range(100)])
    assert {name: lift.node for name, lift in board.lifts(1).items()} == {
        f"m{at:03}": f"n{at:03}" for at in range(100)
    }


def test_sets_of_nodes_beyond_those_that_are_compared_wait_and_are_told_so() -> None:
    nodes = [node(f"n{at:03}", 0) for at in range(140)]
    for at, each in enumerate(nodes):
        each.metadata.labels["rack"] = f"r{at:03}"
    many = [selects(f"m{at:03}", "many", at) for at in range(140)]
    few = [selects("few", "few", 3), selects("other", "few", 130)]
    board = steered(nodes, [*many, *few])
    held = [entry for entry in board.site.entries.values() if entry.state is State.HELD]
    assert len(held) == 140 - MOST_OF_ONE
    assert f"{MOST_OF_ONE} in this namespace" in held[0].why
    found: dict[str, str] = {}
    for now in range(1, 6):
        lifts = board.lifts(now)
        found |= {name: lift.node for name, lift in lifts.items()}
        for each in (*many, *few):
            if (lift := lifts.get(each.metadata.name)) is not None:
                there = lifted(lift)
                there.metadata.namespace = each.metadata.namespace
                board.pods(now, there)
    assert found == {f"m{at:03}": f"n{at:03}" for at in range(140)} | {"few": "n003", "other": "n130"}


def test_a_pod_behind_others_that_still_find_no_room_is_looked_at_in_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constraints, "MOST_KINDS", 3)
    for module in (constraints, pod_site):
        monkeypatch.setattr(module, "MOST_OF_ONE", 2)
    first, second = selects("y0", "y", 2), selects("y1", "y", 5)
    board = steered([node()], [selects("x0", "x", 0), selects("x1", "x", 1), first])
    board.pods(1, selects("x2", "x", 3), selects("z", "z", 4))
    board.gone(2, first)
    board.site.refresh(2)
    assert (
        board.state("x2") is board.state("z") is State.HELD
    )  # one is looked at, and its namespace has enough
    board.pods(3, second)
    board.gone(4, second)
    board.site.refresh(4)
    assert (board.state("x2"), board.state("z")) == (State.HELD, State.WAITING)


def test_pods_of_a_node_that_is_lost_change_in_the_order_in_which_they_came() -> None:
    board = steered([there := node(gpus=12)], [pod(f"p{at:02}", version=at) for at in range(12)])
    board.pods(2, *(lifted(lift) for lift in board.lifts(1).values()))
    board.steps(2)
    board.site.node_gone(there)
    board.site.refresh(3)
    assert [*board.site.changed()] == [f"uid-p{at:02}" for at in range(12)]


def test_a_snapshot_has_the_pods_on_each_gpu_and_the_reasons_of_those_that_wait() -> None:
    board = steered([node(gpus=1)], [pod("a", gpu_milli=300, gpu_mem_mib=20_000)])
    (lift,) = board.lifts(1).values()
    parts = {"gpu_milli": 300, "gpu_mem_mib": 20_000}
    running = bound(lift, **parts)
    running.status.start_time = "2026-11-22T12:01:00Z"
    board.pods(1, running, pod("large", gpu_milli=800), pod("later", hold="true"))
    now_ms = created_ms(running.metadata) + 90_000
    seen = snapshot(board.site, now_ms, 10)
    assert seen.gpus[0].tenants == (Tenant("n/a", "n", "a", 300, 20_000),)
    assert [(job.id, job.state, job.where, job.milli, job.start_ms) for job in seen.jobs] == [
        ("n/a", "running", "n1 GPU 0", 300, now_ms - 30_000),
        ("n/large", "waiting", "", 800, None),
        ("n/later", "held", "", 1000, None),
    ]
    why = {job.name: job.why for job in seen.jobs}
    assert why["large"].startswith("waits for room; start unknown: a running job ")
    assert why["later"] == "held by annotation berth.dev/hold"
    assert (seen.running, seen.waiting) == (1, 2)
