"""The admission policies let berth's own accounts write placements and nobody else, and give pods their gate."""

from __future__ import annotations

from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel

from berth.errors import ApiError
from berth.live.kubernetes.client import MERGE_PATCH
from berth.live.kubernetes.installing import apply, take_away
from berth.live.kubernetes.manifests import Install, manifests
from berth.live.kubernetes.names import GPU_MEMORY, PLACED_UID, PLACEMENT, SUSPEND
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.world import World

BERTH = "system:serviceaccount:berth-system:berth-steerer"
AGENT = "system:serviceaccount:berth-system:berth-node"
PLACEMENTS, NODES = [each for each in manifests(Install(""))["admission"] if "Binding" not in each["kind"]]


TRIED: dict[str, Any] = {"content_type": MERGE_PATCH, "params": {"dryRun": "All"}}


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
    of_pods = asked["request"].get("resource", {}).get("resource", "pods") == "pods"
    for each in spec["variables"]:
        if each["name"] in ("now", "before") and not of_pods:
            continue  # the API server computes a variable where it is used
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
        ("bob", "CREATE", None, pod(**{SUSPEND: "true"}), False),
        ("bob", "UPDATE", pod(**{SUSPEND: "true"}), pod(), False),
        (BERTH, "UPDATE", pod(**{SUSPEND: "true"}), pod(), True),
        (AGENT, "UPDATE", pod(), pod(**{SUSPEND: "true"}), False),
        ("bob", "UPDATE", pod(), pod(**{GPU_MEMORY: "{}"}), False),
        ("bob", "UPDATE", pod(**{GPU_MEMORY: "{}"}), pod(**{GPU_MEMORY: "{}", "note": "x"}), True),
        (BERTH, "UPDATE", pod(), pod(**{GPU_MEMORY: "{}"}), False),
        (AGENT, "UPDATE", pod(), pod(**{GPU_MEMORY: "{}"}), True),
    ],
)
def test_what_is_given_and_suspended_is_the_steerers_to_write_and_what_is_held_the_agents(
    user: str, operation: str, before: Any, now: Any, allowed: bool
) -> None:
    request = {"userInfo": {"username": user}, "operation": operation}
    assert allows(PLACEMENTS, request=request, object=now, oldObject=before) is allowed


def with_meta(**more: Any) -> dict[str, Any]:
    made = pod("n1")
    return {**made, "metadata": {**made["metadata"], **more}}


@pytest.mark.parametrize(
    ("user", "node", "operation", "resource", "before", "now", "allowed"),
    [
        (AGENT, "n1", "UPDATE", "pods", pod("n1"), pod("n1", **{"berth.dev/measured": "{}"}), True),
        (AGENT, "n1", "UPDATE", "pods", pod("n1"), pod("n1", **{GPU_MEMORY: "{}"}), True),
        (AGENT, "n1", "UPDATE", "pods", pod("n1", **{GPU_MEMORY: "{}"}), pod("n1"), True),
        (AGENT, "n1", "UPDATE", "pods", pod("n1"), pod("n1", note="x"), False),
        (AGENT, "n1", "UPDATE", "pods", pod("n1", note="x"), pod("n1"), False),
        (AGENT, "n1", "UPDATE", "pods", pod("n1"), with_meta(labels={"app": "x"}), False),
        (AGENT, "n1", "UPDATE", "pods", with_meta(finalizers=["x/y"]), pod("n1"), False),
        (AGENT, "n1", "UPDATE", "pods", pod("n1"), with_meta(ownerReferences=[{"name": "x"}]), False),
        (AGENT, "n1", "UPDATE", "pods", pod("n1"), pod("n2"), False),
        ("bob", "", "UPDATE", "pods", pod("n2"), pod("n1"), True),
        (AGENT, "n1", "UPDATE", "pods", pod("n2"), pod("n2"), False),
        (AGENT, "", "UPDATE", "pods", pod(""), pod(""), False),
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


def test_pods_that_ask_for_gpus_get_the_gate_from_the_api_server_and_no_others(
    play: Played, server: Server
) -> None:
    if not server.is_at_least(36):
        pytest.skip(f"{server.assets.version} has no MutatingAdmissionPolicy")

    async def test(world: World) -> None:
        for each in manifests(Install(""))["gate"]:
            await apply(world.api, each)
        await world.node("n1")

        async def gated() -> bool:
            await world.pod("asks", gates=())
            there = (await world.pods())["asks"]["spec"].get("schedulingGates")
            await world.delete("asks")
            return bool(there)

        await world.until("the policy is in force", gated)
        await world.pod("plain", 0, gates=())
        await world.pod("both", gates=("kueue.x-k8s.io/admission",))
        await world.pod("old", gates=(), scheduler="berth")
        await world.pod("said", gates=("berth.dev/gate",))
        await world.pod("bound", node="n1")
        pods = await world.pods()
        gates = {
            name: sorted(gate["name"] for gate in pod["spec"].get("schedulingGates", []))
            for name, pod in pods.items()
        }
        assert gates == {
            "plain": [], "both": ["berth.dev/gate", "kueue.x-k8s.io/admission"], "old": ["berth.dev/gate"],
            "said": ["berth.dev/gate"], "bound": [],
        }  # fmt: skip
        assert pods["old"]["spec"]["schedulerName"] == "default-scheduler"

    play(test)


def test_an_api_server_lets_the_steerer_alone_place_pods(play: Played) -> None:
    made = manifests(Install(""))
    annotated = {"metadata": {"annotations": {PLACEMENT: "{}"}}}

    async def test(world: World) -> None:
        pods = "/api/v1/namespaces/default/pods"
        for each in [*made["steerer-rights"], *made["admission"]]:
            await apply(world.api, each)
        await world.node("n1", 1)
        await world.pod("a")

        async def refused() -> bool:
            try:
                return not await world.api.request("PATCH", f"{pods}/a", annotated, **TRIED)
            except ApiError as error:
                return "are written by berth's steerer alone" in error.message

        await world.until("the policies are in force", refused)
        target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
        body = {"kind": "Binding", "metadata": {"name": "a", **annotated["metadata"]}, "target": target}
        for path in (f"{pods}/a/binding", "/api/v1/namespaces/default/bindings"):
            with pytest.raises(ApiError, match="are written by berth's steerer alone"):
                await world.api.request("POST", path, {"apiVersion": "v1", **body})
        async with world.steerer(token="steerertoken"):

            async def placed() -> bool:
                return PLACEMENT in (await world.pods())["a"]["metadata"].get("annotations", {})

            await world.until("the steerer places it", placed)
        for each in reversed(made["admission"]):
            await take_away(world.api, each)

        async def allowed() -> bytes:
            return await world.api.request("PATCH", f"{pods}/a", annotated, **TRIED)

        await world.until("the policies are gone, for the tests that follow", allowed)

    play(test)
