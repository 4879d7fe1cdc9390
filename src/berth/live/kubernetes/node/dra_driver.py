"""The DRA driver of this node: registered with the kubelet, it prepares claims and takes them back."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from berth.live.kubernetes.apis import DRA, PLUGIN_REGISTRATION, dra, registration, serve
from berth.live.kubernetes.names import DRIVER
from berth.live.kubernetes.node.claim_files import ClaimFiles
from berth.live.kubernetes.node.claims import Claims

log = logging.getLogger(__name__)

VERSION = "v1.DRAPlugin"
LOOK_S = 0.5


class DraDriver:
    """The sockets that the kubelet finds, and what it calls there."""

    def __init__(self, node: str, plugins: Path, registry: Path, claims: Claims) -> None:
        """`plugins` and `registry` are the kubelet's folders of that name."""
        self._node, self._claims = node, claims
        self._socket = plugins / DRIVER / "dra.sock"
        self._registry = registry / f"{DRIVER}-reg.sock"
        self.registrations = 0

    async def run(self) -> None:
        """Serve until cancelled; sockets that are taken away are made anew."""
        while True:
            servers = [
                await serve(self._socket, DRA, self),
                await serve(self._registry, PLUGIN_REGISTRATION, self),
            ]
            try:
                while self._socket.exists() and self._registry.exists():
                    await asyncio.sleep(LOOK_S)
            finally:
                for server in servers:
                    await server.stop(0)

    async def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self._socket), supported_versions=[VERSION]
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        if not request.plugin_registered:
            log.warning("the kubelet refuses %s: %s", DRIVER, request.error)
        self.registrations += request.plugin_registered
        return registration.RegistrationStatusResponse()

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Prepare claims; one that fails harms no other."""
        answer = dra.NodePrepareResourcesResponse()
        asked = {each.uid: each for each in request.claims}
        for uid, given in (await self._claims.prepare([*asked.values()])).items():
            if isinstance(given, str):
                answer.claims[uid].error = given
                continue
            answer.claims[uid].SetInParent()
            for each in given:
                device = answer.claims[uid].devices.add(
                    request_names=[each.request],
                    pool_name=self._node,
                    device_name=each.device,
                    cdi_device_ids=[ClaimFiles.device(each)],
                )
                if each.share:
                    device.share_id = each.share
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = dra.NodeUnprepareResourcesResponse()
        for uid, error in self._claims.unprepare_all([claim.uid for claim in request.claims]).items():
            answer.claims[uid].error = error
        return answer
