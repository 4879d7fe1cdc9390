"""What the scheduler writes to the API server: bindings, deletions, events and conditions."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from datetime import UTC, datetime

from berth.errors import ApiError
from berth.live.kubernetes import names
from berth.live.kubernetes.client import STRATEGIC_PATCH, Api
from berth.live.kubernetes.lease import BIND_S
from berth.live.kubernetes.objects import Pod
from berth.live.kubernetes.steps import Bind, Stop, Tell

__all__ = ["Events", "Taken", "bind", "note_waiting", "stop"]

log = logging.getLogger(__name__)

MOST_EVENTS = 2000
"""That wait to be written; more are dropped, the oldest first."""
MOST_MESSAGE = 1000


class Taken(Exception):  # noqa: N818  it is an answer
    """The pod cannot be bound: it is gone, is being deleted, is another pod of the same name, or is bound already."""


async def bind(api: Api, step: Bind) -> None:
    """Bind a pod, placement and node in one request. Raises Taken, or ApiError where it may be attempted again.

    An answer that was lost is found out: a pod that is bound as wanted is bound.
    """
    path = f"/api/v1/namespaces/{step.namespace}/pods/{step.name}"
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": step.name,
            "namespace": step.namespace,
            "uid": step.uid,  # heeded by newer versions; for others see `PLACED_UID`
            "annotations": {names.PLACEMENT: step.placement, names.PLACED_UID: step.uid},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": step.node},
    }
    try:
        await api.request(
            "POST",
            f"{path}/binding",
            body,
            params={"timeout": f"{BIND_S:.0f}s"},
            patience_s=0,
            limit_s=BIND_S,
        )
    except ApiError as error:
        if error.status == 404:
            raise Taken(error.message) from error
        if error.status != 409 and error.retry_after_s is None:
            raise
        try:
            pod = await api.get(path, Pod, patience_s=1.0)
        except ApiError as second:
            if second.status == 404:
                raise Taken("the pod is gone") from second
            raise error from second
        as_wanted = pod.spec.node_name == step.node and (
            pod.metadata.annotations.get(names.PLACEMENT) == step.placement
        )
        if pod.metadata.uid == step.uid and as_wanted:
            return
        if pod.metadata.uid != step.uid or pod.spec.node_name or pod.metadata.deletion_timestamp:
            raise Taken(error.message) from error
        raise


async def stop(api: Api, step: Stop) -> None:
    """Delete a pod with its own grace; one that is gone is no error."""
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": step.uid}}
    path = f"/api/v1/namespaces/{step.namespace}/pods/{step.name}"
    try:
        await api.request("DELETE", path, body, patience_s=30)
    except ApiError as error:
        if error.status not in (404, 409):
            raise


async def note_waiting(api: Api, step: Tell) -> None:
    """Write why a pod waits into its condition PodScheduled."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": step.reason,
        "message": step.message[:MOST_MESSAGE],
        "lastTransitionTime": _now(),
    }
    path = f"/api/v1/namespaces/{step.namespace}/pods/{step.name}/status"
    body = {"metadata": {"uid": step.uid}, "status": {"conditions": [condition]}}
    try:
        await api.request("PATCH", path, body, content_type=STRATEGIC_PATCH)
    except ApiError as error:
        if error.status not in (404, 409):
            log.info("%s", error)


class Events:
    """Events that wait to be written, at a bounded rate: what happened is never held up by its being told."""

    def __init__(self, api: Api, source: str) -> None:
        self._api = api
        self._source = source
        self._waiting: deque[tuple[Tell, bool]] = deque(maxlen=MOST_EVENTS)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, step: Tell, *, warning: bool = False) -> None:
        """Have an event written about a pod."""
        self._waiting.append((step, warning))

    async def write(self, most: int) -> None:
        """Write at most this many of those that wait."""
        for _ in range(min(most, len(self._waiting))):
            step, warning = self._waiting.popleft()
            try:
                await self._api.request(
                    "POST", f"/api/v1/namespaces/{step.namespace}/events", self._body(step, warning)
                )
            except ApiError as error:
                log.info("%s", error)
                return

    def _body(self, step: Tell, warning: bool) -> dict[str, object]:
        now = _now()
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{step.name[:200]}.{time.time_ns():x}{random.randrange(4096):03x}",
                "namespace": step.namespace,
            },
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": step.namespace, "name": step.name, "uid": step.uid,
            },
            "reason": step.reason,
            "message": step.message[:MOST_MESSAGE],
            "type": "Warning" if warning else "Normal",
            "source": {"component": self._source},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
