"""Growth and suspension on this node: which pods ask for more memory, which leave their GPUs, what the cluster hears.

Parts of `berth.dev/gpu` alone grow: of claims Kubernetes counts itself what they take, and it would not know.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from berth.errors import KubernetesError
from berth.live.driver.node_tenants import LOOK_S, NodeTenant, NodeTenants, Shown, Terms, admit
from berth.live.kubernetes.names import GPU_MEMORY, INTERACTIVE, MAX_MEM_MIB, SUSPEND
from berth.live.kubernetes.node.allotments import Allotment, Allotments
from berth.live.kubernetes.node.api_server import ApiServer, Pod
from berth.live.kubernetes.placements import GpuMemory
from berth.partition.gpus import plain_uuid
from berth.tenants import SUSPENDED

log = logging.getLogger(__name__)

COUNTS_S = 10.0
"""Changed counts of requests are written this often; a changed limit is written at once."""


class Growing:
    def __init__(
        self, allotments: Allotments, api: ApiServer, grow: str, uncounted: str, *, fake_card: str = ""
    ) -> None:
        """`grow` and `uncounted` as for `berth k8s node`; `fake_card` is the file of the fake GPUs."""
        self._allotments, self._api = allotments, api
        self.tenants = NodeTenants(
            [card.gpu for card in allotments.cards.values()],
            lambda event, /, **values: log.info("%s %s", event, values),
            grow=grow,
            fake=bool(fake_card),
            fake_card=fake_card,
            mine=lambda name: name in allotments.given,
            uncounted=uncounted,
        )
        self._suspends = grow == "suspend"
        allotments.held_now = self._held_now
        self._reported: dict[str, tuple[GpuMemory, float]] = {}
        """By the pod's uid: what its annotation says, and when it was written."""

    def _held_now(self) -> dict[str, int]:
        """See `Allotments.held_now`."""
        there = (
            (each.id, 0 if each.suspension == SUSPENDED else each.share[1], each.said_mib)
            for each in self.tenants.tenants()
        )
        return {name: held_mib for name, held_mib, said_mib in there if held_mib != said_mib}

    def admit(self, allotment: Allotment, pod: Pod) -> None:
        """Serve a container from now on; to be called before it starts."""
        promise_mib = max(part.mem_mib for part in allotment.parts)
        most = pod.annotations.get(MAX_MEM_MIB, "")
        part = allotment.parts[0]
        terms = Terms(
            str(pod),
            promise_mib,
            max_mib=max(promise_mib, int(most)) if re.fullmatch("[0-9]{1,9}", most) else 0,
            milli=0 if part.best_effort else part.milli,
            priority=pod.priority,
            uuids=tuple(plain_uuid(self._allotments.cards[each.index].uuid) for each in allotment.parts),
            interactive=pod.annotations.get(INTERACTIVE) == "true",
            application=f"{pod.namespace} {pod.application}",
            leaves=not (pod.probed or pod.in_gang or sum(bool(each.gpus) for each in pod.containers) > 1),
        )
        admit(allotment.name, terms, wait_s=0)
        self.tenants.look()  # it may ask at once

    async def run(self) -> None:
        try:
            while True:
                try:
                    self.tenants.look()
                except Exception:  # limits hold without it: it is said, and tried again
                    log.exception("a look at growth failed")
                await asyncio.sleep(LOOK_S)
        finally:
            self.tenants.close()

    async def report(self, pods: Iterable[Pod]) -> None:
        """Carry out the orders in this node's pods, and write into each pod what it has by now."""
        of_pods: dict[str, list[NodeTenant]] = {}
        for tenant in self.tenants.tenants():
            of_pods.setdefault(tenant.job, []).append(tenant)
        shown: dict[str, list[Shown]] = {}
        for each in self.tenants.shown():
            shown.setdefault(each.job, []).append(each)
        there = {pod.uid: pod for pod in pods if str(pod) in shown and not pod.ended}
        self._reported = {uid: reported for uid, reported in self._reported.items() if uid in there}
        for uid, pod in there.items():
            now, now_s = memory_of(shown[str(pod)]), time.monotonic()
            for tenant in of_pods[str(pod)]:
                if pod.annotations.get(SUSPEND) != "true":  # also where none is suspended any more
                    self.tenants.resume(tenant.id)
                elif tenant.leaves and (self._suspends or tenant.suspension):
                    self.tenants.suspend(tenant.id)
                if self._suspends and tenant.leaves:
                    now.leaves = not (tenant.suspension or self.tenants.suspending.why_not(tenant))
            before, reported_s = self._reported.get(uid, (None, 0.0))
            counts = {"asked": 0, "granted": 0, "refused": 0}
            same = before is not None and replace(before, **counts) == replace(now, **counts)
            if now == before or (same and now_s - reported_s < COUNTS_S):
                continue
            try:
                await self._api.annotate(pod, {GPU_MEMORY: msgspec.json.encode(now).decode()})
                self._reported[uid] = now, now_s
            except KubernetesError as error:
                log.warning("%s; it is told at the next look", error)


def memory_of(parts: Sequence[Shown]) -> GpuMemory:
    """What a pod's annotation says of its parts: the most of any GPU, and the wishes of all."""
    away = all(each.suspension == SUSPENDED for each in parts)
    return GpuMemory(
        promise_mib=max(each.promise_mib for each in parts),
        limit_mib=max(each.limit_mib for each in parts),
        max_mib=max(each.max_mib for each in parts),
        asked=sum(each.asked for each in parts),
        granted=sum(each.granted for each in parts),
        refused=sum(each.refused for each in parts),
        suspended_ms=parts[0].suspended_since_ms if away else None,
        idle=away and all(each.idle for each in parts),
        why=next((each.why for each in parts if each.why), ""),
        uncounted=next((each.uncounted for each in parts if each.uncounted), ""),
    )
