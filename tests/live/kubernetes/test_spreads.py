"""Topology spread constraints: pods lie as evenly as they say, through restarts, drains and pods of others."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from berth.live.kubernetes import objects as api
from berth.live.kubernetes.board import Board
from berth.live.kubernetes.entries import State
from berth.live.kubernetes.reasons import Reasons
from berth.live.kubernetes.steps import Bind
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.test_board import board_of, node, pod
from tests.live.kubernetes.world import World

ZONE = "topology.kubernetes.io/zone"


def rule(**changed: Any) -> dict[str, Any]:
    return {
        "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}, **changed,
    }  # fmt: skip


def zoned(name: str, zone: str, gpus: int = 8, **said: Any) -> api.Node:
    made = node(name, gpus, **said)
    made.metadata.labels |= {ZONE: zone, "kubernetes.io/hostname": name}
    return made


def spread(name: str, *rules: api.Spread, app: str = "web", **said: Any) -> api.Pod:
    made = pod(name, gpu_milli=100, gpu_mem_mib=100, **said)
    made.metadata.labels = {"app": app}
    made.spec.topology_spread_constraints = list(rules)
    return made


def written(**changed: Any) -> api.Spread:
    return msgspec.convert(rule(**changed), api.Spread)


def decided(board: Board, most: int = 200) -> dict[str, str]:
    """The node of each pod that is bound, when the board has nothing more to do at once."""
    found: dict[str, str] = {}
    for now in range(1, most):
        steps = [step for step in board.decide(now) if isinstance(step, Bind)]
        found |= {step.name: step.node for step in steps}
        if board.next_wake_ms(now) != now and not steps:
            break
    return found


def test_pods_are_spread_where_the_policy_would_pack_them() -> None:
    nodes = [zoned("a1", "a"), zoned("a2", "a"), zoned("b1", "b"), zoned("c1", "c")]
    board = board_of(nodes, [spread(f"w{at}", written(), version=at) for at in range(9)])
    zones = {"a1": "a", "a2": "a", "b1": "b", "c1": "c"}
    assert Counter(zones[on] for on in decided(board).values()) == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize("seed", range(4))
def test_no_bind_breaks_the_skew_that_was_asked_for(seed: int) -> None:
    draw = random.Random(seed)
    zones = {f"n{at}": draw.choice("abc") for at in range(6)}
    skew = draw.choice((1, 2, 3))
    board = board_of([zoned(name, zone) for name, zone in zones.items()], [])
    there: dict[str, str] = {}
    made = bound = 0
    for now in range(1, 60):
        if draw.random() < 0.6:
            board.pod_changed(spread(f"w{made}", written(maxSkew=skew), version=made), now)
            made += 1
        elif there:
            gone = draw.choice(sorted(there))
            board.pod_gone(spread(gone), now)
            del there[gone]
        for step in board.decide(now):
            if isinstance(step, Bind):
                there[step.name] = step.node
                bound += 1
                counts = Counter(dict.fromkeys(zones.values(), 0))
                counts.update(zones[on] for on in there.values())
                assert counts[zones[step.node]] - min(counts.values()) <= skew
    assert bound > 15


def test_a_full_domain_holds_up_the_others_and_says_so() -> None:
    nodes = [zoned("a1", "a", cpu=1), zoned("b1", "b")]
    pods = [spread(f"w{at}", written(), version=at, cpu="1") for at in range(4)]
    board = board_of(nodes, pods)
    assert sorted(decided(board).values()) == ["a1", "b1", "b1"]
    (waits,) = [entry for entry in board.entries.values() if entry.state is State.WAITING]
    assert Reasons(board).of(waits).message == (
        f"0/2 nodes: 1 CPU short by 1000m, 1 topology spread over {ZONE}"
    )
    board.pod_gone(next(each for each in pods if board.entries[each.metadata.uid].node == "b1"), 300)
    assert list(decided(board).values()) == ["b1"]


def test_a_pod_that_waits_with_its_port_is_told_of_its_spread() -> None:
    theirs = spread("theirs", app="other", on="a1")
    pods = [spread(f"w{at}", written(), version=at) for at in range(2)]
    for each in (theirs, *pods):
        each.spec.containers[0].ports = [api.Port(host_port=8080)]
    nodes = [zoned("a1", "a", 2), zoned("a2", "a"), zoned("b1", "b", gpus=0)]
    board = board_of(nodes, [theirs, *pods])  # both were to go to a1, whose port is in use
    assert decided(board) == {"w0": "a2"}
    assert board.entries["uid-w1"].tight
    message = Reasons(board).of(board.entries["uid-w1"]).message
    assert message == f"0/3 nodes: 2 topology spread over {ZONE}, 1 no GPU"


def test_pods_of_others_and_of_before_a_restart_are_counted_and_those_that_go_are_not() -> None:
    nodes = [zoned("a1", "a"), zoned("b1", "b")]
    theirs = [spread(f"t{at}", on="a1") for at in range(2)]
    leaving = spread("leaving", on="b1")
    leaving.metadata.deletion_timestamp = "2026-11-22T12:00:00Z"
    for each in [*theirs, leaving]:
        each.spec.scheduler_name = "other"
        each.spec.containers[0].resources.requests = {"cpu": "1"}
    board = board_of(nodes, [*theirs, leaving, *(spread(f"w{at}", written()) for at in range(2))])
    assert list(decided(board).values()) == ["b1", "b1"]


def test_nodes_without_the_label_and_other_apps_count_for_nothing() -> None:
    bare = node("bare", 8)
    board = board_of(
        [zoned("a1", "a"), zoned("b1", "b"), bare],
        [spread("o1", app="other", on="a1"), *(spread(f"w{at}", written()) for at in range(4))],
    )
    assert Counter(decided(board).values()) == {"a1": 2, "b1": 2}


def test_fewer_domains_than_asked_for_take_max_skew_each() -> None:
    board = board_of(
        [zoned("a1", "a"), zoned("b1", "b")],
        [spread(f"w{at}", written(minDomains=3)) for at in range(4)],
    )
    assert Counter(decided(board).values()) == {"a1": 1, "b1": 1}
    board.nodes.changed(zoned("c1", "c"))
    later = decided(board)
    assert len(later) == 2
    assert "c1" in later.values()


def test_two_rules_are_both_kept() -> None:
    by_host = written(topologyKey="kubernetes.io/hostname")
    nodes = [zoned("a1", "a"), zoned("a2", "a"), zoned("b1", "b")]
    board = board_of(nodes, [spread(f"w{at}", written(maxSkew=2), by_host) for at in range(3)])
    assert Counter(decided(board).values()) == {"a1": 1, "a2": 1, "b1": 1}


def test_a_tainted_zone_counts_unless_the_rule_heeds_taints() -> None:
    away = zoned("b1", "b")
    away.spec.taints = [api.Taint("gone", "", "NoSchedule")]
    for policy, bound in (("Ignore", 1), ("Honor", 3)):
        rules = [written(nodeTaintsPolicy=policy)]
        board = board_of([zoned("a1", "a"), away], [spread(f"w{at}", *rules) for at in range(3)])
        assert len(decided(board)) == bound


def test_a_gang_is_spread_and_whole() -> None:
    nodes = [zoned("a1", "a"), zoned("b1", "b")]
    board = board_of(nodes, [spread(f"g{at}", written(), gang="g/4") for at in range(4)])
    assert Counter(decided(board).values()) == {"a1": 2, "b1": 2}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"maxSkew": 0}, "maxSkew"),
        ({"topologyKey": ""}, "topologyKey"),
        ({"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}, "Gt"),
        ({"nodeTaintsPolicy": "Perhaps"}, "Perhaps"),
    ],
)
def test_rules_that_make_no_sense_are_refused(changed: dict[str, Any], words: str) -> None:
    board = board_of([zoned("a1", "a")], [spread("w", written(**changed))])
    assert board.entries["uid-w"].state is State.REFUSED
    assert words in board.entries["uid-w"].message


def test_on_a_cluster_pods_are_spread_and_one_that_cannot_be_is_told(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("a1", 2, labels={ZONE: "a"})
        await world.node("b1", 2, labels={ZONE: "b"}, cpu="1")
        async with world.scheduler():
            for at in range(3):
                await world.pod(
                    f"w{at}", milli=100, mem=100, cpu="1", labels={"app": "web"},
                    topologySpreadConstraints=[rule()],
                )  # fmt: skip
            places = await world.until_bound("w0", "w1", "w2")
            assert Counter(places.values()) == {"a1": 2, "b1": 1}
            await world.pod(
                "late", milli=100, mem=100, cpu="1", labels={"app": "web"}, topologySpreadConstraints=[rule()]
            )
            await world.until_told("late", f"1 topology spread over {ZONE}", "1 CPU short by")
            await world.check()

    play(test)
