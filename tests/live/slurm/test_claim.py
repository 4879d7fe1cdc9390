"""The right to place is noted on the nodes: of two berths one places, whatever folder and machine they have."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import LiveError
from berth.live.slurm.claim import Claim, Claimant, ClaimChangedError, owner_of
from berth.live.slurm.controller import Controller
from berth.live.slurm.service import NODES_EVERY, Service, Settings
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
    assert first.take() is None
    assert slurm.comments == {
        "node1": "disk=new since May [berth places: a:/x until 1060]", "node2": "[berth places: a:/x until 1060]",
    }  # fmt: skip
    assert second.take() == Claimant("a:/x", 1060)
    first.drop()
    assert slurm.comments == {"node1": "disk=new since May", "node2": ""}
    assert second.take() is None
    clock.now_s += 61  # killed
    assert first.take() is None


def test_of_two_that_begin_at_once_one_places() -> None:
    slurm, clock = FakeSlurm(), Clock()
    second = claim_of(slurm, "b:/x", clock)

    def meanwhile(seconds: float) -> None:  # both have read before either has written
        second._write(Controller(slurm).nodes())

    assert claim_of(slurm, "a:/x", clock, meanwhile).take() == Claimant("b:/x", 1060)
    assert second.take() is None


def test_other_nodes_are_nobodys_business() -> None:
    slurm, clock = FakeSlurm(), Clock()
    assert claim_of(slurm, "a:/x", clock).take() is None
    apart = Claim(Controller(slurm), "b:/x", frozenset({"other"}), 60.0, clock=clock, sleep=lambda s: None)
    assert apart.take() is None
    everywhere = Claim(Controller(slurm), "b:/x", frozenset(), 60.0, clock=clock, sleep=lambda s: None)
    assert everywhere.take() == Claimant("a:/x", 1060)


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
    assert claim.take() is None
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
    assert claim.take() is None
    settings = Settings(tmp_path, True, frozenset({"gpu"}), policy="priority+first-fit")
    service = Service(settings, Controller(slurm), claim=claim)
    service.step()
    clock.now_s += 40
    service.step()
    assert Claimant.of(slurm.comments["node1"]) == Claimant(owner_of(tmp_path), 1100)
    slurm.comments = {"node1": "[berth places: b:/x until 2000]", "node2": ""}
    slurm.held("1")
    clock.now_s += 40
    with pytest.raises(ClaimChangedError, match="another berth places now, b:/x"):
        service.step()
    assert slurm.commands == []


def test_one_that_only_advises_learns_that_the_other_has_ended(tmp_path: Path) -> None:
    slurm, clock = FakeSlurm(comments={"node1": "[berth places: b:/x until 1060]"}), Clock()
    claim = claim_of(slurm, owner_of(tmp_path), clock)
    assert claim.take() == Claimant("b:/x", 1060)
    service = Service(Settings(tmp_path, False, frozenset({"gpu"})), Controller(slurm), claim=claim)
    for _ in range(NODES_EVERY):
        service.step()
    clock.now_s += 61
    with pytest.raises(ClaimChangedError, match="no other berth places any more"):
        service.step()
    assert claim.take() is None


def test_a_berth_that_is_to_take_over_waits_for_a_controller_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm(comments={"node1": "[berth places: b:/x until 99999999999]"})
    mine, asked = f"[berth places: {owner_of(tmp_path)} until", 0

    def run(words: Sequence[str], told: str) -> str:
        nonlocal asked
        if words[-1] == "node":
            asked += 1
            if asked == 3:
                slurm.comments = {}
            elif asked == 4:  # the look after that on which it learned that the other has ended
                raise LiveError("slurmctld does not answer")
        elif words[0] == "squeue" and slurm.comments.get("node1", "").startswith(mine):
            raise KeyboardInterrupt
        return slurm(words, told)

    monkeypatch.setattr("berth.live.slurm.controller.Controller", lambda: Controller(run))
    monkeypatch.setattr("berth.live.slurm.claim.SETTLE_S", 0.0)
    monkeypatch.setattr("berth.live.slurm.service.NODES_EVERY", 1)
    before = signal.getsignal(signal.SIGTERM)
    words = [*("slurm", "run", "--mode", "place", "--partitions", "gpu", "--interval", "0.1"), "--state"]
    try:
        done = CliRunner().invoke(app, [*words, str(tmp_path)], catch_exceptions=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.exit_code == 0
    said = [line.removeprefix("berth: ") for line in done.stderr.splitlines()]
    assert said[-3:] == [
        "another berth places on these nodes, b:/x: this one only advises",
        "no other berth places any more: this one does",
        "slurmctld does not answer",
    ]
    assert slurm.comments == {"node1": "", "node2": ""}
