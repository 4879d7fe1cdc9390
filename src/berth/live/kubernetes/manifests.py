"""What `berth k8s install` puts on a cluster: rights, scheduler, nodes' agents, extender; as manifests.

The manifests are made here once, as values; the kustomization and the Helm chart are both written from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from berth.live.kubernetes import names
from berth.live.kubernetes.node_manifests import device_class, node_manifests

__all__ = ["RULES", "Install", "helm_chart", "kustomization", "manifests"]

SCHEDULER = "berth-scheduler"
Manifest = dict[str, Any]

RULES: tuple[Manifest, ...] = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices", "resourceclaims"], "verbs": ["list", "watch"]},
)  # fmt: skip
"""What the scheduler may do on the whole cluster: what it does, and nothing else."""
LEASE_RULES: tuple[Manifest, ...] = (
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [names.LEASE],
        "verbs": ["get", "update"],
    },
)  # fmt: skip
"""And in its own namespace."""


@dataclass(frozen=True)
class Install:
    """How to install."""

    image: str = "ghcr.io/berth/berth:latest"
    policy: str = "fifo+best-fit"
    mode: str = "place"
    knowledge: str = "user"
    compat: str | None = None
    replicas: int = 2
    """One leads, the others wait for it to fail."""
    fake_gpus: str = ""
    """For a demo on nodes without GPUs, such as `2xA100-80G`."""
    claims: bool = False
    """Also make the DeviceClass, where the cluster serves `resource.k8s.io/v1`."""


def manifests(install: Install) -> dict[str, list[Manifest]]:
    """The manifests by the name of their file."""
    labels = {"app.kubernetes.io/name": "berth", "app.kubernetes.io/part-of": "berth"}
    return {
        "namespace": [
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {
                    "name": names.NAMESPACE,
                    "labels": {**labels, "pod-security.kubernetes.io/enforce": "privileged"},
                },
            }
        ],
        "scheduler-rights": _rights(),
        "scheduler": [_scheduler(install)],
        **node_manifests(install.image, install.fake_gpus),
        **({"device-class": [device_class()]} if install.claims else {}),
    }


def _rights() -> list[Manifest]:
    subject = {"kind": "ServiceAccount", "name": SCHEDULER, "namespace": names.NAMESPACE}
    rights = "rbac.authorization.k8s.io/v1"
    group = "rbac.authorization.k8s.io"
    here = {"name": SCHEDULER, "namespace": names.NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": here},
        {"apiVersion": rights, "kind": "ClusterRole", "metadata": {"name": SCHEDULER}, "rules": list(RULES)},
        {
            "apiVersion": rights, "kind": "ClusterRoleBinding", "metadata": {"name": SCHEDULER},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": SCHEDULER}, "subjects": [subject],
        },
        {"apiVersion": rights, "kind": "Role", "metadata": here, "rules": list(LEASE_RULES)},
        {
            "apiVersion": rights, "kind": "RoleBinding", "metadata": here,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": SCHEDULER}, "subjects": [subject],
        },
    ]  # fmt: skip


def _scheduler(install: Install) -> Manifest:
    labels = {"app.kubernetes.io/name": SCHEDULER, "app.kubernetes.io/part-of": "berth"}
    words = ["berth", "k8s", "scheduler", "--policy", install.policy, "--mode", install.mode]
    words += ["--knowledge", install.knowledge]
    if install.compat:
        words += ["--compat", install.compat]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": SCHEDULER, "namespace": names.NAMESPACE, "labels": labels},
        "spec": {
            "replicas": install.replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": SCHEDULER,
                    "priorityClassName": "system-cluster-critical",
                    "securityContext": {
                        "runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [
                        {
                            "name": "scheduler",
                            "image": install.image,
                            "command": words,
                            "env": [{"name": "NUMBA_CACHE_DIR", "value": "/tmp/numba"}],
                            "resources": {
                                "requests": {"cpu": "200m", "memory": "512Mi"}, "limits": {"memory": "1536Mi"},
                            },
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "readOnlyRootFilesystem": True,
                                "capabilities": {"drop": ["ALL"]},
                            },
                            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                        }
                    ],
                    "volumes": [{"name": "tmp", "emptyDir": {}}],
                },
            },
        },
    }  # fmt: skip


def kustomization(install: Install) -> dict[str, str]:
    """The files of a kustomization, by name."""
    made = manifests(install)
    files = {f"{name}.yaml": _text(each) for name, each in made.items()}
    head = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(files),
    }
    return {**files, "kustomization.yaml": _text([head])}


VALUES = ("image", "policy", "mode", "knowledge", "replicas")
"""The fields of `Install` that are values of the Helm chart."""


def helm_chart(install: Install, version: str) -> dict[str, str]:
    """The files of a Helm chart, by name: the same manifests with the values left open."""
    marks = replace(Install(), image="@image@", policy="@policy@", mode="@mode@", knowledge="@knowledge@")
    files: dict[str, str] = {}
    for name, each in manifests(marks).items():
        if name == "namespace":
            continue  # Helm makes it: helm install --create-namespace
        text = _text(each)
        for value in VALUES:
            text = text.replace(f"'@{value}@'", f"{{{{ .Values.{value} | quote }}}}")
        text = text.replace(f"replicas: {marks.replicas}", "replicas: {{ .Values.replicas }}")
        text = text.replace(f"namespace: {names.NAMESPACE}", "namespace: {{ .Release.Namespace }}")
        files[f"templates/{name}.yaml"] = text
    chart = {
        "apiVersion": "v2", "name": "berth", "version": version, "appVersion": version,
        "description": "Packs, partitions and accounts for shared GPUs",
    }  # fmt: skip
    values = {name: getattr(install, name) for name in VALUES}
    return {"Chart.yaml": _text([chart]), "values.yaml": _text([values]), **files}


def _text(documents: list[Manifest]) -> str:
    import yaml

    return "---\n".join(yaml.safe_dump(each, sort_keys=False, width=1000) for each in documents)
