"""One job as `sacct --json` of each Slurm from 21.08 to 25.05 writes it, by the shapes that Slurm documents.

Slurm's parsers differ in four things: whether a number stands in an object that says if it is set, whether a
state and an exit status are lists, what a signal is called, and which fields there are at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from berth.history.importing.sacct import import_jobs
from berth.history.importing.sacct_json import json_rows
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options, Rejections
from tests.every_policy import some

Number = Callable[[int | None], Any]
SUBMIT_S: Final = 1_767_225_600


def plain(value: int | None) -> Any:
    """A number that is not set is null or left out."""
    return value


def marked(value: int | None) -> Any:
    """As parsers write it that tell whether a number is set."""
    return {"set": value is not None, "infinite": False, "number": value or 0}


def no_limit(number: Number) -> Any:
    return None if number is plain else {"set": False, "infinite": True, "number": 0}


class Version:
    """How one parser writes."""

    def __init__(
        self, parser: str, release: str, number: Number, *, states: bool, codes: Number, exits: bool
    ) -> None:
        self.parser, self.release, self.number = parser, release, number
        self.states, self.codes, self.exits = states, codes, exits

    def job(self, job_id: int, **told: Any) -> dict[str, Any]:
        """One job; `told` are its `states`, `end_s`, `start_s`, exit `code`, `signal`, `task` and `limit_min`."""
        number, end_s, start_s = self.number, told["end_s"], told["start_s"]
        states, status = told["states"], "SIGNALED" if told.get("signal") else "SUCCESS"
        name = "id" if self.exits else "signal_id"
        signal = {name: self.codes(told.get("signal")), "name": "KILL" if told.get("signal") else ""}
        limit_min = told.get("limit_min")
        task = told.get("task")
        return {
            "account": "physics",
            "comment": {"administrator": "", "job": "vasp", "system": ""},
            "allocation_nodes": 1,
            "array": {
                "job_id": 100 if task is not None else 0,
                "limits": {"max": {"running": {"tasks": 0}}},
                "task": "",
                "task_id": number(task),
            },
            "association": {"account": "physics", "cluster": "c", "partition": None, "user": "ann"},
            "cluster": "c",
            "derived_exit_code": {"status": "SUCCESS", "return_code": self.codes(0)},
            "exit_code": {
                "status": [status] if self.states else status,
                "return_code": self.codes(told.get("code", 0)),
                **({"signal": signal} if told.get("signal") or self.exits else {}),
            },
            "het": {"job_id": 0, "job_offset": number(None)},
            "job_id": job_id,
            "name": "relax",
            "nodes": "gpu01" if start_s else "None assigned",
            "partition": "a100",
            "priority": number(17),
            "qos": "normal",
            "required": {
                "CPUs": 8,
                **({"memory": 0} if number is plain else {"memory_per_node": number(64)}),
            },
            "state": {"current": states if self.states else states[0], "reason": "Priority"},
            "steps": [
                {
                    "statistics": {"CPU": {"actual_frequency": 0}, "energy": {"consumed": number(3_600)}},
                    "time": {"total": {"seconds": 40, "microseconds": 500_000}},
                    "tres": {
                        "requested": {
                            "total": [
                                {
                                    "type": "mem",
                                    "name": "" if number is marked else None,
                                    "id": 2,
                                    "count": 3 << 30,
                                },
                                {"type": "gres", "name": "gpuutil", "id": 1003, "count": 50},
                            ]
                        }
                    },
                }
            ],
            "submit_line": "sbatch relax.sh",
            "time": {
                "elapsed": max(end_s - start_s, 0) if start_s else 0,
                "eligible": SUBMIT_S + 5,
                "end": end_s,
                "start": start_s,
                "submission": SUBMIT_S,
                "suspended": 20 if start_s else 0,
                "limit": number(limit_min) if limit_min else no_limit(number),
                "total": {"seconds": 0, "microseconds": 0},
            },
            "tres": {
                "allocated": [
                    {"type": "cpu", "name": "" if number is marked else None, "id": 1, "count": 8},
                    {"type": "gres", "name": "gpu", "id": 1001, "count": 2},
                    {"type": "gres", "name": "gpu:a100", "id": 1002, "count": 2},
                ]
                if start_s
                else [],
                "requested": [
                    {"type": "cpu", "name": "" if number is marked else None, "id": 1, "count": 8},
                    {"type": "gres", "name": "gpu", "id": 1001, "count": 2},
                ],
            },
            "user": "ann",
        }

    def document(self) -> dict[str, Any]:
        """Five jobs: one that completed, one that was killed, two attempts of a requeued one, one never started."""
        times = {"start_s": SUBMIT_S + 60, "end_s": SUBMIT_S + 660}
        jobs = [
            self.job(7, states=["COMPLETED"], limit_min=30, **times),
            self.job(101, states=["FAILED"], signal=9, task=3, **times),
            self.job(9, states=["REQUEUED"] if not self.states else ["PENDING", "REQUEUED"], **times),
            self.job(10, states=["CANCELLED"], start_s=0, end_s=SUBMIT_S + 30),
            self.job(11, states=["FAILED"], code=3, **times),
        ]
        if self.parser.startswith("openapi"):
            meta: dict[str, Any] = {"plugin": {"type": self.parser, "name": "Slurm OpenAPI DB"}}
        else:
            meta = {"plugin": {"type": "openapi/slurmdbd", "data_parser": self.parser}}
        return {"meta": {**meta, "Slurm": {"release": self.release}}, "errors": [], "jobs": jobs}


VERSIONS: Final = (
    Version("openapi/dbv0.0.37", "21.08.8", plain, states=False, codes=plain, exits=False),
    Version("openapi/dbv0.0.38", "22.05.8", plain, states=False, codes=plain, exits=False),
    Version("data_parser/v0.0.39", "23.02.7", marked, states=False, codes=plain, exits=False),
    Version("data_parser/v0.0.40", "23.11.10", marked, states=True, codes=marked, exits=True),
    Version("data_parser/v0.0.41", "24.05.4", marked, states=True, codes=marked, exits=True),
    Version("data_parser/v0.0.42", "24.11.5", marked, states=True, codes=marked, exits=True),
    Version("data_parser/v0.0.43", "25.05.1", marked, states=True, codes=marked, exits=True),
)


@pytest.mark.parametrize("version", some(VERSIONS), ids=lambda version: version.release)
def test_the_same_jobs_come_out_of_the_json_of_every_slurm(version: Version, tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text(json.dumps(version.document()))
    history, rejections = open_history(tmp_path / "h"), Rejections()
    rows = json_rows(tmp_path / "f.json", rejections)
    result = import_jobs(history, rows, Options(), "f.json", rejections)
    assert (result.imported, rejections.listed) == (5, [])
    found = {record.label or record.job_id: record for record in history.records()}
    assert {
        name: (r.state, r.exit_code, r.time_limit_ms, r.start_ms, r.end_ms - SUBMIT_S * 1000)
        for name, r in found.items()
    } == {
        "7": ("completed", 0, 30 * 60_000, (SUBMIT_S + 60) * 1000, 660_000),
        "100_3": ("failed", 137, None, (SUBMIT_S + 60) * 1000, 660_000),
        "9": ("preempted", 0, None, (SUBMIT_S + 60) * 1000, 660_000),
        "10": ("cancelled", None, None, None, 30_000),
        "11": ("failed", 3, None, (SUBMIT_S + 60) * 1000, 660_000),
    }
    first = found["7"]
    assert (
        *(first.user, first.account, first.cluster, first.virtual_cluster, first.qos, first.application),
        *(first.gpus, first.gpu_model, first.cpu_milli, first.nodes, first.suspended_ms, first.command),
        *(first.cpu_used_ms, first.mem_peak_mib, first.energy_j, first.gpu_use_peak),
    ) == (
        *("ann", "physics", "c", "a100", "normal", "vasp"),
        *(2, "a100", 8_000, ("gpu01",), 20_000, "sbatch relax.sh"),
        *(40_500, 3_072, 3_600, 0.25),
    )
