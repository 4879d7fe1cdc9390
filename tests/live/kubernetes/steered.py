"""A cluster without a server: a site and its driver, told of objects, and the steps that they hand out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from berth.cluster import Cluster
from berth.knowledge import Knowledge
from berth.live.driver.driver import Driver
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.pod_site import PodSite, Settings, State
from berth.live.kubernetes.steering import driving, enough_for, nodes_with_room, switch_cards, waits_of
from berth.live.kubernetes.steps import Evict, Lift, Patch, PodEvent, Step

MODEL = "A100-80"
CARD_MIB = 81_920


def node(
    name: str = "n1",
    gpus: int = 2,
    cpu: int = 64,
    *,
    units: int | None = None,
    mem_mib: int = CARD_MIB,
    **labels: str,
) -> api.Node:
    said = {
        names.LABEL_GPU_COUNT: str(gpus),
        names.LABEL_GPU_MODEL: MODEL,
        names.LABEL_GPU_MEMORY_MIB: str(mem_mib),
        **{f"berth.dev/{key.replace('_', '-')}": value for key, value in labels.items()},
    }
    there = {"cpu": str(cpu), "memory": "256Gi", names.RESOURCE: str(16 * gpus if units is None else units)}
    return of(api.Node, {"metadata": {"name": name, "labels": said}, "status": {"allocatable": there}})


def pod(
    name: str,
    gpus: int = 1,
    *,
    on: str = "",
    cpu: str = "1",
    version: int = 1,
    owner: str = "",
    gates: Iterable[str] = (names.GATE,),
    **said: object,
) -> api.Pod:
    """A pod that waits for berth, unless it is bound or has a placement."""
    takes = {"cpu": cpu, "memory": "1Gi", names.RESOURCE: str(gpus)}
    annotations = {f"berth.dev/{key.replace('_', '-')}": str(value) for key, value in said.items()}
    meta: dict[str, Any] = {
        "name": name, "namespace": "n", "uid": f"uid-{name}", "annotations": annotations,
        "resourceVersion": str(version), "creationTimestamp": "2026-11-22T12:00:00Z",
    }  # fmt: skip
    if owner:
        kind, _, owned = owner.partition("/")
        meta["ownerReferences"] = [{"kind": kind, "name": owned, "controller": True}]
    spec: dict[str, Any] = {
        "nodeName": on,
        "containers": [{"name": "main", "resources": {"requests": takes}}],
    }
    if not on and "placement" not in said:
        spec["schedulingGates"] = [{"name": gate} for gate in gates]
    return of(api.Pod, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})


def of(kind: type[Any], body: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def lifted(step: Lift, **said: Any) -> api.Pod:
    """The pod of a step after its patch."""
    enough = {} if step.enough is None else {"enough": step.enough}
    return pod(step.name, placement=step.placement, placed_uid=step.uid, **enough, **said)


def bound(step: Lift, **said: Any) -> api.Pod:
    """The same after kube-scheduler has bound it."""
    return lifted(step, on=step.node, **said)


def ended(each: api.Pod, phase: str = "Succeeded") -> api.Pod:
    found: api.Pod = of(api.Pod, each)
    found.status.phase = phase
    return found


def refused(each: api.Pod, words: str) -> api.Pod:
    """A pod with kube-scheduler's words on it."""
    found: api.Pod = of(api.Pod, each)
    found.status.conditions = [api.Condition("PodScheduled", "False", "Unschedulable", words)]
    return found


def indices(step: Step) -> list[int]:
    assert isinstance(step, Lift)
    return [gpu["index"] for gpu in json.loads(step.placement)["gpus"]]


class Steered:
    """A site with its driver."""

    def __init__(self, known: Knowledge | None = None, **settings: Any) -> None:
        self._steps: list[Step] = []
        self.site = PodSite(Settings(**settings), self._steps.append)
        self.driver = Driver(self.site, driving(self.site.settings), known)
        self.site.enough = partial(enough_for, self.site, self.driver.knowledge)
        self.site.with_room = partial(nodes_with_room, self.driver)
        self.site.ran_out = self.driver.knowledge.ran_out_of_memory

    def steps(self, now_ms: int) -> list[Step]:
        """Decide, and return what is to be done since this was called last."""
        for _ in range(10):
            self.site.refresh(now_ms)
            done = self.driver.step(now_ms, for_real=not self.site.settings.advise)
            if done.fault is not None:
                raise done.fault
            self.site.displace(self.driver.unplaced, self.driver.free_on)
            self.site.cannot_hold(self.driver.misfits)
            switch_cards(self.site, self.driver)
            if not self.site.has_news:
                break
        else:
            raise AssertionError("one step leads to another without end")
        steps, self._steps[:] = [*self._steps], []
        return steps

    def lifts(self, now_ms: int) -> dict[str, Lift]:
        """The gates that are lifted now, by the pods' names."""
        return {
            step.name: step for step in self.steps(now_ms) if isinstance(step, Lift) and not step.is_bound
        }

    def evicted(self, now_ms: int) -> list[str]:
        """The pods that are evicted now."""
        return sorted(step.name for step in self.steps(now_ms) if isinstance(step, Evict))

    def told(self, now_ms: int) -> list[str]:
        """What events say of pods."""
        events = (step.event if isinstance(step, Patch) else step for step in self.steps(now_ms))
        return [event.message for event in events if isinstance(event, PodEvent)]

    def pods(self, now_ms: int, *changed: api.Pod) -> None:
        """Pods came or changed."""
        for each in changed:
            self.site.pod_changed(each, now_ms)

    def gone(self, now_ms: int, *pods: api.Pod) -> None:
        """Pods are gone."""
        for each in pods:
            self.site.pod_gone(each, now_ms)

    def nodes(self, now_ms: int, *changed: api.Node) -> None:
        """Nodes came or changed."""
        for each in changed:
            self.site.node_changed(each, now_ms)

    def state(self, name: str) -> State:
        """What has become of a pod."""
        return self.site.entries[f"uid-{name}"].state

    def why(self, name: str) -> str:
        """Why a pod waits."""
        entry = self.site.entries[f"uid-{name}"]
        return waits_of(self.site, self.driver, [entry])[entry.uid]

    @property
    def cluster(self) -> Cluster:
        """What the driver counts."""
        return self.driver.scheduler.cluster


def steered(
    nodes: Iterable[api.Node],
    pods: Iterable[api.Pod] = (),
    known: Knowledge | None = None,
    **settings: Any,
) -> Steered:
    """A cluster with these nodes and pods, on which nothing was decided yet."""
    found = Steered(known, **settings)
    found.nodes(0, *nodes)
    found.site.refresh(0)
    found.pods(0, *pods)
    return found
