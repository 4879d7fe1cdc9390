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
from berth.live.kubernetes.placements import placed_of
from berth.live.kubernetes.steps import Bind, Stop, Tell

log = logging.getLogger(__name__)

SAID_AGAIN_S = 60.0
"""Time after which a missing right is logged again."""
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
        await api.request("DELETE", path, body, limit_s=BIND_S)
    except ApiError as error:
        if error.status not in (404, 409):
            raise


async def note_waiting(api: Api, step: Tell) -> None:
    """Write why a pod waits into its condition PodScheduled. Raises ApiError; a pod that is gone is no error."""
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
            raise


class Events:
    """Events that wait to be written, at a bounded rate: what happened is never held up by its being told."""

    def __init__(self, api: Api, source: str) -> None:
        self._api = api
        self._source = source
        self._warnings: deque[Tell] = deque(maxlen=MOST_EVENTS)
        self._others: deque[Tell | Bind] = deque(maxlen=MOST_EVENTS)
        self._missed_s: dict[str, float] = {}  # a right that was missed -> when that was said

    def __len__(self) -> int:
        return len(self._warnings) + len(self._others)

    def add(self, step: Tell, *, warning: bool = False) -> None:
        """Have an event written about a pod; warnings come before all others."""
        (self._warnings if warning else self._others).append(step)

    def bound(self, step: Bind) -> None:
        """Have it told where a pod was placed."""
        self._others.append(step)

    async def write(self, most: int) -> None:
        """Write at most this many of those that wait. Raises ApiError; the event is then attempted again."""
        for _ in range(min(most, len(self))):
            queue = self._warnings or self._others
            step = queue[0]
            tell = Tell(*step[:3], "Scheduled", in_words(step), False) if isinstance(step, Bind) else step
            body = self._body(tell, warning=queue is self._warnings)
            try:
                await self._api.request("POST", f"/api/v1/namespaces/{step.namespace}/events", body)
            except ApiError as error:
                if error.retry_after_s is not None:
                    raise
                self.unwritten(error)  # it is refused: its namespace is being deleted, say
            if queue and queue[0] is step:
                queue.popleft()

    def unwritten(self, error: ApiError) -> None:
        """Log what could not be written to the cluster; a missing right is a warning, once per `SAID_AGAIN_S`."""
        right = error.message.partition(" is forbidden: ")[2] or error.message
        if error.status != 403:
            log.info("%s", error)
        elif time.monotonic() - self._missed_s.get(right, -1e9) > SAID_AGAIN_S:
            self._missed_s[right] = time.monotonic()
            log.warning("%s", error)

    def _body(self, step: Tell, *, warning: bool) -> dict[str, object]:
        now = _now()
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{step.name[:200]}.{time.time_ns():x}{random.randrange(4096):03x}",
                "namespace": step.namespace,
            },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": step.namespace,
                "name": step.name,
                "uid": step.uid,
            },
            "reason": step.reason,
            "message": step.message[:MOST_MESSAGE],
            "type": "Warning" if warning else "Normal",
            "source": {"component": self._source},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def in_words(step: Bind) -> str:
    """What was decided for a pod."""
    placed = placed_of({names.PLACEMENT: step.placement})
    gpus = (
        ""
        if placed is None
        else "; ".join(f"GPU {gpu.index}: {gpu.milli} milli, {gpu.mem_mib} MiB" for gpu in placed.gpus)
    )
    policy = "" if placed is None else f"{placed.policy} places it "
    return f"{policy}on node {step.node}{', ' if gpus else ''}{gpus}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
