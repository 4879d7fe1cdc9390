"""A berth beside a fake Slurm."""

from __future__ import annotations

from pathlib import Path

from berth.live.slurm.controller import Controller
from berth.live.slurm.decisions import read_decisions
from berth.live.slurm.service import DECISIONS, Service, Settings
from tests.live.slurm.fake_slurm import FakeSlurm

NOTE = "berth:1;node=gres:gpu:1;job=;task="
"""What the plugin notes of a job that asks for one GPU."""


def service(slurm: FakeSlurm, state: Path, **settings: object) -> Service:
    """A berth that places in the partition `gpu`, unless told otherwise."""
    plain: dict[str, object] = {
        "places": True, "partitions": frozenset({"gpu"}), "policy": "priority+first-fit", "patience_s": 0.0,
        "decide_s": 3600.0,  # the first decision compiles
    }  # fmt: skip
    return Service(Settings(state, **{**plain, **settings}), Controller(slurm))  # type: ignore[arg-type]


def events(state: Path) -> list[tuple[str, str, str]]:
    """Event, job and place of each line of its log."""
    return [(each.event, each.job, each.where) for each in read_decisions(state / DECISIONS)]
