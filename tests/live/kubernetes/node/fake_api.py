"""An API server of the tests' own, as the node side asks it: what is put in is answered, what is written is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from berth.errors import KubernetesError
from berth.live.kubernetes.names import PLACED_UID, PLACEMENT, application_of
from berth.live.kubernetes.node.api_server import ApiServer, Claim, ClaimDevice, Container, Pod


class FakeApi(ApiServer):
    """Answers from dictionaries; `down` makes every call fail."""

    def __init__(self) -> None:
        self.known_pods: dict[tuple[str, str], Pod] = {}
        self.claims: dict[tuple[str, str], Claim] = {}
        self.known_slices: dict[str, dict[str, Any]] = {}
        self.labels: dict[str, str | None] = {}
        self.annotations: dict[str, dict[str, str]] = {}
        self.events: list[tuple[str, str, str]] = []
        self.down = False
        self.asked: list[str] = []
        """Names of claims that were asked for."""

    def _check(self) -> None:
        if self.down:
            raise KubernetesError("the API server does not answer")

    async def pod(self, namespace: str, name: str) -> Pod | None:
        self._check()
        return self.known_pods.get((namespace, name))

    async def pods(self) -> Sequence[Pod]:
        self._check()
        return list(self.known_pods.values())

    async def claim(self, namespace: str, name: str) -> Claim | None:
        self.asked.append(name)
        self._check()
        return self.claims.get((namespace, name))

    async def slices(self) -> dict[str, int]:
        self._check()
        return {name: spec["pool"]["generation"] for name, spec in self.known_slices.items()}

    async def write_slice(self, name: str, spec: Mapping[str, Any]) -> None:
        self._check()
        self.known_slices[name] = _stored(json.loads(json.dumps(spec)))

    async def remove_slice(self, name: str) -> None:
        self._check()
        self.known_slices.pop(name, None)

    async def advertise(self, resources: Mapping[str, str | None]) -> None:
        """Note what is counted."""
        self.resources = dict(resources)

    async def label_node(self, labels: Mapping[str, str | None]) -> None:
        self._check()
        self.labels |= labels

    async def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        self._check()
        self.annotations.setdefault(pod.name, {}).update(annotations)

    async def warn(self, pod: Pod, reason: str, message: str) -> None:
        self._check()
        self.events.append((pod.name, reason, message))

    def add_pod(
        self,
        name: str,
        *gpus: tuple[int, int, int],
        containers: Sequence[Container] = (),
        uid: str = "",
        node: str = "here",
        **annotations: str,
    ) -> Pod:
        """A pod that the scheduler has placed; `gpus` are (index, milli, MiB)."""
        placed = [
            {"index": index, "uuid": None, "milli": milli, "mem_mib": mib} for index, milli, mib in gpus
        ]
        told = {
            PLACEMENT: json.dumps({"gpus": placed, "shared": True, "best_effort": False, "policy": "fifo"})
        }
        told[PLACED_UID] = uid = uid or f"uid-{name}"
        told |= {f"berth.dev/{key}": value for key, value in annotations.items()}
        pod = Pod(
            "default", name, uid, node, "Pending", told,
            tuple(containers) or (Container("main", len(gpus)),), application_of("default", told, ""),
        )  # fmt: skip
        self.known_pods[pod.namespace, pod.name] = pod
        return pod

    def add_claim(self, name: str, *devices: tuple[int, int, int], uid: str = "", **more: Any) -> Claim:
        """A claim that is allocated; `devices` are (GPU, milli, MiB)."""
        found = tuple(
            ClaimDevice(f"r{number}", "here", f"gpu-{gpu}", f"share-{number}", mem_mib, milli)
            for number, (gpu, milli, mem_mib) in enumerate(devices)
        )
        told: dict[str, Any] = {"devices": found, "allocated": True, **more}
        claim = Claim("default", name, uid or f"uid-{name}", **told)
        self.claims[claim.namespace, claim.name] = claim
        return claim

    def set_phase(self, pod: Pod, phase: str) -> Pod:
        """Have a pod run or end."""
        self.known_pods[pod.namespace, pod.name] = found = replace(pod, phase=phase)
        return found


def _stored(told: Any) -> Any:
    """As an API server that knows quantities gives them back: in the largest unit that divides them."""
    if isinstance(told, dict):
        return {key: _stored(value) for key, value in told.items()}
    if isinstance(told, list):
        return [_stored(each) for each in told]
    number = str(told).removesuffix("Mi")
    if not isinstance(told, str) or not number.isdigit():
        return told
    if told.endswith("Mi"):
        return f"{int(number) // 1024}Gi" if int(number) % 1024 == 0 else told
    return f"{int(number) // 1000}k" if int(number) and int(number) % 1000 == 0 else told
