"""What the broker answers of its GPUs and jobs, as the snapshot that `status`, `top`, `why` and the console show."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any

from berth.live.driver.snapshot import Gpu, LiveJob, Snapshot, Stranger, Tenant

GOING = ("starting", "running")


def snapshot_of(status: Mapping[str, Any], *listings: Mapping[str, Any], node: str = "") -> Snapshot:
    """The answer to `status` and those to `queue`; `node` is what this machine is called, empty if it need not be."""
    counts = status["jobs"]
    notes = (*(each["note"] for each in listings), *status["trouble"])
    rows = [dict(zip(each["columns"], row, strict=True)) for each in listings for row in each["rows"]]
    return Snapshot(
        time.time_ns() // 1_000_000,
        gpus_of(status["gpus"], node),
        tuple(_job(row, node) for row in rows),
        counts["waiting"] + counts["held"],
        counts["starting"] + counts["running"],
        status["policy"],
        tuple(filter(None, dict.fromkeys(notes))),
    )


def gpus_of(gpus: Iterable[Mapping[str, Any]], node: str = "") -> tuple[Gpu, ...]:
    """The GPUs of an answer."""
    return tuple(_gpu(each, node) for each in gpus)


def where_of(slots: Iterable[int], node: str = "") -> str:
    """The GPUs of a job, `GPU 0,1`; empty if it has none."""
    indices = ",".join(map(str, slots))
    return f"{node} GPU {indices}".strip() if indices else ""


def _gpu(values: Mapping[str, Any], node: str) -> Gpu:
    tenants = (Tenant(*_OF_TENANT(each)) for each in values["tenants"])
    strangers = [
        Stranger(f"process {each['pid']}", each["mem_mib"], each["command"]) for each in values["strangers"]
    ]
    for each in values["partitions"]:
        remedy = "" if each["processes"] else f"nothing uses it; berth partition remove {each['name']}"
        strangers.append(Stranger(f"partition {each['name']}", each["mem_mib"], remedy=remedy))
    health = "it has fallen off the bus" if values["lost"] else ""
    index, model, mem_mib, used_mib, use_pct, drained = _OF_GPU(values)
    return Gpu(
        node, index, model, mem_mib, tuple(tenants), tuple(strangers), used_mib, use_pct, health, drained
    )


def _job(values: Mapping[str, Any], node: str) -> LiveJob:
    start_ms = values["start_ms"] if values["state"] in GOING else None
    where, why = where_of(values["slots"], node), values["reason"] or ""
    return replace(LiveJob(*_OF_JOB(values)), start_ms=start_ms, where=where, why=why)


_OF_GPU = itemgetter("index", "model", "mem_mib", "used_mib", "use_pct", "drained")
_OF_TENANT = itemgetter("id", "user", "name", "milli", "mem_mib", "used_mib", "use_pct", "since_ms", "state")
_OF_JOB = itemgetter("id", "user", "name", "state", "gpus", "milli", "mem_mib", "submit_ms", "ready_ms")
