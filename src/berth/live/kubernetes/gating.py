"""The gate of pods that ask for GPUs, added by a webhook where the cluster has no policy that could: before 1.36.

It does what the policy `berth-gate` of `manifests.yaml` does. The API server asks it of pods alone that ask for
`berth.dev/gpu`, and goes on without an answer: such a pod has no gate, and gets its part where it is bound.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from berth.errors import SettingError
from berth.live.kubernetes.names import ASKED_MEM_MIB, ASKED_MILLI, GATE, OLD_SCHEDULER, RESOURCE
from berth.live.kubernetes.pod_requests import whole
from berth.live.local.request import SHARED_MILLI, WHOLE

Change = dict[str, Any]
"""An operation of a JSON patch."""
DRAIN_S = 5.0
"""How long requests are still answered after the end was asked for: by then, API servers send theirs elsewhere."""


def changes(pod: Mapping[str, Any], *, parts: bool) -> list[Change]:
    """What a new pod is changed by: the gate, and with `parts` what its annotations ask for as resources. Raises
    AskError."""
    spec, said = pod["spec"], pod["metadata"].get("annotations") or {}
    found = []
    gates = spec.get("schedulingGates") or []
    if GATE not in [gate["name"] for gate in gates]:
        found.append(_set("schedulingGates", [*gates, {"name": GATE}]))
    if spec.get("schedulerName") == OLD_SCHEDULER:
        found.append(_set("schedulerName", "default-scheduler"))
    for kind in ("containers", "initContainers") if parts else ():
        for at, container in enumerate(spec.get(kind) or ()):
            limits = (container.get("resources") or {}).get("limits") or {}
            amounts = _parts(said, limits)
            if amounts:
                there = container["resources"]
                more = {each: {**(there.get(each) or {}), **amounts} for each in ("limits", "requests")}
                found.append(_set(f"{kind}/{at}/resources", {**there, **more}))
    return found


def _parts(said: Mapping[str, str], limits: Mapping[str, Any]) -> dict[str, str]:
    """What a container takes of all its GPUs; nothing if it says so itself, or the annotations make no sense."""
    milli = said.get(ASKED_MILLI, str(SHARED_MILLI if ASKED_MEM_MIB in said else WHOLE))
    mem_mib = said.get(ASKED_MEM_MIB, "0")
    makes_sense = re.fullmatch("[0-9]{1,4}", milli) and re.fullmatch("[0-9]{1,8}", mem_mib)
    if not makes_sense or RESOURCE not in limits or ASKED_MILLI in limits:
        return {}
    gpus = whole(limits[RESOURCE])
    of_each = SHARED_MILLI if ASKED_MEM_MIB in limits and ASKED_MILLI not in said else int(milli)
    found = {ASKED_MILLI: str(gpus * of_each)}
    return found if mem_mib == "0" else {**found, ASKED_MEM_MIB: str(gpus * int(mem_mib))}


def _set(path: str, value: object) -> Change:
    return {"op": "add", "path": f"/spec/{path}", "value": value}


async def serve(port: int, certificate: Path, key: Path, *, parts: bool = True) -> None:
    """Answer the API server until cancelled. Raises SettingError."""

    async def review(request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read())["request"]
        patch = base64.b64encode(msgspec.json.encode(changes(asked["object"], parts=parts))).decode()
        answer = {"uid": asked["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
        return web.json_response(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        )

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        tls.load_cert_chain(certificate, key)
    except OSError as error:  # it names no file
        raise SettingError(
            f"{certificate} and {key}: {error.strerror or error}; expected a certificate and its key in PEM form"
        ) from error
    app = web.Application(client_max_size=8 << 20)
    app.add_routes([web.post("/", review)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port, ssl_context=tls).start()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(DRAIN_S)
    finally:
        await runner.cleanup()
