"""Admission policies that the API server itself keeps: who may write what berth believes, and which pods get the gate.

The node gives a container what the annotation `berth.dev/placement` says. Without these, every user that may edit or
bind pods of a namespace may write it; with them, berth's own service accounts alone. An agent is kept to the pods, the
slices and the node object of its own node, which its token names.
"""

from __future__ import annotations

from typing import Any

from berth.live.kubernetes import names
from berth.live.kubernetes.gpu_words import known_resources

GROUP = "admissionregistration.k8s.io/v1"
WRITTEN = (names.PLACEMENT, names.PLACED_UID)
Manifest = dict[str, Any]


def gate_manifests(compat: str | None) -> list[Manifest]:
    """The policy that adds the gate to pods which ask for GPUs in words that berth reads, from Kubernetes 1.36 on.

    It is the API server that adds it. A berth that is dead stops no pod that asks for nothing of berth, and if the
    policy fails a pod goes without the gate: kube-scheduler binds it, and berth says which part it gets there.
    """
    words = ", ".join(f"'{name}'" for name in sorted(known_resources(compat)))
    asks = " || ".join(
        f"(has(it.resources) && has(it.resources.{kind}) && [{words}].exists(word, word in it.resources.{kind}))"
        for kind in ("limits", "requests")
    )
    gated = f"has(object.spec.schedulingGates) && object.spec.schedulingGates.exists(gate, gate.name == '{names.GATE}')"
    spec = {
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": {"resourceRules": [_rule("", "v1", ["CREATE"], ["pods"])]},
        "matchConditions": [
            {
                "name": "asks",
                "expression": f"object.spec.containers.exists(it, {asks})"
                f" || (has(object.spec.initContainers) && object.spec.initContainers.exists(it, {asks}))",
            },
            {"name": "unbound", "expression": "!has(object.spec.nodeName) || object.spec.nodeName == ''"},
            {"name": "ungated", "expression": f"!({gated})"},
        ],
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {
                    "expression": "Object{spec: Object.spec{schedulingGates:"
                    f" [Object.spec.schedulingGates{{name: '{names.GATE}'}}],"
                    f" schedulerName: object.spec.schedulerName == '{names.OLD_SCHEDULER}' ? 'default-scheduler' :"
                    " object.spec.schedulerName}}"
                },
            }
        ],
    }
    return [
        {
            "apiVersion": GROUP,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": "berth-gate"},
            "spec": spec,
        },
        {
            "apiVersion": GROUP,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": "berth-gate"},
            "spec": {"policyName": "berth-gate"},
        },
    ]


def admission_manifests(writer: str, agent: str) -> list[Manifest]:
    """The policies and their bindings; `writer` is the service account that places pods, `agent` that of nodes."""
    keys = ", ".join(f"'{key}'" for key in WRITTEN)
    placements = {
        "matchConstraints": {
            "resourceRules": [
                _rule("", "v1", ["CREATE", "UPDATE"], ["pods", "pods/status", "pods/ephemeralcontainers"]),
                _rule("", "v1", ["CREATE"], ["pods/binding", "bindings"]),
            ]
        },
        "variables": [
            {
                "name": "now",
                "expression": "has(object.metadata.annotations) ? object.metadata.annotations : {}",
            },
            {
                "name": "before",
                "expression": "request.operation == 'UPDATE' && has(oldObject.metadata.annotations)"
                " ? oldObject.metadata.annotations : {}",
            },
        ],
        "validations": [
            {
                "expression": f"request.userInfo.username == '{_user(writer)}' || [{keys}].all(key,"
                " (key in variables.now ? variables.now[key] : '')"
                " == (key in variables.before ? variables.before[key] : ''))",
                "message": f"{WRITTEN[0]} and {WRITTEN[1]} are written by berth's steerer alone",
                "reason": "Forbidden",
            }
        ],
    }
    node = "authentication.kubernetes.io/node-name"
    nodes = {
        "matchConstraints": {
            "resourceRules": [
                _rule("", "v1", ["UPDATE", "DELETE"], ["pods"]),
                _rule("", "v1", ["UPDATE"], ["nodes"]),
                _rule("resource.k8s.io", "*", ["CREATE", "UPDATE", "DELETE"], ["resourceslices"]),
            ]
        },
        "matchConditions": [
            {"name": "agents", "expression": f"request.userInfo.username == '{_user(agent)}'"},
        ],
        "variables": [
            {
                "name": "node",
                "expression": f"has(request.userInfo.extra) && '{node}' in request.userInfo.extra"
                f" ? request.userInfo.extra['{node}'][0] : ''",
            },
            {"name": "it", "expression": "request.operation == 'CREATE' ? object : oldObject"},
        ],
        "validations": [
            {
                "expression": "variables.node != '' && (request.resource.resource == 'nodes'"
                " ? variables.it.metadata.name : variables.it.spec.nodeName) == variables.node",
                "message": "an agent of berth may change only what belongs to its own node",
                "reason": "Forbidden",
            },
            {
                "expression": "request.resource.resource != 'pods' || request.operation == 'DELETE'"
                " || object.spec == oldObject.spec",
                "message": "an agent of berth may change only annotations of pods",
                "reason": "Forbidden",
            },
        ],
    }
    return [
        each
        for name, spec in (("berth-placements", placements), ("berth-nodes", nodes))
        for each in _policy(name, spec)
    ]


def _user(name: str) -> str:
    return f"system:serviceaccount:{names.NAMESPACE}:{name}"


def _rule(group: str, version: str, operations: list[str], resources: list[str]) -> Manifest:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": operations,
        "resources": resources,
    }


def _policy(name: str, spec: Manifest) -> list[Manifest]:
    return [
        {
            "apiVersion": GROUP,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {"failurePolicy": "Fail", **spec},
        },
        {
            "apiVersion": GROUP,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]
