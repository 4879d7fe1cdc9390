"""What berth reads of Slurm and sends to it is known to every Slurm from 22.05 to 26.05, by the names in its sources.

`slurm_fields.json` has, by the version in which they came, the columns of `squeue -O`, the words of `scontrol update`,
the fields of nodes and partitions that `scontrol` shows, and the fields and types of slurmrestd's interfaces.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from berth.errors import LiveError
from berth.live.slurm.check import SlurmSetup, faults
from berth.live.slurm.controller import Change, Controller
from berth.live.slurm.jobs import COLUMNS, WHOLE_NODES
from berth.live.slurm.nodes import NODE_FIELDS, PARTITION_FIELDS
from berth.live.slurm.requests import Cards
from berth.live.slurm.rest import OLDEST, VERSIONS, body_of, errors_in
from tests.live.slurm.fake_slurm import FakeSlurm

FIELDS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("slurm_fields.json").read_text())
SLURMS = ("22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05")
TYPES = {"STRING": str, "string": str, "HOLD": bool, "boolean": bool, "CSV_STRING": list, "CSV_LIST": list}
PLACED = Change("7", node_list="n1,n2", gres="gres:gpu:a_0:1", hold=False)
EVERY = Change(
    "7", node_list="n1", gres="g", admin_comment="x", per_job="g", per_task="g", requeue=True,
    after_s=5, exclude="n2",
)  # fmt: skip


def known(what: str, slurm: str) -> set[str]:
    """The names that a version of Slurm has."""
    return {
        name.casefold() for since, names in FIELDS[what].items() if since <= slurm for name in names
    }  # those that went since are not among what berth uses


@pytest.mark.parametrize("slurm", SLURMS)
def test_every_slurm_knows_the_columns_fields_and_words_that_berth_uses(slurm: str) -> None:
    exclusive = next(name for name in WHOLE_NODES if name.casefold() in known("squeue", slurm))
    assert exclusive == ("Exclusive" if slurm == "26.05" else "OverSubscribe")
    columns = {exclusive if name in WHOLE_NODES else name for name in COLUMNS}
    assert {name.casefold() for name in columns} <= known("squeue", slurm)
    words = {
        pair.partition("=")[0].casefold() for line in EVERY.steps for pair in line.split() if "=" in pair
    }
    assert words <= known("scontrol update", slurm)
    nodes = {"NodeName", "State", "CPUTot", "RealMemory", "Gres", "Comment", "Reason", *NODE_FIELDS}
    assert {name.casefold() for name in nodes} <= known("node", slurm)
    partitions = {"PartitionName", *PARTITION_FIELDS}
    assert {name.casefold() for name in partitions} <= known("partition", slurm)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_interface_of_slurmrestd_has_the_fields_that_berth_sends_and_their_types(version: str) -> None:
    job = FIELDS["slurmrestd job"][version]
    body = body_of(PLACED, version)
    assert {name: type(value) for name, value in body.items()} == {name: TYPES[job[name]] for name in body}
    if version == OLDEST:
        return
    assert set(body) == {"hold", "required_nodes", "tres_per_node"}
    later = max(version, min(FIELDS["slurmrestd error"]))  # v0.0.39 is written out in its plugin
    result = {name: 2 if kind.startswith(("INT", "UINT")) else "no" for name, kind in _result(later).items()}
    assert errors_in({"errors": [], "results": [result]}) == ["no"]
    assert errors_in({"errors": [dict.fromkeys(FIELDS["slurmrestd error"][later], "no")]}) == ["no"]


def _result(version: str) -> dict[str, str]:
    found: dict[str, str] = FIELDS["slurmrestd result"][version]
    return found


def test_what_a_slurm_lacks_is_found_at_start_and_said_by_check() -> None:
    slurm = FakeSlurm()
    assert Controller(slurm).lacks() == []

    def older(words: list[str], lines: str) -> str:
        if words[0] == "squeue" and "tres-per-job" in words[-1]:
            raise LiveError("squeue: error: Invalid job format specification: tres-per-job")
        return slurm(words, lines).replace("GresUsed=", "Used=").replace("PriorityJobFactor=1 ", "")

    lacks = Controller(older).lacks()  # type: ignore[arg-type]
    assert lacks == [
        "squeue of this Slurm has no column tres-per-job, which berth reads",
        "scontrol of this Slurm shows no GresUsed: GPUs that others use are not seen",
        "scontrol of this Slurm shows no PriorityJobFactor: held jobs of all partitions have the same priority",
    ]
    setup = SlurmSetup({}, (), (), frozenset(), None, {}, "root", lacks=lacks)
    said = {fault.what: fault.stops for fault in faults(setup, Cards())}
    assert [said[lack] for lack in lacks] == [True, False, False]
