"""The right to place is noted on the nodes: of two berths one places, whatever folder and machine they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from berth.errors import LiveError
from berth.live.slurm.claim import Claim, Claimant, ClaimLostError, owner_of
from berth.live.slurm.controller import Controller
from berth.live.slurm.service import Service, Settings
from tests.live.slurm.fake_slurm import FakeSlurm


@dataclass
class Clock:
    """A time that passes only when it is told to."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def claim_of(
    slurm: FakeSlurm, owner: str, clock: Clock, sleep: Callable[[float], None] = lambda s: None
) -> Claim:
    return Claim(Controller(slurm), owner, frozenset({"gpu"}), 60.0, clock=clock, sleep=sleep)


def test_the_second_berth_is_told_who_places_until_that_one_ends_or_is_silent() -> None:
    slurm, clock = FakeSlurm(comments={"node1": "disk=new since May"}), Clock()
    first, second = claim_of(slurm, "a:/x", clock), claim_of(slurm, "b:/x", clock)
    first.take()
    assert slurm.comments == {
        "node1": "disk=new since May [berth places: a:/x until 1060]", "node2": "[berth places: a:/x until 1060]",
    }  # fmt: skip
    with pytest.raises(ClaimLostError, match="a:/x; stop it, or wait 60 s if it is gone"):
        second.take()
    first.drop()
    assert slurm.comments == {"node1": "disk=new since May", "node2": ""}
    second.take()
    clock.now_s += 61  # killed
    first.take()


def test_of_two_that_begin_at_once_one_places() -> None:
    slurm, clock = FakeSlurm(), Clock()
    second = claim_of(slurm, "b:/x", clock)

    def meanwhile(seconds: float) -> None:  # both have read before either has written
        second._write(Controller(slurm).nodes())

    with pytest.raises(ClaimLostError, match="b:/x"):
        claim_of(slurm, "a:/x", clock, meanwhile).take()
    second.take()


def test_other_nodes_are_nobodys_business() -> None:
    slurm, clock = FakeSlurm(), Clock()
    claim_of(slurm, "a:/x", clock).take()
    apart = Claim(Controller(slurm), "b:/x", frozenset({"other"}), 60.0, clock=clock, sleep=lambda s: None)
    apart.take()
    everywhere = Claim(Controller(slurm), "b:/x", frozenset(), 60.0, clock=clock, sleep=lambda s: None)
    with pytest.raises(ClaimLostError, match="a:/x"):
        everywhere.take()


@dataclass
class TwoPartitions:
    """A Slurm whose second node is of a partition of its own, which takes some QoS alone."""

    slurm: FakeSlurm
    other: str

    def __call__(self, words: Sequence[str], told: str) -> str:
        text = self.slurm(words, told)
        if words[-1] == "partition":
            first = text.replace("Nodes=node1,node2", "AllowQos=ALL DenyQos=none Nodes=node1")
            return f"{first}PartitionName=other {self.other} Nodes=node2 State=UP\n"
        if words[-1] == "node":
            one, two = text.split("\n")
            return f"{one}\n{two.replace('Partitions=gpu', 'Partitions=other')}"
        return text


@pytest.mark.parametrize(
    ("other", "node2"),
    [
        ("AllowQos=long,fast", True),
        ("AllowQos=long", False),
        ("AllowQos=ALL DenyQos=fast", False),
        ("AllowQos=ALL DenyQos=long", True),
    ],
)
def test_a_qos_claims_the_nodes_of_the_partitions_that_take_it(other: str, node2: bool) -> None:
    slurm = FakeSlurm()
    where = TwoPartitions(slurm, other)
    claim = Claim(
        Controller(where),
        "a:/x",
        frozenset(),
        60.0,
        qos=frozenset({"fast"}),
        clock=Clock(),
        sleep=lambda s: None,
    )
    claim.take()
    assert sorted(slurm.comments) == ["node1", *(["node2"] if node2 else [])]


def test_a_qos_that_no_partition_takes_is_refused() -> None:
    where = TwoPartitions(FakeSlurm(), "AllowQos=long")

    def run(words: Sequence[str], told: str) -> str:
        return where(words, told).replace("DenyQos=none", "DenyQos=fast")

    claim = Claim(Controller(run), "a:/x", frozenset(), 60.0, qos=frozenset({"fast"}), sleep=lambda s: None)
    with pytest.raises(LiveError, match="no partition takes jobs of the QoS fast"):
        claim.take()


def test_a_berth_renews_its_claim_and_places_nothing_once_another_has_it(tmp_path: Path) -> None:
    slurm, clock = FakeSlurm(), Clock()
    claim = claim_of(slurm, owner_of(tmp_path), clock)
    claim.take()
    settings = Settings(tmp_path, True, frozenset({"gpu"}), policy="priority+first-fit")
    service = Service(settings, Controller(slurm), claim=claim)
    service.step()
    clock.now_s += 40
    service.step()
    assert Claimant.of(slurm.comments["node1"]) == Claimant(owner_of(tmp_path), 1100)
    slurm.comments = {"node1": "[berth places: b:/x until 2000]", "node2": ""}
    slurm.held("1")
    clock.now_s += 40
    with pytest.raises(ClaimLostError, match="another berth places on these nodes, b:/x"):
        service.step()
    assert slurm.commands == []
