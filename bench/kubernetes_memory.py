"""Memory of a steerer on a large cluster: the peak of its process until all is listed and all that fits is placed.

    python bench/kubernetes_memory.py [--nodes 5000] [--pods 50000] [--waiting 5000]

A stand-in for the API server lists in parts, keeps watches open and takes patches. Nodes have eight GPUs. Pods are as
large as real ones, with managed fields. All pods but the waiting ones are bound and have a placement.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from berth.live.kubernetes import names
from harness import save

BERTH = Path(sys.executable).with_name("berth")
ASKED_MIB = 700
MANAGED = {
    "manager": "kubelet",
    "operation": "Update",
    "fieldsV1": {f"f:field-{at}": {"f:x": {}} for at in range(60)},
}
PATIENCE_S = 600


def a_node(at: int) -> dict[str, Any]:
    """A node of eight GPUs."""
    units = str(8 * names.SLOTS_PER_GPU)
    labels = {
        names.LABEL_GPU_COUNT: "8", names.LABEL_GPU_MODEL: "A100-80", names.LABEL_GPU_MEMORY_MIB: "81920",
        names.HOSTNAME: f"n{at}", "topology.kubernetes.io/zone": f"zone-{at % 3}",
    }  # fmt: skip
    there = {"cpu": "128", "memory": "1Ti", "pods": "110", names.RESOURCE: units}
    status = {"allocatable": there, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": meta(f"n{at}", at, labels=labels), "spec": {}, "status": status}


def a_pod(at: int, *, waits: bool, nodes: int) -> dict[str, Any]:
    """A pod of half a GPU, bound with its placement or gated."""
    node, gpu = at % nodes, at // nodes // 2 % 8
    said = {names.ASKED_MILLI: "500", names.ASKED_MEM_MIB: "20000"}
    uid = f"00000000-0000-4000-8000-{at:012}"
    if not waits:
        part = {"index": gpu, "uuid": None, "milli": 500, "mem_mib": 20_000}
        placed = {
            "node": f"n{node}",
            "gpus": [part],
            "best_effort": False,
            "shared": True,
            "policy": "best-fit",
        }
        said |= {names.PLACEMENT: msgspec.json.encode(placed).decode(), names.PLACED_UID: uid}
    takes = {"cpu": "500m", "memory": "1Gi", names.RESOURCE: "1"}
    container = {
        "name": "main", "image": "registry.example/train:1", "resources": {"requests": takes, "limits": takes},
        "env": [{"name": f"NAME_{each}", "value": "some value of a usual length"} for each in range(10)],
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
    }  # fmt: skip
    owner = {"kind": "Job", "name": f"job-{at // 400}", "controller": True}
    spec: dict[str, Any] = {
        "containers": [container],
        "schedulerName": "default-scheduler",
        "volumes": [{"name": "token"}],
    }
    spec |= {"schedulingGates": [{"name": names.GATE}]} if waits else {"nodeName": f"n{node}"}
    about = {**meta(f"pod-{at}", at, uid=uid), "annotations": said, "ownerReferences": [owner]}
    return {"metadata": about, "spec": spec, "status": {"phase": "Pending" if waits else "Running"}}


def meta(name: str, at: int, **more: Any) -> dict[str, Any]:
    """What all objects have."""
    return {
        "name": name, "namespace": f"team-{at % 20}", "uid": name, "resourceVersion": str(1000 + at),
        "creationTimestamp": "2026-11-28T12:00:00Z", "managedFields": [MANAGED], **more,
    }  # fmt: skip


class Server:
    """Lists, watches and patches of one cluster."""

    def __init__(self, nodes: int, pods: int, waiting: int) -> None:
        self.nodes, self.pods, self.waiting = nodes, pods, waiting
        self.patched = 0

    def app(self) -> web.Application:
        """Its routes."""
        app = web.Application()
        app.router.add_get("/api/v1/nodes", self._nodes)
        app.router.add_get("/api/v1/pods", self._pods)
        app.router.add_get("/api/v1/namespaces/{namespace}/configmaps", self._tenants)
        app.router.add_patch("/api/v1/namespaces/{namespace}/pods/{name}", self._patch)
        app.router.add_route("*", "/{rest:.*}", self._none)
        return app

    async def _nodes(self, request: web.Request) -> web.StreamResponse:
        return await self._part(request, self.nodes, a_node)

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        bound = self.pods - self.waiting
        return await self._part(request, self.pods, lambda at: a_pod(at, waits=at >= bound, nodes=self.nodes))

    async def _tenants(self, request: web.Request) -> web.StreamResponse:
        return await self._part(request, 0, a_node)

    async def _part(self, request: web.Request, count: int, make: Any) -> web.StreamResponse:
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return response
        first = int(request.query.get("continue", "0"))
        last = min(count, first + int(request.query.get("limit", count)))
        about = {"resourceVersion": "1000000", "continue": str(last) if last < count else ""}
        body = {"metadata": about, "items": [make(at) for at in range(first, last)]}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    async def _patch(self, request: web.Request) -> web.StreamResponse:
        self.patched += 1
        return web.json_response({})

    async def _none(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"code": 404, "reason": "NotFound", "message": "there is none"}, status=404)


def used(pid: int) -> dict[str, float]:
    """Peak and present memory of a process, MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmHWM", "VmRSS"))}
    return {"peak_mib": int(found["VmHWM"]) / 1024, "now_mib": int(found["VmRSS"]) / 1024}


async def measured(chosen: argparse.Namespace, folder: Path) -> dict[str, float]:
    """The steerer's memory, and how long it took until the last patch."""
    server = Server(chosen.nodes, chosen.pods, chosen.waiting)
    runner = web.AppRunner(server.app(), shutdown_timeout=1)
    await runner.setup()
    words = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key -out cert"
    subprocess.run(shlex.split(words), cwd=folder, check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "cert", folder / "key")
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    config = folder / "kubeconfig"
    there = {"server": url, "insecure-skip-tls-verify": True}
    lines = {
        "clusters": [{"name": "c", "cluster": there}], "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c",
    }  # fmt: skip
    config.write_text(json.dumps(lines))
    began_s = time.monotonic()
    with (folder / "log").open("w") as log:
        command = (str(BERTH), "k8s", "steerer", "--no-elect", "--kubeconfig", str(config))
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        while server.patched < chosen.waiting and process.returncode is None:
            if time.monotonic() - began_s > PATIENCE_S:
                raise SystemExit(f"{server.patched} of {chosen.waiting} pods are placed after {PATIENCE_S} s")
            await asyncio.sleep(0.2)
        if process.returncode is not None:
            raise SystemExit((folder / "log").read_text()[-2000:])
        found = {**used(process.pid), "took_s": time.monotonic() - began_s}
        await asyncio.sleep(5)
        return {**found, "load": os.getloadavg()[0], **used(process.pid)}
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await runner.cleanup()


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--waiting", type=int, default=5000, help="of the pods; the others are bound")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measured(chosen, Path(folder)))
    size = len(msgspec.json.encode(a_pod(0, waits=False, nodes=chosen.nodes)))
    print(
        f"{chosen.nodes:,} nodes, {chosen.pods:,} pods of {size:,} bytes: peak {found['peak_mib']:.0f} MiB"
        f" (asked: at most {ASKED_MIB}), then {found['now_mib']:.0f}; {chosen.waiting:,} pods placed in"
        f" {found['took_s']:.0f} s from its start, load {found['load']:.1f}"
    )
    save("kubernetes_memory", {**vars(chosen), **found})


if __name__ == "__main__":
    main()
