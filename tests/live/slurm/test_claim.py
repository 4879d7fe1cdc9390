"""The right to place is noted on the nodes: of two berths one places, whatever folder and machine they have."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import BerthError
from berth.live.slurm.controller import Controller
from berth.live.slurm.service import Claim, ClaimLostError, Service, Settings, make_private, owner_of
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


def test_a_berth_renews_its_claim_and_places_nothing_once_another_has_it(tmp_path: Path) -> None:
    slurm, clock = FakeSlurm(), Clock()
    claim = claim_of(slurm, owner_of(tmp_path), clock)
    claim.take()
    settings = Settings(tmp_path, True, frozenset({"gpu"}), policy="priority+first-fit")
    service = Service(settings, Controller(slurm), claim=claim)
    service.step()
    clock.now_s += 40
    service.step()
    assert slurm.comments["node1"] == f"[berth places: {owner_of(tmp_path)} until 1100]"
    slurm.comments = {"node1": "[berth places: b:/x until 2000]", "node2": ""}
    slurm.held("1")
    clock.now_s += 40
    with pytest.raises(ClaimLostError, match="another berth places on these nodes, b:/x"):
        service.step()
    assert slurm.commands == []


@pytest.mark.parametrize("words", [("--policy", "nothere"), ("--knowledge", "nothere"), ("--card", "a100")])
def test_a_berth_that_is_told_nonsense_makes_no_folder_and_claims_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, str]
) -> None:
    slurm = FakeSlurm()
    monkeypatch.setattr("berth.cli.slurm.Controller", lambda: Controller(slurm))
    place = ("slurm", "run", "--mode", "place", "--partitions", "gpu", "--state", str(tmp_path / "state"))
    done = CliRunner().invoke(app, [*place, *words])
    assert isinstance(done.exception, BerthError)
    assert ([*tmp_path.iterdir()], slurm.comments) == ([], {})


@pytest.mark.parametrize(
    ("words", "claimed"),
    [
        (("--partitions", "gpu"), {"node1", "node2"}),
        (("--qos", "fast"), {"node1", "node2"}),
        (("--qos", "other"), {"node2"}),
    ],
)
def test_a_berth_claims_the_nodes_of_its_partitions_and_of_those_that_take_its_qos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, str], claimed: set[str]
) -> None:
    claims: list[str] = []

    class Two(FakeSlurm):
        """`gpu` takes the QoS `fast` alone, and has both nodes; `all` has one of them."""

        def __call__(self, words: Sequence[str], lines: str) -> str:
            if words[1:2] == ["update"] and "berth places" in words[3]:
                claims.extend(words[2].removeprefix("NodeName=").split(","))
            said = super().__call__(words, lines)
            if words[-1] == "node":
                return said.replace("Partitions=gpu", "Partitions=gpu,all").replace("gpu,all", "gpu", 1)
            if words[-1] == "partition":
                return said.replace("Default", "AllowQos=fast Default") + (
                    "PartitionName=all AllowQos=ALL Nodes=node2 PriorityJobFactor=1 State=UP PriorityTier=1\n"
                )
            return said

    monkeypatch.setattr("berth.cli.slurm.Controller", lambda: Controller(Two()))
    monkeypatch.setattr("berth.live.slurm.service.SETTLE_S", 0.0)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process keeps its own
    place = ["slurm", "run", "--mode", "place", "--for", "0.1", "--state", str(tmp_path / "state"), *words]
    done = CliRunner().invoke(app, place)
    assert (done.exception, {*claims}) == (None, claimed)


def test_a_signal_ends_a_berth_that_places_though_a_callback_of_c_takes_its_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm()
    steps = 0

    def step(service: Service) -> None:
        nonlocal steps
        steps += 1
        with suppress(BaseException):  # what is raised while C calls Python may be cleared
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)

    monkeypatch.setattr("berth.cli.slurm.Controller", lambda: Controller(slurm))
    monkeypatch.setattr("berth.live.slurm.service.SETTLE_S", 0.0)
    monkeypatch.setattr(Service, "step", step)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        place = ["slurm", "run", "--mode", "place", "--partitions", "gpu", "--for", "60"]
        done = CliRunner().invoke(app, [*place, "--state", str(tmp_path / "state")])
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
    assert (done.exception, steps) == (None, 1)
    assert {*slurm.comments.values()} <= {""}, "the claim is given back"


@pytest.mark.parametrize(
    ("words", "gone", "said"),
    [
        (("--partitions", "nope,gpu"), False, "--partitions: no partition 'nope'; there are: gpu"),
        ((), True, "slurmctld does not answer"),
    ],
)
def test_an_unknown_partition_and_a_slurm_that_is_away_are_told_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], gone: bool, said: str
) -> None:
    monkeypatch.setattr("berth.cli.slurm.Controller", lambda: Controller(FakeSlurm(gone=gone)))
    done = CliRunner().invoke(app, ["slurm", "run", "--state", str(tmp_path / "state"), *words])
    assert (str(done.exception), [*tmp_path.iterdir()]) == (said, [])


def test_where_slurm_shows_nobody_others_jobs_the_log_is_not_for_all_either(tmp_path: Path) -> None:
    for name in ("decisions.jsonl", "decisions.jsonl.1"):
        (tmp_path / name).touch(0o644)
    before = os.umask(0o022)
    try:
        make_private(tmp_path)
        (tmp_path / "status.json").touch()
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}
