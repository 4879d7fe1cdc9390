"""The DRA driver of this node: registered with the kubelet, it prepares claims, in whichever version it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from berth.errors import BerthError
from berth.live.kubernetes.apis.services import (
    DRA_V1,
    DRA_V1BETA1,
    PLUGIN_REGISTRATION,
    dra_v1,
    dra_v1beta1,
    registration,
    serve,
)
from berth.live.kubernetes.names import DRIVER
from berth.live.kubernetes.node.allotments import Allotment
from berth.live.kubernetes.node.claim_files import ClaimFiles
from berth.live.kubernetes.node.claims import ClaimRef, Claims

VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
LOOK_S = 0.5


@dataclass(slots=True)
class _Prepared:
    devices: Sequence[Allotment] = ()
    error: str = ""


class DraDriver:
    """The sockets that the kubelet finds, and what it calls there."""

    def __init__(self, node: str, plugins: Path, registry: Path, claims: Claims) -> None:
        """`plugins` and `registry` are the kubelet's folders of that name."""
        self._node, self._claims = node, claims
        self._socket = plugins / DRIVER / "dra.sock"
        self._registry = registry / f"{DRIVER}-reg.sock"
        self.registrations = 0
        self.trouble = ""
        """Why the kubelet does not take the driver."""

    async def run(self) -> None:
        """Serve until cancelled; sockets that are taken away are made anew."""
        while True:
            services = {DRA_V1: _Versioned(self, dra_v1), DRA_V1BETA1: _Versioned(self, dra_v1beta1)}
            servers = [
                await serve(self._socket, services),
                await serve(self._registry, {PLUGIN_REGISTRATION: self}),
            ]
            try:
                while self._socket.exists() and self._registry.exists():
                    await asyncio.sleep(LOOK_S)
            finally:
                for server in servers:
                    await server.stop(0)

    async def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Tell the kubelet what this is and where it is served."""
        return registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self._socket), supported_versions=VERSIONS
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Hear whether the kubelet takes it."""
        self.trouble = "" if request.plugin_registered else f"the kubelet refuses {DRIVER}: {request.error}"
        self.registrations += request.plugin_registered
        return registration.RegistrationStatusResponse()

    async def prepare(self, claims: Sequence[ClaimRef]) -> dict[str, _Prepared]:
        """Prepare claims by their uids; one that fails harms no other."""
        asked = {claim.uid: claim for claim in claims}
        found = await self._claims.prepare(list(asked.values()))
        return {
            uid: _Prepared(error=_said(each)) if isinstance(each, Exception) else _Prepared(each)
            for uid, each in found.items()
        }

    def unprepare(self, claims: Sequence[ClaimRef]) -> dict[str, str]:
        """Take claims back; an error, or an empty text, for each."""
        found = self._claims.unprepare_all([claim.uid for claim in claims])
        return {uid: "" if error is None else _said(error) for uid, error in found.items()}

    @property
    def node(self) -> str:
        """The pool of this node's devices."""
        return self._node


def _said(error: Exception) -> str:
    return f"berth: {error}" if isinstance(error, BerthError | OSError) else f"berth: {error!r}"


class _Versioned:
    """The driver in one version of the interface."""

    def __init__(self, driver: DraDriver, messages: Any) -> None:
        self._driver, self._messages = driver, messages

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Prepare claims."""
        answer = self._messages.NodePrepareResourcesResponse()
        for uid, prepared in (await self._driver.prepare(request.claims)).items():
            answer.claims[uid].error = prepared.error
            for each in prepared.devices:
                device = answer.claims[uid].devices.add(
                    request_names=[each.request],
                    pool_name=self._driver.node,
                    device_name=each.device,
                    cdi_device_ids=[ClaimFiles.device(each)],
                )
                if each.share and self._messages is dra_v1:
                    device.share_id = each.share
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Take claims back."""
        answer = self._messages.NodeUnprepareResourcesResponse()
        for uid, error in self._driver.unprepare(request.claims).items():
            answer.claims[uid].error = error
        return answer
