"""The admission policies let berth's own accounts write placements and nobody else, by an evaluator of CEL.

An API server that has such policies (1.30) was not to be had; the expressions are what it would evaluate.
"""

from __future__ import annotations

from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel

from berth.live.kubernetes.admission import admission_manifests
from berth.live.kubernetes.names import PLACED_UID, PLACEMENT

BERTH = "system:serviceaccount:berth-system:berth-scheduler"
AGENT = "system:serviceaccount:berth-system:berth-node"
PLACEMENTS, NODES = [
    each for each in admission_manifests(("berth-scheduler",), "berth-node") if "Binding" not in each["kind"]
]


def evaluated(expression: str, given: dict[str, Any]) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression)).evaluate(given)


def allows(policy: dict[str, Any], **asked: Any) -> bool:
    """What the API server would answer to a request."""
    given = {name: json_to_cel(value) for name, value in asked.items()}
    spec = policy["spec"]
    if not all(evaluated(each["expression"], given) for each in spec.get("matchConditions", ())):
        return True
    variables = celpy.celtypes.MapType()
    for each in spec["variables"]:
        variables[celpy.celtypes.StringType(each["name"])] = evaluated(
            each["expression"], {**given, "variables": variables}
        )
    given["variables"] = variables
    return all(evaluated(each["expression"], given) for each in spec["validations"])


def pod(node: str = "n1", **annotations: str) -> dict[str, Any]:
    meta = {"name": "a", **({"annotations": annotations} if annotations else {})}
    return {"metadata": meta, "spec": {"nodeName": node}}


@pytest.mark.parametrize(
    ("user", "operation", "before", "now", "allowed"),
    [
        ("bob", "CREATE", None, pod(), True),
        ("bob", "CREATE", None, pod(**{"berth.dev/gpu-milli": "100"}), True),
        ("bob", "CREATE", None, pod(**{PLACEMENT: "{}"}), False),
        ("bob", "UPDATE", pod(), pod(**{PLACED_UID: "u"}), False),
        ("bob", "UPDATE", pod(**{PLACEMENT: "{}"}), pod(**{PLACEMENT: "{}", "note": "x"}), True),
        ("bob", "UPDATE", pod(**{PLACEMENT: "{}"}), pod(**{PLACEMENT: '{"gpus":[]}'}), False),
        ("bob", "UPDATE", pod(**{PLACEMENT: "{}"}), pod(), False),
        (BERTH, "CREATE", None, pod(**{PLACEMENT: "{}", PLACED_UID: "u"}), True),
        (BERTH, "UPDATE", pod(), pod(**{PLACEMENT: "{}"}), True),
    ],
)
def test_placements_are_written_by_the_scheduler_alone(
    user: str, operation: str, before: Any, now: Any, allowed: bool
) -> None:
    request = {"userInfo": {"username": user}, "operation": operation}
    assert allows(PLACEMENTS, request=request, object=now, oldObject=before) is allowed


@pytest.mark.parametrize(
    ("user", "node", "operation", "resource", "before", "now", "allowed"),
    [
        ("bob", "", "DELETE", "pods", pod("n2"), None, True),
        (AGENT, "n1", "DELETE", "pods", pod("n1"), None, True),
        (AGENT, "n1", "DELETE", "pods", pod("n2"), None, False),
        (AGENT, "", "DELETE", "pods", pod(""), None, False),
        (AGENT, "n1", "UPDATE", "pods", pod("n1"), pod("n1", **{"berth.dev/measured": "{}"}), True),
        (AGENT, "n1", "UPDATE", "pods", pod("n1"), pod("n2"), False),
        (AGENT, "n1", "UPDATE", "nodes", {"metadata": {"name": "n2"}}, {"metadata": {"name": "n2"}}, False),
        (AGENT, "n1", "UPDATE", "nodes", {"metadata": {"name": "n1"}}, {"metadata": {"name": "n1"}}, True),
        (AGENT, "n1", "CREATE", "resourceslices", None, pod("n2"), False),
        (AGENT, "n1", "CREATE", "resourceslices", None, pod("n1"), True),
    ],
)
def test_an_agent_changes_what_is_of_its_own_node_alone(
    user: str, node: str, operation: str, resource: str, before: Any, now: Any, allowed: bool
) -> None:
    extra = {"extra": {"authentication.kubernetes.io/node-name": [node]}} if node else {}
    request = {
        "userInfo": {"username": user, **extra}, "operation": operation, "resource": {"resource": resource},
    }  # fmt: skip
    assert allows(NODES, request=request, object=now, oldObject=before) is allowed
