"""Takes back what containers and claims that are gone had of the GPUs; what living processes use stays."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from berth.errors import BerthError, KubernetesError, PartitionError
from berth.live.kubernetes.node.allotments import Allotment, Allotments
from berth.live.kubernetes.node.api_server import ApiServer, Pod

if TYPE_CHECKING:  # the child that records does without gRPC
    from berth.live.kubernetes.node.claims import Claims
    from berth.live.kubernetes.node.device_plugin import Identity

log = logging.getLogger(__name__)


class Reaper:
    """Compares what was given with the pods that are there."""

    def __init__(self, allotments: Allotments, api: ApiServer, identity: Identity | None) -> None:
        """`identity` is None where the node has no device plugin."""
        self._allotments, self._api, self._identity = allotments, api, identity
        self.claims: Claims | None = None
        self.kept: dict[str, str] = {}
        """By an allotment's name: why it was not taken back though its holder is gone."""

    async def collect(self, pods: Sequence[Pod] | None = None) -> list[Allotment]:
        """Take back what no pod has any more, and say what; nothing if API server or kubelet do not answer.

        `pods` are those of this node as they were lately; they are asked for if they are not given. A container's
        units are free only where both say that its pod is gone: a kubelet that restarts names no pod for a moment, and
        an API server forgets a pod that is deleted by force while its containers run.
        """
        given = list(self._allotments.given.values())
        try:
            live = [pod for pod in (await self._api.pods() if pods is None else pods) if not pod.ended]
            gone = [each for each in given if _is_unused(each, live)]
            if self._identity is not None and any(each.holder.container for each in gone):
                held = {each.device_ids for each in await self._identity.all_held()}
                gone = [each for each in gone if frozenset(each.device_ids) not in held]
            gone = [each for each in gone if not await self._is_there(each)]
        except KubernetesError:
            return []
        return [each for each in gone if self._take_back(each)]

    async def _is_there(self, allotment: Allotment) -> bool:
        """Whether the holder exists at this very moment: a list may be from before it was made."""
        holder = allotment.holder
        if not holder.container:
            claim = await self._api.claim(holder.namespace, holder.name)
            return claim is not None and claim.uid == holder.uid
        pod = await self._api.pod(holder.namespace, holder.name)
        return pod is not None and pod.uid == holder.uid and not pod.ended

    def _take_back(self, allotment: Allotment) -> bool:
        try:
            if self.claims is not None and not allotment.holder.container:
                self.claims.unprepare(allotment.holder.uid)
            else:
                self._allotments.take_back(allotment.name)
        except (BerthError, PartitionError, OSError) as error:
            if self.kept.get(allotment.name) != str(error):
                log.warning("%s is gone and keeps its part of a GPU: %s", allotment.holder, error)
            self.kept[allotment.name] = str(error)
            return False
        self.kept.pop(allotment.name, None)
        return True


def _is_unused(allotment: Allotment, live: Sequence[Pod]) -> bool:
    """Whether no pod has it, as far as these are all."""
    holder = allotment.holder
    if holder.container:
        return all(pod.uid != holder.uid for pod in live)
    return not any(pod.namespace == holder.namespace and holder.name in pod.claims for pod in live)
