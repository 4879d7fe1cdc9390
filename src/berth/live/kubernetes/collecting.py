"""Collect the histories of all nodes into one folder, for `berth report`, `berth stats` and `--knowledge history`.

The API server passes the request on to the agents' pods (`pods/proxy`), so that its user needs no way to the
nodes. What was collected before is recognised: a pod is known by its name and when it was made. Of two nodes' profiles
of one application that of a whole run alone counts, then one of a run alone that goes on; of two alike the newer.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from berth.counts import counted
from berth.errors import ApiError, BerthError, KubernetesError
from berth.history.importing.simulated import import_records
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.live.kubernetes import names
from berth.live.kubernetes.client import Api
from berth.profiles import BEGUN, IN_HISTORY, RUNNING, SHARED, read_profile
from berth.profiles.file import ENDING

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Agents that are asked at once."""
PATIENCE_S = 10.0
"""How long an agent is asked that does not answer; the next round asks it again."""


class Collector:
    """Takes over the nodes' histories, again and again; of a node whose history has not changed nothing is sent."""

    def __init__(self, api: Api, into: Path, namespace: str = names.NAMESPACE) -> None:
        self._api, self._into = api, into
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._namespace = namespace
        self._has: dict[str, str] = {}
        """By the node's name, the digest of the archive that was taken over last."""

    async def collect(self) -> dict[str, str]:
        """Take over the history of each node; what came of it, in words, by the node's name."""
        selector = {"labelSelector": f"app.kubernetes.io/name={names.AGENT}"}
        listed = await self._api.request("GET", self._path, params=selector, patience_s=30)
        pods = json.loads(listed)["items"]
        if not pods:
            raise KubernetesError(
                f"no agent of berth in the namespace '{self._namespace}'; install them with berth k8s install"
            )
        self._into.mkdir(parents=True, exist_ok=True)  # not before: what is refused leaves no folder behind
        free, one = asyncio.Semaphore(AT_ONCE), asyncio.Lock()

        async def of(pod: dict[str, Any]) -> tuple[str, str]:
            """The node, and what came of it: some agents are asked at once, and archives taken over one by one."""
            name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "no node")
            known = {"known": self._has[node]} if node in self._has else {}
            ports = (each for container in pod["spec"]["containers"] for each in container.get("ports", ()))
            served = (each["containerPort"] for each in ports if each.get("name") == "metrics")
            path = f"{self._path}/{name}:{next(served, names.METRICS_PORT)}/proxy/history"
            async with free:
                try:
                    answer = await self._api.request("GET", path, params=known, patience_s=PATIENCE_S)
                except ApiError as error:
                    return node, f"{LEFT_OUT}: {error}"
                if not answer:
                    return node, "nothing new" if node in self._has else "no pod has ended there yet"
                async with one:
                    return node, await asyncio.to_thread(self._take, answer, node)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(of(pod)) for pod in pods]
        return dict(task.result() for task in tasks)

    async def follow(self, every_s: float) -> None:
        """Collect every `every_s` seconds until cancelled. What fails is logged when it begins to."""
        failures: dict[str, str] = {}
        while True:
            before = failures
            try:
                found = await self.collect()
                failures = {node: why for node, why in found.items() if why.startswith(LEFT_OUT)}
            except BerthError as error:
                failures = {"no history is collected": str(error)}
            for node, why in failures.items():
                if before.get(node) != why:
                    log.warning("%s: %s", node, why)
            await asyncio.sleep(every_s)

    def _take(self, archive: bytes, node: str) -> str:
        history = open_history(self._into, importing=f"the node {node}")
        profiles = 0
        try:
            with (
                tempfile.TemporaryDirectory(dir=self._into) as made,
                tarfile.open(fileobj=io.BytesIO(archive)) as tar,
            ):
                tar.extractall(made, filter="data")
                options = Options(cluster="kubernetes")
                result = import_records(history, Path(made) / "records.parquet", options)
                for path in sorted((Path(made) / IN_HISTORY).glob(f"*{ENDING}")):
                    there = self._into / IN_HISTORY / path.name
                    if _counts(path, there):
                        there.parent.mkdir(parents=True, exist_ok=True)
                        path.replace(there)
                        profiles += 1
        except (BerthError, OSError, tarfile.TarError, EOFError) as error:
            return f"{LEFT_OUT}: what it answered cannot be taken over: {error}"
        self._has[node] = hashlib.sha256(archive).hexdigest()
        return f"{counted(result.imported, 'new record')}, {counted(profiles, 'profile')}"


LEFT_OUT = "left out"


def _counts(new: Path, there: Path) -> bool:
    """Whether a node's profile is to take the place of the one that is there. ProfileError for one that is wrong."""
    if not there.exists():
        read_profile(new)
        return True
    before, after = (_WORTH.get(read_profile(path).kind, len(_WORTH)) for path in (there, new))
    return (after, new.stat().st_mtime) > (before, there.stat().st_mtime)


_WORTH = {SHARED: 0, BEGUN: 1, RUNNING: 2}
"""What kinds of profile are worth; one of a whole run alone is worth more."""
