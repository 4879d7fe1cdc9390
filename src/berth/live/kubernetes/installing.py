"""Put manifests on a cluster, made if they are missing and brought up to date if they are there; take them away."""

from __future__ import annotations

import re
from typing import Any

from berth.errors import ApiError
from berth.live.kubernetes.client import MERGE_PATCH, Api


async def apply(api: Api, manifest: dict[str, Any]) -> str:
    """Make or change one object; returns what was done, in words. Raises ApiError."""
    kind, name, path = manifest["kind"], manifest["metadata"]["name"], _path(manifest)
    try:
        await api.request("POST", path, manifest, patience_s=10)
    except ApiError as error:
        if error.status == 404 and "AdmissionPolicy" in kind:
            older = "1.30" if kind.startswith("Validating") else "1.36: write the gate into pods yourself"
            return f"{kind} {name} left out: this cluster is older than {older}"
        if error.status != 409:
            raise
        await api.request("PATCH", f"{path}/{name}", manifest, content_type=MERGE_PATCH, patience_s=10)
        return f"{kind} {name} is up to date"
    return f"{kind} {name} made"


async def take_away(api: Api, manifest: dict[str, Any]) -> str:
    """Delete one object; returns what was done, in words, empty if it is not there. Raises ApiError."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    options = {"propagationPolicy": "Background"}
    is_there = await api.change("DELETE", f"{_path(manifest)}/{name}", options, patience_s=10)
    return f"{kind} {name} deleted" if is_there else ""


def _path(manifest: dict[str, Any]) -> str:
    version, meta = manifest["apiVersion"], manifest["metadata"]
    base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    if "namespace" in meta:
        base += f"/namespaces/{meta['namespace']}"
    kind = re.sub("y$", "ie", re.sub("s$", "se", manifest["kind"].lower()))
    return f"{base}/{kind}s"
