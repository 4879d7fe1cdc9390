"""The manifests of the nodes' agents: their rights, the DaemonSet, and the DeviceClasses where there are claims."""

from __future__ import annotations

from typing import Any

from berth.live.kubernetes import names
from berth.live.kubernetes.install_options import Install

AGENT = "berth-node"
NODE_LABEL = "berth.dev/gpus"
"""An operator labels the nodes whose GPUs are shared: `kubectl label node NAME berth.dev/gpus=shared`."""
METRICS_PORT = 9400
Manifest = dict[str, Any]

NODE_RULES: tuple[Manifest, ...] = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
)
"""What an agent may do on the whole cluster."""
CLAIM_RULES: tuple[Manifest, ...] = (
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["get", "list", "create", "update", "delete"],
    },
)
"""And where claims get parts of GPUs. Without them an agent takes away slices of other options."""
EVICT_RULES: tuple[Manifest, ...] = ({"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]},)
"""And where it may evict a pod that got out of its limit."""

FOLDERS = {
    "kubelet": "/var/lib/kubelet",
    "state": names.STATE_FOLDER,
    "run": names.RUN_FOLDER,
    "cdi": names.CDI_FOLDER,
    "devices": "/dev",
}
"""Of the host, at the same paths in the agent's container, since the kubelet and the runtime mount from them too."""


def node_manifests(install: Install) -> dict[str, list[Manifest]]:
    """The manifests by the name of their file."""
    return {"node-rights": _rights(install), "node": [_daemon_set(install)]}


def device_classes() -> list[Manifest]:
    """What a ResourceClaim names to get a part of a GPU, or an instance of MIG."""
    instance = f'"profile" in device.attributes["{names.DRIVER}"]'
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{names.DRIVER}" && {which}'}}]},
        }
        for name, which in ((names.DEVICE_CLASS, f"!({instance})"), (names.MIG_CLASS, instance))
    ]


def _rights(install: Install) -> list[Manifest]:
    group = "rbac.authorization.k8s.io"
    rights = f"{group}/v1"
    subject = {"kind": "ServiceAccount", "name": AGENT, "namespace": names.NAMESPACE}
    rules = [*NODE_RULES, *CLAIM_RULES, *(EVICT_RULES if install.evict else ())]
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": AGENT, "namespace": names.NAMESPACE},
        },
        {
            "apiVersion": rights,
            "kind": "ClusterRole",
            "metadata": {"name": AGENT},
            "rules": rules,
        },
        {
            "apiVersion": rights,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": AGENT},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": AGENT},
            "subjects": [subject],
        },
    ]


def _daemon_set(install: Install) -> Manifest:
    labels = {"app.kubernetes.io/name": AGENT, "app.kubernetes.io/part-of": "berth"}
    words = ["berth", "k8s", "node", "--metrics", f":{METRICS_PORT}"]
    if install.fake_gpus:
        words += ["--fake-gpus", install.fake_gpus]
    if install.claims:
        words += ["--dra", "all"]
    if install.compat:
        words += ["--compat", install.compat]
    if install.evict:
        words += ["--on-lost-isolation", "evict"]
    container = {
        "name": "node",
        "image": install.image,
        "command": words,
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        ],
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "privileged": True,
            "runAsUser": 0,
        },  # device nodes, and the processes of other pods
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in FOLDERS.items()],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": AGENT, "namespace": names.NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": AGENT,
                    "priorityClassName": "system-node-critical",
                    "hostPID": True,
                    "nodeSelector": {NODE_LABEL: "shared"},
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [container],
                    "volumes": [
                        {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
                        for name, path in FOLDERS.items()
                    ],
                },
            },
        },
    }
