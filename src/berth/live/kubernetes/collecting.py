"""Collect the histories of all nodes into one folder, for `berth report`, `berth stats` and `--knowledge history`.

The API server passes the request on to the agents' pods (`pods/proxy`), so that its user needs no way to the
nodes. What was collected before is recognised: a pod is known by its name and when it was made.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from pathlib import Path

from berth.errors import ApiError, KubernetesError
from berth.history.importing.simulated import import_records
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.live.kubernetes import names
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.node_manifests import AGENT, METRICS_PORT
from berth.profiles import IN_HISTORY

__all__ = ["collect"]


async def collect(api: Api, into: Path, namespace: str = names.NAMESPACE) -> dict[str, str]:
    """Take over the history of each node; what came of it, in words, by the node's name."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    selector = {"labelSelector": f"app.kubernetes.io/name={AGENT}"}
    pods = json.loads(await api.request("GET", path, params=selector, patience_s=30))["items"]
    if not pods:
        raise KubernetesError(
            f"no agent of berth in the namespace '{namespace}'; install them with berth k8s install"
        )
    found = {}
    for pod in pods:
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "no node")
        port = next(
            (
                port["containerPort"]
                for each in pod["spec"]["containers"]
                for port in each.get("ports", ())
                if port.get("name") == "metrics"
            ),
            METRICS_PORT,
        )
        try:
            told = await api.request("GET", f"{path}/{name}:{port}/proxy/history", patience_s=30)
        except ApiError as error:
            found[node] = f"left out: {error}"
            continue
        found[node] = _take(told, into, node) if told else "no pod has ended there yet"
    return found


def _take(archive: bytes, into: Path, node: str) -> str:
    history = open_history(into, importing=f"the node {node}")
    with tempfile.TemporaryDirectory(dir=into) as made, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(made, filter="data")
        result = import_records(history, Path(made) / "records.parquet", Options(cluster="kubernetes"))
        profiles = 0
        for path in sorted((Path(made) / "profiles").glob("*")):
            there = into / IN_HISTORY / path.name
            if not there.exists() or there.read_bytes() != path.read_bytes():
                there.parent.mkdir(parents=True, exist_ok=True)
                path.replace(there)
                profiles += 1
    return f"{result.imported} new records, {profiles} profiles"
