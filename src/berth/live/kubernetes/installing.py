"""Put manifests on a cluster, made if they are missing and brought up to date if they are there; take them away."""

from __future__ import annotations

from typing import Any

from berth.errors import ApiError
from berth.live.kubernetes import names
from berth.live.kubernetes.client import MERGE_PATCH, Api

_PLURALS = {
    "Namespace": "namespaces",
    "ConfigMap": "configmaps",
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
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
}
OF_0_2 = (
    ("ClusterRole", "berth-scheduler"), ("ClusterRoleBinding", "berth-scheduler"),
    ("ClusterRole", "berth-extender"), ("ClusterRoleBinding", "berth-extender"),
    ("Role", "berth-scheduler"), ("RoleBinding", "berth-scheduler"), ("ServiceAccount", "berth-scheduler"),
    ("Deployment", "berth-scheduler"), ("Role", "berth-extender"), ("RoleBinding", "berth-extender"),
    ("ServiceAccount", "berth-extender"), ("Deployment", "berth-extender"), ("Service", "berth-extender"),
)  # fmt: skip
"""What berth 0.2 installed and this version does not have."""
_VERSIONS = {
    "ClusterRole": "rbac.authorization.k8s.io/v1",
    "ClusterRoleBinding": "rbac.authorization.k8s.io/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "Deployment": "apps/v1",
}


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
    try:
        options = {"propagationPolicy": "Background"}
        await api.request("DELETE", f"{_path(manifest)}/{name}", options, patience_s=10)
    except ApiError as error:
        if error.status != 404:
            raise
        return ""
    return f"{kind} {name} deleted"


def manifests_of_0_2() -> list[dict[str, Any]]:
    """What berth 0.2 installed and this version takes away, as far as it is needed for that."""
    cluster_wide = ("ClusterRole", "ClusterRoleBinding")
    return [
        {
            "apiVersion": _VERSIONS.get(kind, "v1"),
            "kind": kind,
            "metadata": {"name": name} | ({} if kind in cluster_wide else {"namespace": names.NAMESPACE}),
        }
        for kind, name in OF_0_2
    ]


def _path(manifest: dict[str, Any]) -> str:
    version, meta = manifest["apiVersion"], manifest["metadata"]
    base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    if "namespace" in meta:
        base += f"/namespaces/{meta['namespace']}"
    return f"{base}/{_PLURALS[manifest['kind']]}"
