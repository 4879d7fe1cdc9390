"""What `berth k8s install` puts on a cluster: rights, steerer, nodes' agents, admission policies.

The manifests are made here once, as values; the kustomization and the Helm chart are both written from them.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from berth.live.kubernetes import names
from berth.live.kubernetes.admission import GROUP, admission_manifests, gate_manifests
from berth.live.kubernetes.install_options import Install
from berth.live.kubernetes.node_manifests import AGENT, device_classes, node_manifests

STEERER = "berth-steerer"
Manifest = dict[str, Any]

RULES: tuple[Manifest, ...] = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices", "resourceclaims"],
        "verbs": ["list", "watch"],
    },
    {
        "apiGroups": [names.PLUGINS_GROUP, names.OWN_GROUP],
        "resources": ["podgroups"],
        "verbs": ["list", "watch"],
    },
)
"""What the steerer may do on the whole cluster: what it does, and nothing else."""
LEASE_RULES: tuple[Manifest, ...] = (
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [names.LEASE],
        "verbs": ["get", "update"],
    },
)
"""And in its own namespace."""
HISTORY_RULES: tuple[Manifest, ...] = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]},
)
"""And there, where it gathers the nodes' histories."""


def manifests(install: Install) -> dict[str, list[Manifest]]:
    """The manifests by the name of their file."""
    labels = {"app.kubernetes.io/name": "berth", "app.kubernetes.io/part-of": "berth"}
    gathers = HISTORY_RULES if install.gathers else ()
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
        "admission": admission_manifests(STEERER, AGENT),
        **({"gate": gate_manifests(install.compat)} if install.mode != "advise" else {}),
        "steerer-rights": _rights(STEERER, RULES, (*LEASE_RULES, *gathers)),
        "steerer": [_steerer(install)],
        **node_manifests(install),
        **({"device-class": device_classes()} if install.claims else {}),
    }


def _rights(name: str, rules: tuple[Manifest, ...], own_rules: tuple[Manifest, ...] = ()) -> list[Manifest]:
    """A service account that may follow `rules` on the whole cluster, and `own_rules` in its namespace."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": names.NAMESPACE}
    rights = "rbac.authorization.k8s.io/v1"
    group = "rbac.authorization.k8s.io"
    here = {"name": name, "namespace": names.NAMESPACE}
    made: list[Manifest] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": here},
        {"apiVersion": rights, "kind": "ClusterRole", "metadata": {"name": name}, "rules": list(rules)},
        {
            "apiVersion": rights,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        },
    ]
    if own_rules:
        made += [
            {"apiVersion": rights, "kind": "Role", "metadata": here, "rules": list(own_rules)},
            {
                "apiVersion": rights,
                "kind": "RoleBinding",
                "metadata": here,
                "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
                "subjects": [subject],
            },
        ]
    return made


def _steerer(install: Install) -> Manifest:
    words = ["berth", "k8s", "steerer", "--policy", install.policy, "--mode", install.mode]
    words += ["--knowledge", install.knowledge, *(["--compat", install.compat] if install.compat else [])]
    words += [
        *(["--quota", install.quota] if install.quota else []),
        *(["--borrow"] if install.borrow else []),
        *(["--reclaim"] if install.reclaim else []),
    ]
    return _gathering(_deployment(STEERER, install.image, words, install.replicas), install)


def _gathering(made: Manifest, install: Install) -> Manifest:
    """With a container that gathers the nodes' histories into a folder that the first container reads."""
    if not install.gathers:
        return made
    spec = made["spec"]["template"]["spec"]
    (reads,) = spec["containers"]
    source: Manifest = {"emptyDir": {}}
    if install.history_claim:
        source = {"persistentVolumeClaim": {"claimName": install.history_claim}}
        made["spec"]["strategy"] = {"type": "Recreate"}  # most volumes are on one node at a time
    mount = {"name": "history", "mountPath": names.HISTORY_FOLDER}
    spec["containers"].append(
        {
            **deepcopy(reads),
            "name": "history",
            "command": ["berth", "k8s", "history", names.HISTORY_FOLDER, "--follow"],
            "resources": {"requests": {"cpu": "20m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
            "volumeMounts": [*deepcopy(reads["volumeMounts"]), mount],
        }
    )
    reads["volumeMounts"].append({**mount, "readOnly": True})
    spec["volumes"].append({"name": "history", **source})
    spec["securityContext"]["fsGroup"] = 65534
    return made


def _deployment(name: str, image: str, words: list[str], replicas: int) -> Manifest:
    """A program under the restricted rules of pod security."""
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "berth"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": names.NAMESPACE, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": name,
                    "priorityClassName": "system-cluster-critical",
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 65534,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [
                        {
                            "name": name.removeprefix("berth-"),
                            "image": image,
                            "command": words,
                            "env": [
                                {"name": "NUMBA_CACHE_DIR", "value": "/tmp/numba"},
                                {
                                    "name": "POD_NAMESPACE",
                                    "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}},
                                },
                            ],
                            "resources": {
                                "requests": {"cpu": "200m", "memory": "512Mi"},
                                "limits": {"memory": "1536Mi"},
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
    }


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
    marks = replace(install, image="@image@", policy="@policy@", mode="@mode@", knowledge="@knowledge@")
    files: dict[str, str] = {}
    for name, each in manifests(marks).items():
        if name == "namespace":
            continue  # Helm makes it: helm install --create-namespace
        text = _text(each)
        for value in VALUES:
            text = text.replace(f"'@{value}@'", f"{{{{ .Values.{value} | quote }}}}")
        if name == "steerer":
            text = text.replace(f"replicas: {marks.replicas}", "replicas: {{ .Values.replicas }}")
        text = text.replace(f"namespace: {names.NAMESPACE}", "namespace: {{ .Release.Namespace }}")
        text = text.replace(f":{names.NAMESPACE}:", ":{{ .Release.Namespace }}:")
        if name in ("admission", "gate"):
            kind = "Validating" if name == "admission" else "Mutating"
            there = f'.Capabilities.APIVersions.Has "{GROUP}/{kind}AdmissionPolicy"'
            if name == "gate":  # where only advice is given, pods are another's to start
                there = f'and ({there}) (ne .Values.mode "advise")'
            text = f"{{{{- if {there} }}}}\n{text}{{{{- end }}}}\n"
        files[f"templates/{name}.yaml"] = text
    chart = {
        "apiVersion": "v2",
        "name": "berth",
        "version": version,
        "appVersion": version,
        "description": "Packs, partitions and accounts for shared GPUs",
    }
    values = {name: getattr(install, name) for name in VALUES}
    return {"Chart.yaml": _text([chart]), "values.yaml": _text([values]), **files}


def _text(documents: list[Manifest]) -> str:
    import yaml

    return "---\n".join(yaml.safe_dump(each, sort_keys=False, width=1000) for each in documents)
