"""Growth and suspension on this node: which pods ask for more memory, which leave their GPUs, what the cluster hears.

Parts of `berth.dev/gpu` alone grow: of claims Kubernetes counts itself what they take, and it would not know.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence

import msgspec

from berth.errors import BerthError, KubernetesError
from berth.live.driver.node_tenants import LOOK_S, NodeTenants, Shown, Terms, admit
from berth.live.kubernetes.names import GPU_MEMORY, MAX_MEM_MIB
from berth.live.kubernetes.node.allotments import Allotment, Allotments
from berth.live.kubernetes.node.api_server import ApiServer, Pod
from berth.live.kubernetes.placements import GpuMemory

log = logging.getLogger(__name__)

COUNTS_S = 10.0
"""How often changed counts of wishes are told; a changed limit is told at once."""


class Growing:
    """Serves the pods of this node that may grow, and tells the cluster."""

    def __init__(self, allotments: Allotments, api: ApiServer, grow: str, *, fake_card: str = "") -> None:
        """`grow` as for `berth k8s node`; `fake_card` is the file of the fake GPUs."""
        self._allotments, self._api = allotments, api
        self.tenants = NodeTenants(
            [card.gpu for card in allotments.cards.values()],
            lambda event, /, **values: log.info("%s %s", event, values),
            grow=grow,
            fake=bool(fake_card),
            fake_card=fake_card,
            mine=lambda name: name in allotments.given,
        )
        self._told: dict[str, tuple[GpuMemory, float]] = {}
        """By the pod's uid: what its annotation says, and when it was written."""

    def admit(self, allotment: Allotment, pod: Pod) -> None:
        """Serve a container from now on; to be called before it starts."""
        promise_mib = max(part.mem_mib for part in allotment.parts)
        most = pod.annotations.get(MAX_MEM_MIB, "")
        part = allotment.parts[0]
        terms = Terms(
            str(pod),
            promise_mib,
            max_mib=max(promise_mib, int(most)) if most.isascii() and most.isdigit() else 0,
            milli=0 if part.best_effort else part.milli,
            priority=pod.priority,
        )
        admit(allotment.name, terms)

    async def run(self) -> None:
        """Answer until cancelled."""
        try:
            while True:
                try:
                    self.tenants.look()
                except (BerthError, OSError) as error:
                    log.warning("growth: %s", error)
                await asyncio.sleep(LOOK_S)
        finally:
            self.tenants.close()

    async def tell(self, pods: Iterable[Pod]) -> None:
        """Write into each of these pods, which are this node's, what it has of its GPUs by now."""
        of_pods: dict[str, list[Shown]] = {}
        for each in self.tenants.shown():
            of_pods.setdefault(each.job, []).append(each)
        there = {pod.uid: pod for pod in pods if str(pod) in of_pods}
        self._told = {uid: told for uid, told in self._told.items() if uid in there}
        for uid, pod in there.items():
            now, now_s = memory_of(of_pods[str(pod)]), time.monotonic()
            before, told_s = self._told.get(uid, (None, 0.0))
            same_size = before is not None and before.limit_mib == now.limit_mib
            if now == before or (same_size and now_s - told_s < COUNTS_S):
                continue
            try:
                await self._api.annotate(pod, {GPU_MEMORY: msgspec.json.encode(now).decode()})
                self._told[uid] = now, now_s
            except KubernetesError as error:
                log.warning("%s; it is told at the next look", error)


def memory_of(parts: Sequence[Shown]) -> GpuMemory:
    """What a pod's annotation says of its parts: the most of any GPU, and the wishes of all."""
    return GpuMemory(
        promise_mib=max(each.promise_mib for each in parts),
        limit_mib=max(each.limit_mib for each in parts),
        max_mib=max(each.max_mib for each in parts),
        asked=sum(each.asked for each in parts),
        granted=sum(each.granted for each in parts),
        refused=sum(each.refused for each in parts),
    )
