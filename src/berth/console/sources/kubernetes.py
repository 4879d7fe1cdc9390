"""A Kubernetes cluster, read as `berth k8s status` reads it."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from berth.console.look import Gpu, LiveJob, Look, Stranger, Tenant
from berth.console.roles import Viewer
from berth.console.sources.rights import check_operator, word_of
from berth.errors import KubernetesError, SettingError

if TYPE_CHECKING:
    from berth.live.kubernetes.viewing import Snapshot

__all__ = ["KubernetesSource"]

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


class KubernetesSource:
    """An API server. Pods have no user here: their namespace stands for one."""

    name = "kubernetes"
    every_s = 5.0

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    async def look(self) -> Look:
        """Everything that is there, listed once. In a thread of its own: large clusters take seconds to read."""
        snapshot = await asyncio.to_thread(self._snapshot)
        return look_of(snapshot, time.time_ns() // 1_000_000)

    async def job(self, job_id: str, viewer: Viewer, look: Look | None) -> dict[str, Any]:
        """A pod that waits or holds a GPU, NAMESPACE/NAME, as the last look saw it: a cluster is costly to list."""
        if look is None:
            raise KubernetesError(
                "the cluster has not been seen yet, or does not answer; try again in a moment"
            )
        name = job_id if "/" in job_id else f"default/{job_id}"
        found = next((job for job in look.jobs if job.id == name), None)
        if found is None:
            raise KubernetesError(f"pod '{name}' neither waits for berth nor holds a GPU")
        return {
            "source": self.name, "id": found.id, "user": found.user, "state": found.state,
            "own": viewer.owns(found.user), "controls": viewer.controls(""), "name": found.name,
            "reason": found.why, "gpus": found.gpus, "milli": found.milli, "mem_mib": found.mem_mib,
            "submit_ms": found.submit_ms or None, "where": found.where, "why": [found.why] if found.why else [],
        }  # fmt: skip

    async def act(self, action: str, values: dict[str, Any], viewer: Viewer) -> str:
        """Delete a pod, for an operator."""
        if action != "cancel":
            raise SettingError(f"Kubernetes has no action '{action}' here; there is cancel")
        check_operator(viewer, action)
        namespace, _, name = word_of(values, "id").rpartition("/")
        namespace = namespace or "default"
        if not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
            raise SettingError(f"'{values['id']}' is no NAMESPACE/NAME of a pod")
        await asyncio.to_thread(self._delete, f"/api/v1/namespaces/{namespace}/pods/{name}")
        return f"pod {namespace}/{name} is being deleted"

    def command(self, action: str, values: dict[str, Any]) -> str | None:
        """The command line that does the same."""
        namespace, _, name = str(values.get("id", "")).rpartition("/")
        words = ("kubectl", "delete", "pod", "-n", namespace or "default", name)
        return shlex.join(words) if action == "cancel" else None

    def _snapshot(self) -> Snapshot:
        from berth.live.kubernetes.access import find_access
        from berth.live.kubernetes.client import Api
        from berth.live.kubernetes.entries import Settings
        from berth.live.kubernetes.viewing import look

        async def ask() -> Snapshot:
            async with Api(find_access(str(self._kubeconfig)), agent="berth-console") as api:
                return await look(api, Settings(), most_waits=50_000)

        return asyncio.run(ask())

    def _delete(self, path: str) -> None:
        from berth.live.kubernetes.access import find_access
        from berth.live.kubernetes.client import Api

        async def ask() -> None:
            async with Api(find_access(str(self._kubeconfig)), agent="berth-console") as api:
                await api.request("DELETE", path)

        asyncio.run(ask())


def look_of(snapshot: Snapshot, now_ms: int) -> Look:
    """A snapshot of a cluster as the console shows it."""
    gpus: list[Gpu] = []
    on: dict[str, tuple[int, list[str], int, int]] = {}
    for gpu in snapshot.gpus:
        tenants = []
        for name, (milli, mem_mib) in zip(gpu.holders, gpu.shares, strict=True):
            tenants.append(Tenant(name, name.partition("/")[0], name.rpartition("/")[2], milli, mem_mib))
            places = [*(on[name][1] if name in on else []), f"{gpu.node} GPU {gpu.index}"]
            on[name] = len(places), places, milli, mem_mib
        strangers: tuple[Stranger, ...] = ()
        if gpu.foreign_milli:
            whose = "claims" if gpu.for_claims else "other pods"
            strangers = (Stranger(f"{whose}: {gpu.foreign_milli / 10:g} % of compute", 0),)
        gpus.append(Gpu(gpu.node, gpu.index, gpu.model, gpu.card_mib, tuple(tenants), strangers))
    running = [
        LiveJob(
            name, name.partition("/")[0], name.rpartition("/")[2], "running", count, milli, mem_mib, 0, None,
            ", ".join(places),
        )
        for name, (count, places, milli, mem_mib) in sorted(on.items())
    ]  # fmt: skip
    waits = [
        LiveJob(
            each.name, each.name.partition("/")[0], each.name.rpartition("/")[2], "waiting", each.gpus, each.milli,
            each.mem_mib, now_ms - round(1000 * each.since_s), None, "", each.why,
        )
        for each in snapshot.waits
    ]  # fmt: skip
    return Look(now_ms, tuple(gpus), (*running, *waits), len(waits), snapshot.running)
