"""What the steerer writes to the API server: placements, evictions, events and conditions."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

from berth.errors import ApiError
from berth.live.kubernetes import names
from berth.live.kubernetes.client import MOST_EVENT_TEXT, STRATEGIC_PATCH, Api, event, now_text
from berth.live.kubernetes.constraints import required_affinity
from berth.live.kubernetes.lease import WRITE_S
from berth.live.kubernetes.objects import Expression, Pod, Preferred, Term
from berth.live.kubernetes.steps import Evict, Lift, Patch, PodEvent, Step

log = logging.getLogger(__name__)

LOG_AGAIN_S = 60.0
"""Time after which a missing right is logged again."""
MOST_EVENTS = 2000
"""That wait to be written; more are dropped, the oldest first."""
_UNCHECKED = {"fieldValidation": "Ignore"}
"""Spares the API server a second reading of the pod, in search of fields that it does not know."""
MOST_WEIGHT = 100
"""Of a preference; Kubernetes allows no more."""


class Taken(Exception):  # noqa: N818  it is an answer
    """The pod cannot be placed: it is gone, is another pod of the same name, or another has placed it."""


async def place(api: Api, step: Lift) -> None:
    """Write the placement of a pod, and with it lift its gate and pin it to its node, in one request.

    Raises Taken, or ApiError if it may be attempted again. An answer that was lost is found out: a pod that has the
    placement is placed.
    """
    annotations = {names.PLACEMENT: step.placement, names.PLACED_UID: step.uid}
    if step.enough is not None:
        annotations[names.ENOUGH] = step.enough
    body: dict[str, Any] = {"metadata": {"uid": step.uid, "annotations": annotations}}
    if not step.is_bound:
        if not step.is_applied:  # its upkeep is a good part of what a patch costs an API server
            body["metadata"]["managedFields"] = [{}]
        own = Term(match_fields=(Expression("metadata.name", "In", (step.node,)),))
        hosts = Term((Expression(names.HOSTNAME, "In", step.hosts),))
        affinity = required_affinity(step.terms, hosts if step.hosts else own)
        if step.hosts:
            first = Preferred(MOST_WEIGHT, own)
            affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [*step.preferred, first]
        # Others' gates are gone: while one is left, a pod is not decided on.
        body["spec"] = {"schedulingGates": None, "affinity": {"nodeAffinity": affinity}}
    try:
        await api.request(
            "PATCH", _path(step), body, params=_UNCHECKED, content_type=STRATEGIC_PATCH, limit_s=WRITE_S
        )
    except ApiError as error:
        if error.status == 404:
            raise Taken(error.message) from error
        if error.status not in (409, 422) and error.retry_after_s is None:
            raise
        try:
            pod = await api.find(_path(step), Pod, patience_s=1.0)
        except ApiError as second:
            raise error from second
        if pod is None:
            raise Taken("the pod is gone") from error
        is_there = pod.metadata.uid == step.uid
        gated = any(gate.name == names.GATE for gate in pod.spec.scheduling_gates)
        if is_there and not gated and pod.metadata.annotations.get(names.PLACEMENT) == step.placement:
            return
        if not is_there or pod.metadata.deletion_timestamp or not (step.is_bound or gated):
            raise Taken(error.message) from error
        raise


async def patch(api: Api, step: Patch) -> bool:
    """Change a pod; False if it is gone or has changed. Raises ApiError."""
    return await api.change("PATCH", _path(step), step.body, limit_s=WRITE_S)


async def evict(api: Api, step: Evict) -> None:
    """Evict a pod, within the disruption budgets and with its own grace; one that is gone is no error. Raises ApiError,
    with status 429 while a budget forbids it."""
    options = {"preconditions": {"uid": step.uid}}
    meta = {"name": step.name, "namespace": step.namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": options}
    await api.change("POST", f"{_path(step)}/eviction", body, limit_s=WRITE_S)


async def note_waiting(api: Api, step: PodEvent, version: str) -> bool:
    """Write why a gated pod waits into its condition PodScheduled; False if it is gone, or has changed since this
    version: its gate may be lifted, and the condition kube-scheduler's. Raises ApiError.

    The reason stays that of a gate, so that an autoscaler makes no node for it.
    """
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": names.GATED,
        "message": step.message[:MOST_EVENT_TEXT],
        "lastTransitionTime": now_text(),
    }
    meta = {"uid": step.uid, "resourceVersion": version}
    body = {"metadata": meta, "status": {"conditions": [condition]}}
    return await api.change("PATCH", f"{_path(step)}/status", body, content_type=STRATEGIC_PATCH)


def _path(step: Step) -> str:
    return names.pod_path(step.namespace, step.name)


class Events:
    """Events that wait to be written, at a bounded rate: what happened is never held up by its being told."""

    def __init__(self, api: Api, source: str) -> None:
        self._api = api
        self._source = source
        self._warnings: deque[PodEvent] = deque(maxlen=MOST_EVENTS)
        self._others: deque[PodEvent] = deque(maxlen=MOST_EVENTS)
        self._missed_s: dict[str, float] = {}  # a right that was missed -> when that was said

    def __len__(self) -> int:
        return len(self._warnings) + len(self._others)

    def add(self, step: PodEvent) -> None:
        """Have an event written about a pod; warnings come before all others."""
        (self._warnings if step.warning else self._others).append(step)

    async def write(self, most: int) -> None:
        """Write at most this many of those that wait. Raises ApiError; the event is then attempted again."""
        for _ in range(min(most, len(self))):
            queue = self._warnings or self._others
            step = queue[0]
            try:
                uid, namespace, name, reason, message, warning = step
                body = event(namespace, name, uid, reason, message, self._source, warning=warning)
                await self._api.request("POST", f"/api/v1/namespaces/{namespace}/events", body)
            except ApiError as error:
                if error.retry_after_s is not None:
                    raise
                self.unwritten(error)  # it is refused: its namespace is being deleted, say
            if queue and queue[0] is step:
                queue.popleft()

    def unwritten(self, error: ApiError) -> None:
        """Log what could not be written to the cluster; a missing right is a warning, once per `LOG_AGAIN_S`."""
        right = error.message.partition(" is forbidden: ")[2] or error.message
        if error.status != 403:
            log.info("%s", error)
        elif time.monotonic() - self._missed_s.get(right, -1e9) > LOG_AGAIN_S:
            self._missed_s[right] = time.monotonic()
            log.warning("%s", error)


def in_words(step: Lift) -> str:
    placed = step.placed
    gpus = "; ".join(f"GPU {gpu.index}: {gpu.milli} milli, {gpu.mem_mib} MiB" for gpu in placed.gpus)
    text = f"{placed.policy} places it on node {step.node}{', ' if gpus else ''}{gpus}"
    return f"{text}; {step.enough} are enough by its profile" if step.enough else text
