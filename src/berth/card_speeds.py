"""How fast applications run on each GPU model, against the GPU that their work was told for.

A table is CSV with the columns `application`, `gpu_model` and `speed`: 2 halves the run time, 0.5 doubles it. An
empty application stands for all that are not named. `gavel` is what Narayanan, Santhanam, Kazhamiaka, Phanishayee
and Zaharia measured of 26 configurations alone on K80, P100 and V100 ("Heterogeneity-Aware Cluster Scheduling Policies
for Deep Learning Workloads", OSDI 2020; throughputs of their repository, MIT licence, © 2020 Stanford Future Data
Systems), against the V100.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from berth.errors import SettingError, TraceError
from berth.model import FOREVER_MS, GpuSlot, Job, Node, elastic_milli

BUILT_IN = {"gavel": "gavel_card_speeds.csv"}
"""Tables that come with berth, by name."""
LARGEST = 1000.0


@dataclass(frozen=True, slots=True)
class CardSpeeds:
    """Speeds of applications by GPU model, per mille; an application that is not named has 1000 everywhere."""

    table: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By application, then by GPU model; each application has the same models."""
    name: str = ""

    def __bool__(self) -> bool:
        """Whether cards differ for anything."""
        return bool(self.table)

    @property
    def models(self) -> tuple[str, ...]:
        """The GPU models that the table tells of."""
        return tuple(next(iter(self.table.values()), {}))

    def of(self, application: str) -> Mapping[str, int]:
        """The speed of an application on each GPU model, per mille; empty where it is 1000 on all."""
        known = self.table.get(application)
        return self.table.get("", {}) if known is None else known

    def on(self, job: Job, slots: Sequence[GpuSlot], nodes: Sequence[Node]) -> int:
        """The speed of a job on these slots, per mille: that of the slowest of its GPUs, times that of an elastic job
        on as many as it has."""
        of = self.of(job.application)
        if not of or not job.gpus:
            return elastic_milli(job)
        models = {nodes[slot.node].gpu_model for slot in slots}
        slowest = min(of.get(model.name, 1000) if model else 1000 for model in models)
        return max(1, slowest * elastic_milli(job) // 1000)

    def fastest(self, job: Job) -> int:
        """The greatest speed of a job on the models that it may run on, per mille, times that of an elastic job on as
        many GPUs as it has."""
        speeds = [
            milli
            for model, milli in self.of(job.application).items()
            if not job.models or model in job.models
        ]
        most = max(speeds) if speeds and job.gpus else 1000
        return max(1, most * elastic_milli(job) // 1000)

    def among(self, nodes: Iterable[Node]) -> CardSpeeds:
        """The same speeds on the GPU models of these nodes alone."""
        there = {node.gpu_model.name for node in nodes if node.gpu_model and node.gpus}
        if there.issuperset(self.models):
            return self
        return CardSpeeds(
            {
                application: {model: milli for model, milli in speeds.items() if model in there}
                for application, speeds in self.table.items()
            },
            self.name,
        )

    def check(self, nodes: Iterable[Node]) -> None:
        """Refuse nodes with a GPU model that the table does not know."""
        models = {node.gpu_model.name for node in nodes if node.gpu_model and node.gpus}
        missing = sorted(models.difference(self.models)) if self.table else []
        if missing:
            raise SettingError(
                f"the speed table {self.name} has no {', '.join(missing)}, which the cluster has; it has"
                f" {', '.join(self.models)}: add a row of each application for it"
            )

    def unknown(self, jobs: Iterable[Job]) -> list[str]:
        """The applications of these jobs that the table does not know, sorted."""
        if not self.table or "" in self.table:
            return []
        return sorted({job.application for job in jobs if job.gpus}.difference(self.table))


ALL_ALIKE = CardSpeeds()
"""Every application is as fast on every card."""


def card_us(work_us: int, milli: int) -> int:
    """How long work takes at that speed, rounded up; work without end stays so."""
    return work_us if milli == 1000 or work_us >= FOREVER_MS * 1000 else -(-work_us * 1000 // milli)


def card_speeds(name: str) -> CardSpeeds:
    """The table of that name, or of the CSV file at that path; TraceError says what is wrong with it and where."""
    if name in BUILT_IN:
        text = files("berth").joinpath(BUILT_IN[name]).read_text("utf-8")
    else:
        try:
            with open(name, encoding="utf-8-sig", newline="") as file:
                text = file.read()
        except FileNotFoundError as error:
            tables = ", ".join(BUILT_IN)
            raise TraceError(
                name, "", cause=f"no such file, and none of berth's tables ({tables})"
            ) from error
        except OSError as error:
            raise TraceError.unreadable(name, error) from error
        except UnicodeDecodeError as error:
            raise TraceError(
                name, f"a CSV file in UTF-8, or one of {', '.join(BUILT_IN)} ({error})"
            ) from error
    return _read(text, name)


def _read(text: str, name: str) -> CardSpeeds:
    rows = csv.reader(text.splitlines())
    header = [column.strip() for column in next(rows, [])]
    wanted = ("application", "gpu_model", "speed")
    if any(column not in header for column in wanted):
        raise TraceError(name, f"the columns {', '.join(wanted)}", line=1, value=",".join(header))
    at_application, at_model, at_speed = (header.index(column) for column in wanted)
    table: dict[str, dict[str, int]] = {}
    for row in rows:
        line = rows.line_num
        if not row:
            continue
        if len(row) < len(header):
            raise TraceError(name, f"{len(header)} columns", line=line, value=",".join(row))
        application, model, speed_text = (
            row[at_application].strip(),
            row[at_model].strip(),
            row[at_speed].strip(),
        )
        try:
            milli = round(1000 * float(speed_text))
        except (ValueError, OverflowError):
            milli = 0
        if not 1 <= milli <= 1000 * LARGEST:
            raise TraceError(name, "a factor from 0.001 to 1000", line=line, column="speed", value=speed_text)
        if not model or model in table.setdefault(application, {}):
            expected = "a GPU model, once for each application"
            raise TraceError(name, expected, line=line, column="gpu_model", value=model)
        table[application][model] = milli
    if not table:
        raise TraceError(name, "at least one row")
    models = list(dict.fromkeys(model for speeds in table.values() for model in speeds))
    for application, speeds in table.items():
        if missing := [model for model in models if model not in speeds]:
            raise TraceError(
                name, f"a speed of '{application}' on {', '.join(missing)}, as of other applications"
            )
    return CardSpeeds(
        {application: {model: speeds[model] for model in models} for application, speeds in table.items()},
        name,
    )
