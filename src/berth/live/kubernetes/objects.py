"""The objects of Kubernetes as far as berth reads them: what is not read is never kept.

Field names are those of the API (camel case, by `rename`); each is decoded straight from the server's JSON.
"""

from __future__ import annotations

import logging
from typing import TypeVar

import msgspec

log = logging.getLogger(__name__)

T = TypeVar("T")


def decoded(item: msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T | None:
    """An object; None where it has a form that this version of berth does not know, which is logged and passed over."""
    try:
        return decoder.decode(item)
    except msgspec.ValidationError as error:
        meta = msgspec.json.decode(item, type=OfMeta).metadata
        log.warning("%s/%s is passed over: %s", meta.namespace, meta.name, error)
        return None


class Struct(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """What all objects here are made of."""


class Value(msgspec.Struct, rename="camel", omit_defaults=True, gc=False, frozen=True, order=True):
    """What can stand in a key of a table: it is equal to others that say the same."""


class Owner(Struct):
    kind: str = ""
    name: str = ""
    controller: bool = False


class Managed(Struct):
    operation: str = ""
    """How the fields were written: by `Apply` on the server, or by `Update`."""


class Meta(Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[Owner] = []
    managed_fields: list[Managed] = []


class OfMeta(Struct):
    metadata: Meta = msgspec.field(default_factory=Meta)


class Taint(Struct):
    key: str = ""
    value: str = ""
    effect: str = ""


class Toleration(Value, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Expression(Value, frozen=True):
    """One requirement of a node selector term: key, operator, values."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class Term(Value, frozen=True):
    """All of these must hold."""

    match_expressions: tuple[Expression, ...] = ()
    match_fields: tuple[Expression, ...] = ()

    def __add__(self, other: Term) -> Term:
        return Term(self.match_expressions + other.match_expressions, self.match_fields + other.match_fields)


class NodeSelector(Struct):
    """One of these terms must hold."""

    node_selector_terms: tuple[Term, ...] = ()


class Preferred(Struct):
    """A term that adds to a node's score."""

    weight: int = 0
    preference: Term = msgspec.field(default_factory=Term)


class NodeAffinity(Struct):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[Preferred] = []


class Unread(Struct):
    """Something of which berth reads only that it is there."""


class PodAffinity(Struct):
    """Of either kind, towards pods or away from them."""

    required_during_scheduling_ignored_during_execution: list[Unread] = []


class Affinity(Struct):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Resources(Struct):
    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class Port(Struct):
    host_port: int = 0


class Container(Struct):
    name: str = ""
    ports: list[Port] = []
    resources: Resources = msgspec.field(default_factory=Resources)
    restart_policy: str = ""
    """`Always` in an init container makes it one that stays (a sidecar)."""


class Gate(Struct):
    name: str = ""


class Spread(Struct):
    when_unsatisfiable: str = ""


class Volume(Struct):
    persistent_volume_claim: Unread | None = None
    ephemeral: Unread | None = None


class SchedulingGroup(Struct):
    pod_group_name: str | None = None


class PodSpec(Struct):
    node_name: str = ""
    scheduler_name: str = ""
    priority: int = 0
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: dict[str, str | int | float] = {}
    resources: Resources | None = None
    """Of the pod as a whole, from 1.34 on."""
    active_deadline_seconds: int | None = None
    scheduling_gates: list[Gate] = []
    scheduling_group: SchedulingGroup | None = None
    topology_spread_constraints: list[Spread] = []
    volumes: list[Volume] = []
    resource_claims: list[Unread] = []


class Condition(Struct):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Terminated(Struct):
    exit_code: int = 0
    reason: str = ""
    finished_at: str | None = None


class State(Struct):
    terminated: Terminated | None = None


class ContainerStatus(Struct):
    name: str = ""
    state: State = msgspec.field(default_factory=State)
    resources: Resources | None = None
    """What it has now, which a resize may be about to change."""


class PodStatus(Struct):
    phase: str = ""
    reason: str = ""
    conditions: list[Condition] = []
    start_time: str | None = None
    container_statuses: list[ContainerStatus] = []
    nominated_node_name: str = ""


class Pod(Struct):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class NodeSpec(Struct):
    unschedulable: bool = False
    taints: list[Taint] = []


class NodeStatus(Struct):
    allocatable: dict[str, str | int | float] = {}
    conditions: list[Condition] = []


class Node(Struct):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class SliceSpec(Struct):
    driver: str = ""


class ResourceSlice(Struct):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: SliceSpec = msgspec.field(default_factory=SliceSpec)


class ConfigMap(Struct):
    metadata: Meta = msgspec.field(default_factory=Meta)
    data: dict[str, str] = {}


class GangPolicy(Struct):
    min_count: int | None = None


class SchedulingPolicy(Struct):
    gang: GangPolicy | None = None


class PodGroupSpec(Struct):
    """Of both kinds of PodGroup: the scheduler plugins' has the first two, Kubernetes' own the last."""

    min_member: int | None = None
    schedule_timeout_seconds: int | None = None
    scheduling_policy: SchedulingPolicy | None = None


class PodGroup(Struct):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)


class LeaseSpec(Struct):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Struct):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class Status(Struct):
    """What the API server answers where it refuses."""

    reason: str = ""
    message: str = ""
    code: int = 0


class ListMeta(Struct):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Struct):
    """A list, or a part of one, whose items the caller decodes."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] = []


class Change(Struct):
    type: str
    object: msgspec.Raw
