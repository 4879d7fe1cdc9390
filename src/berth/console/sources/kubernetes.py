"""A Kubernetes cluster, read as `berth k8s status` reads it."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from berth.console.roles import Role, Viewer
from berth.console.source import check_operator, word_of
from berth.errors import KubernetesError, SettingError
from berth.live.driver.snapshot import Snapshot
from berth.live.kubernetes import names

if TYPE_CHECKING:
    from berth.live.kubernetes.client import Api

T = TypeVar("T")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_INDEX = re.compile(r"0|[1-9][0-9]{0,3}")
_ANY_GPU: Final = ("NODE", "INDEX")
"""What stands for a GPU in a command that is yet to be filled in."""
_OF_PODS: Final = ("hold", "release", "cancel")
_ACTIONS: Final = (*_OF_PODS, "drain", "undrain")
_NO_OWNERS: Final = "Kubernetes does not record who owns a pod, so only operators can change pods here."
_LACKS: Final = {
    "priority": "Kubernetes fixes a pod's priority when it is made: delete it and make it again with another class.",
    "policy": "The policy is an argument of the steerer's Deployment: run berth k8s install with another --policy.",
    "requeue": "Kubernetes runs no pod again: make it again, or let a Job's controller do so.",
}


class KubernetesSource:
    """An API server. Pods have no user here: their namespace stands for one."""

    name = "kubernetes"
    every_s = 5.0

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    def look(self) -> Snapshot:
        """Everything that is there, listed once: large clusters take seconds to read."""
        from berth.live.kubernetes.viewing import look

        return self._ask(lambda api: look(api, most_waits=50_000))

    def job(self, job_id: str, viewer: Viewer, look: Snapshot | None) -> dict[str, Any]:
        """A pod that waits or holds a GPU, NAMESPACE/NAME, as the last look saw it: a cluster is costly to list."""
        if look is None:
            raise KubernetesError(
                "the cluster has not been seen yet, or does not answer; try again in a moment"
            )
        name = job_id if "/" in job_id else f"default/{job_id}"
        found = next((job for job in look.jobs if job.id == name), None)
        if found is None:
            raise KubernetesError(f"pod '{name}' neither waits for berth nor runs by it")
        return {
            "source": self.name, "id": found.id, "user": found.user, "state": found.state,
            "own": viewer.owns(found.user), "controls": viewer.owns(""), "name": found.name,
            "reason": found.why, "gpus": found.gpus, "milli": found.milli, "mem_mib": found.mem_mib,
            "priority": found.priority, "submit_ms": found.submit_ms or None, "ready_ms": found.ready_ms,
            "start_ms": found.start_ms,
            "where": found.where, "neighbours": look.neighbours_of(name), "why": [found.why] if found.why else [],
        }  # fmt: skip

    def act(self, action: str, values: dict[str, Any], viewer: Viewer) -> str:
        """Do it by a request to the API server, for an operator."""
        change = _change_of(action, values)
        if change is None:
            raise SettingError(f"Kubernetes has no action '{action}' here; there are {', '.join(_ACTIONS)}")
        check_operator(viewer, action)
        method = "DELETE" if change.body is None else "PATCH"
        self._ask(lambda api: api.request(method, change.path, change.body))
        return change.done

    def command(self, action: str, values: dict[str, Any]) -> str | None:
        """The command line that does the same."""
        try:
            change = _change_of(action, values)
        except SettingError:
            return "kubectl"  # what it is about makes no sense, and `act` says so
        return None if change is None else shlex.join(change.words)

    def lacks(self, viewer: Viewer) -> dict[str, str]:
        """What Kubernetes does not let a console do."""
        return _LACKS if viewer.role is Role.OPERATOR else {**dict.fromkeys(_OF_PODS, _NO_OWNERS), **_LACKS}

    def _ask(self, what: Callable[[Api], Awaitable[T]]) -> T:
        """Ask the API server something. Raises ApiError soon if it does not answer at all."""
        from berth.live.kubernetes.access import find_access
        from berth.live.kubernetes.client import Api, check_reachable

        async def whole() -> T:
            async with Api(find_access(str(self._kubeconfig)), agent="berth-console") as api:
                await check_reachable(api)
                return await what(api)

        return asyncio.run(whole())


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of one object: as a request, and as a command."""

    path: str
    body: dict[str, Any] | None
    """What is merged into it; None: it is deleted."""
    words: tuple[str, ...]
    done: str


def _change_of(action: str, values: dict[str, Any]) -> _Change | None:
    """The change that an action is; None where there is none. Raises SettingError for a name that is none."""
    if action not in _ACTIONS:
        return None
    what = word_of(values, "id")
    words: tuple[str, ...]
    if action in _OF_PODS:
        namespace, _, name = what.rpartition("/")
        namespace = namespace or "default"
        if not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
            raise SettingError(f"'{what}' is no NAMESPACE/NAME of a pod")
        path, pod = names.pod_path(namespace, name), f"pod {namespace}/{name}"
        if action == "cancel":
            words = ("kubectl", "delete", "pod", "-n", namespace, name)
            return _Change(path, None, words, f"{pod} is being deleted")
        held = "true" if action == "hold" else None
        words = ("kubectl", "annotate", "pod", "-n", namespace, name, _set(names.HOLD, held), "--overwrite")
        may = f"{pod} may be placed, unless a scheduling gate holds it"
        done = f"{pod} is not placed until it is released" if held else may
        return _Change(path, {"metadata": {"annotations": {names.HOLD: held}}}, words, done)
    node, _, index = what.rpartition(":")
    if (node, index) != _ANY_GPU and not (_NAME.fullmatch(node) and _INDEX.fullmatch(index)):
        raise SettingError(f"'{what}' is no GPU; expected NODE:INDEX, such as node1:0")
    label, drained = f"{names.LABEL_GPU_DRAINED}{index}", "true" if action == "drain" else None
    words = ("kubectl", "label", "node", node, _set(label, drained), "--overwrite")
    gpu = f"GPU {index} of {node}"
    done = f"nothing new starts on {gpu}" if drained else f"pods may start on {gpu} again"
    return _Change(f"/api/v1/nodes/{node}", {"metadata": {"labels": {label: drained}}}, words, done)


def _set(key: str, value: str | None) -> str:
    """How kubectl is told to give a key this value, or to take it away."""
    return f"{key}-" if value is None else f"{key}={value}"
