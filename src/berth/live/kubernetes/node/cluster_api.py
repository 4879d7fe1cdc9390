"""What the node side asks of the API server, as values; what answers it is a `NodeApi`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod."""

    name: str
    gpus: int
    """Units of `berth.dev/gpu` that it asks for."""
    init: bool = False
    """It ends before the others start; one that stays beside them (a sidecar) is none."""
    program: str = ""
    """Its image and command, by which applications without a name are told apart."""
    cpu_milli: int = 0
    mem_mib: int = 0
    """CPU and memory of the node that it requests."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod, as the API server has it."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    deleting: bool
    annotations: Mapping[str, str]
    containers: tuple[Container, ...]
    created_ms: int = 0
    claims: tuple[str, ...] = ()
    """Names of the claims that it uses."""
    start_ms: int | None = None
    end_ms: int | None = None
    """When its last container ended."""
    exit_code: int | None = None
    """The highest of its containers'; None while none has ended."""
    controller: str = ""
    """What made it, as `names.controller_name` says it; empty: nothing did."""

    @property
    def ended(self) -> bool:
        """Whether none of its containers will run again."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def requests(self) -> tuple[int, int]:
        """CPU (milli) and memory (MiB) of the node that its containers request together."""
        running = [each for each in self.containers if not each.init]
        return sum(each.cpu_milli for each in running), sum(each.mem_mib for each in running)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """One device that a claim was allocated."""

    request: str
    pool: str
    device: str
    share: str = ""
    """The id of its share, where several claims share the device."""
    mem_mib: int | None = None
    """None: all that the device has."""
    milli: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """One ResourceClaim, with what berth's driver was allocated of it."""

    namespace: str
    name: str
    uid: str
    devices: tuple[ClaimDevice, ...]
    allocated: bool
    burst: bool = False
    priority: str = "normal"


@dataclass(frozen=True, slots=True)
class Slice:
    """One ResourceSlice of this node that is there."""

    name: str
    generation: int
    spec: Mapping[str, Any] = field(default_factory=dict)


class NodeApi(Protocol):
    """The API server, for one node. Each raises `KubernetesError` where it cannot be asked."""

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name; None where there is none."""

    async def pods(self) -> Sequence[Pod]:
        """All pods of this node."""

    async def claim(self, namespace: str, name: str) -> Claim | None:
        """The claim of this name; None where there is none."""

    async def slices(self) -> Sequence[Slice]:
        """The ResourceSlices that berth's driver has for this node."""

    async def write_slice(self, name: str, spec: Mapping[str, Any]) -> None:
        """Make or replace a ResourceSlice."""

    async def try_slice(self, name: str, spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What the API server would keep of a new ResourceSlice, without one being made; None where it refuses it."""

    async def remove_slice(self, name: str) -> None:
        """Take a ResourceSlice away."""

    async def label_node(self, labels: Mapping[str, str | None]) -> None:
        """Set labels of this node; None takes one away."""

    async def advertise(self, resources: Mapping[str, str | None]) -> None:
        """Set extended resources of this node that no plugin counts; None takes one away."""

    async def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """Set annotations of a pod."""

    async def tell(self, pod: Pod, reason: str, message: str) -> None:
        """Write a warning event about a pod."""

    async def evict(self, pod: Pod) -> None:
        """Have a pod end and be replaced by its controller."""
