"""Finished pods that asked for GPUs, as `kubectl get pods -o json` prints them, into jobs.

A pod is the job `NAMESPACE/NAME`, under which series of DCGM's exporter know it by their labels; its namespace is the
account. It waits from its creation to the start of its first container and ends with its last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from berth.errors import AskError
from berth.history.importing.job_row import JobRow, since_1970_ms
from berth.history.importing.json_list import listed_in_json
from berth.history.store.import_result import Rejections
from berth.history.values.quantities import amount
from berth.history.values.tres import MOST, Resources

ABSENT: Final = ("comment",)
_GPU = re.compile(r"(?:nvidia\.com/(?:gpu(?:\.shared)?|mig-[\w.]+)|amd\.com/gpu|gpu\.intel\.com/\w+)")
_USERS: Final = ("berth.dev/user", "user", "app.kubernetes.io/created-by", "hub.jupyter.org/username")
"""Labels and annotations that tell whose a pod is; the first that is there counts."""


def pod_rows(path: Path, rejections: Rejections) -> Iterator[JobRow]:
    """Yield a row for each pod that has finished and asked for a GPU; note all others."""
    _, pods = listed_in_json(path, "items", "`kubectl get pods --all-namespaces -o json` prints it")
    for number, pod in enumerate(pods):
        place = f"{path}, items[{number}]"
        try:
            place = f"{place}, pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
            found = _row(pod)
        except KeyError as error:
            found = f"no '{error.args[0]}' in it"
        except (TypeError, AttributeError, ValueError, IndexError, OverflowError, AskError):
            found = "something in it is of another kind than Kubernetes writes"
        if isinstance(found, str):
            rejections.add(place, found)
        else:
            yield found


def _row(pod: Mapping[str, Any]) -> JobRow | str:
    meta, spec, status = pod["metadata"], pod["spec"], pod["status"]
    phase = status.get("phase")
    if phase not in ("Succeeded", "Failed"):
        return f"has not ended ({phase}); it comes in once it has"
    requested = _requested(spec)
    gpus = round(sum(value for name, value in requested.items() if _GPU.fullmatch(name)))
    if not gpus:
        return "asked for no GPU"
    states = [each.get("state") or {} for each in status.get("containerStatuses") or ()]
    ended = [each["terminated"] for each in states if each.get("terminated")]
    starts = [_seconds(each["startedAt"]) for each in ended if each.get("startedAt")]
    ends = [_seconds(each["finishedAt"]) for each in ended if each.get("finishedAt")]
    if not ends:
        return "no container tells when it finished; kubectl must be asked before the pod's status is gone"
    worst = max(ended, key=lambda each: int(each.get("exitCode") or 0))
    labels = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    cpus, mem_mib = round(requested.get("cpu", 0.0)), round(requested.get("memory", 0.0) / 2**20)
    if max(gpus, cpus, mem_mib) > MOST:
        return "asks for more than any node has"
    command = " ".join(
        str(word) for each in spec["containers"] for word in (each.get("image"), *(each.get("command") or ()))
    )
    node = spec.get("nodeName") or ""
    return JobRow(
        job_id=f"{meta['namespace']}/{meta['name']}",
        name=meta["name"],
        user=next((labels[name] for name in _USERS if labels.get(name)), ""),
        account=meta["namespace"],
        partition=spec.get("schedulerName") or "",
        qos=spec.get("priorityClassName") or "",
        state=_state(phase, str(status.get("reason") or ""), str(worst.get("reason") or "")),
        submit_ms=since_1970_ms(_seconds(meta["creationTimestamp"])),
        start_ms=since_1970_ms(min(starts, default=None)),
        end_ms=since_1970_ms(max(ends)),
        node_count=1 if node else None,
        nodes=(node,) if node else (),
        allocated=Resources(gpus=gpus, cpus=cpus, mem_mib=mem_mib, nodes=1),
        command=command,
        exit_code=int(worst.get("exitCode") or 0),
    )


def _requested(spec: Mapping[str, Any]) -> dict[str, float]:
    """What the containers hold together; an init container, which runs before them, counts where it holds more."""

    def of(container: Mapping[str, Any]) -> dict[str, float]:
        resources = container.get("resources") or {}
        return {
            name: float(amount(value))
            for name, value in {
                **(resources.get("limits") or {}),
                **(resources.get("requests") or {}),
            }.items()
        }

    total: dict[str, float] = {}
    for container in spec["containers"]:
        for name, value in of(container).items():
            total[name] = total.get(name, 0.0) + value
    for container in spec.get("initContainers") or ():
        for name, value in of(container).items():
            total[name] = max(total.get(name, 0.0), value)
    return total


def _state(phase: str, reason: str, of_container: str) -> str:
    if phase == "Succeeded":
        return "COMPLETED"
    if of_container == "OOMKilled":
        return "OUT_OF_MEMORY"
    return {
        "Evicted": "PREEMPTED",
        "Preempting": "PREEMPTED",
        "DeadlineExceeded": "TIMEOUT",
        "NodeLost": "NODE_FAIL",
        "NodeShutdown": "NODE_FAIL",
        "Terminated": "NODE_FAIL",
    }.get(reason, "FAILED")


def _seconds(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return round(moment.timestamp())
