"""Who may write what berth believes: admission policies that the API server itself keeps, from Kubernetes 1.30 on.

The node gives a container what the annotation `berth.dev/placement` says. Without these, every user that may edit or
bind pods of a namespace may write it; with them, berth's own service accounts alone. An agent is kept to the pods, the
slices and the node object of its own node, which its token names.
"""

from __future__ import annotations

from typing import Any

from berth.live.kubernetes import names

GROUP = "admissionregistration.k8s.io/v1"
WRITTEN = (names.PLACEMENT, names.PLACED_UID)
Manifest = dict[str, Any]


def admission_manifests(writers: tuple[str, ...], agent: str) -> list[Manifest]:
    """The policies and their bindings; `writers` are the service accounts that place pods, `agent` that of nodes."""
    keys = ", ".join(f"'{key}'" for key in WRITTEN)
    users = ", ".join(f"'{_user(name)}'" for name in writers)
    placements = {
        "matchConstraints": {
            "resourceRules": [
                _rule("", "v1", ["CREATE", "UPDATE"], ["pods", "pods/status", "pods/ephemeralcontainers"]),
                _rule("", "v1", ["CREATE"], ["pods/binding"]),
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
                "expression": f"request.userInfo.username in [{users}] || [{keys}].all(key,"
                " (key in variables.now ? variables.now[key] : '')"
                " == (key in variables.before ? variables.before[key] : ''))",
                "message": f"{WRITTEN[0]} and {WRITTEN[1]} are written by berth's scheduler alone",
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
