"""Put manifests on a cluster: made where they are missing, brought up to date where they are there."""

from __future__ import annotations

from typing import Any

from berth.errors import ApiError
from berth.live.kubernetes.client import MERGE_PATCH, Api

_PLURALS = {
    "Namespace": "namespaces",
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Deployment": "deployments",
    "DaemonSet": "daemonsets",
    "DeviceClass": "deviceclasses",
    "Service": "services",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}


async def apply(api: Api, manifest: dict[str, Any]) -> str:
    """Make or change one object; returns what was done, in words. Raises ApiError."""
    version, kind, meta = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
    base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    if "namespace" in meta:
        base += f"/namespaces/{meta['namespace']}"
    path = f"{base}/{_PLURALS[kind]}"
    try:
        await api.request("POST", path, manifest, patience_s=10)
    except ApiError as error:
        if error.status == 404 and kind.startswith("ValidatingAdmissionPolicy"):
            return f"{kind} {meta['name']} left out: this cluster is older than 1.30"
        if error.status != 409:
            raise
        await api.request(
            "PATCH", f"{path}/{meta['name']}", manifest, content_type=MERGE_PATCH, patience_s=10
        )
        return f"{kind} {meta['name']} is up to date"
    return f"{kind} {meta['name']} made"
