"""Kueue's own controller and webhooks beside berth: it admits a pod by its quota, and then berth chooses the place."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth.live.kubernetes import names
from berth.live.kubernetes.access import from_kubeconfig
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.installing import apply
from berth.live.kubernetes.manifests import Install, manifests
from tests.live.kubernetes.server import HERE, Server
from tests.live.kubernetes.world import World
from tests.ports import free_ports

VERSION = re.findall(r"kueue v([\d.]+)", (HERE / "kueue" / "go.mod").read_text())[0]
BUILT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "berth-tests" / f"kueue-{VERSION}"
GATE = "kueue.x-k8s.io/admission"
MINE = {"kueue.x-k8s.io/queue-name": "mine"}
"""The labels of what waits in the queue of these tests."""
HOOKED = {"pods", "jobs", "workloads", "clusterqueues", "resourceflavors", "cohorts"}
"""Of these kinds the test uses some; webhooks of kinds that the server does not serve are left out."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root"),
    pytest.mark.skipif(
        not (BUILT / "kueue").exists(), reason=f"no {BUILT / 'kueue'}; run {HERE / 'build_server.sh'} kueue"
    ),
]


class Kueue:
    """Kueue's controller on a server, with its published CRDs and webhooks."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.folder, self._kubeconfig = folder, server.kubeconfig()
        self._port, health = free_ports(2)
        words = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kueue"]
        made = ["-keyout", folder / "tls.key", "-out", folder / "tls.crt"]
        subject = ["-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(["openssl", "req", *words, *subject, *made], check=True, capture_output=True)
        config = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": self._port, "certDir": str(folder)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "integrations": {"frameworks": ["batch/job", "pod"]},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))

    async def install(self, world: World) -> None:
        """Make the CRDs and the webhooks, which ask this process's controller."""
        for path in sorted((BUILT / "crds").glob("*.yaml")):
            body = yaml.safe_load(path.read_text())
            await world.api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
            kinds = f"/apis/{body['spec']['group']}/v1beta2/{body['spec']['names']['plural']}"
            served = [version["name"] for version in body["spec"]["versions"] if version["served"]]
            if "v1beta2" in served:
                await world.until(f"{kinds} is served", lambda kinds=kinds: world.api.request("GET", kinds))
        bundle = base64.b64encode((self.folder / "tls.crt").read_bytes()).decode()
        for body in yaml.safe_load_all((BUILT / "webhooks.yaml").read_text()):
            hooks = [each for each in body["webhooks"] if HOOKED & {*each["rules"][0]["resources"]}]
            for each in hooks:
                path = each["clientConfig"]["service"]["path"]
                each["clientConfig"] = {"url": f"https://127.0.0.1:{self._port}{path}", "caBundle": bundle}
            plural = f"{body['kind'].lower()}s"
            url = f"/apis/admissionregistration.k8s.io/v1/{plural}"
            await world.api.request("POST", url, {**body, "webhooks": hooks})

    def start(self) -> subprocess.Popen[bytes]:
        """Start the controller, with an /etc of its own: there it wants the certificate of its metrics too."""
        certificates = "/etc/kueue/metrics/certs"
        prepare = f'mount -t tmpfs none /etc && mkdir -p {certificates} && cp "$0"/tls.* {certificates}'
        # It ends while the server does not tell of all its kinds yet; a kubelet would start it anew too.
        script = f'{prepare} && while :; do "$@"; sleep 0.5; done'
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, self.folder]
        program = [BUILT / "kueue", "--config", self.folder / "config.yaml", "--kubeconfig", self._kubeconfig]
        words = [*apart, *program, "--feature-gates", "VisibilityOnDemand=false"]
        with (self.folder / "kueue.log").open("wb") as log:
            return subprocess.Popen(words, stdout=log, stderr=log)


async def queue(world: World, milli: int) -> None:
    """A queue of Kueue's in the namespace `default`, with this much of GPUs."""
    amounts = {"cpu": "100", "memory": "100Gi", names.RESOURCE: "16", names.ASKED_MILLI: str(milli)}
    kueue = "/apis/kueue.x-k8s.io/v1beta2"
    flavor = {
        "name": "cards",
        "resources": [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()],
    }
    objects: list[tuple[str, dict[str, Any]]] = [
        ("resourceflavors", {"kind": "ResourceFlavor", "metadata": {"name": "cards"}}),
        (
            "clusterqueues",
            {
                "kind": "ClusterQueue",
                "metadata": {"name": "all"},
                "spec": {
                    "namespaceSelector": {},
                    "resourceGroups": [{"coveredResources": [*amounts], "flavors": [flavor]}],
                },
            },
        ),
        (
            "namespaces/default/localqueues",
            {"kind": "LocalQueue", "metadata": {"name": "mine"}, "spec": {"clusterQueue": "all"}},
        ),
    ]
    for path, body in objects:

        async def made(path: str = path, body: dict[str, Any] = body) -> bool:
            await world.make(f"{kueue}/{path}", {"apiVersion": "kueue.x-k8s.io/v1beta2", **body})
            return True

        await world.until(f"Kueue takes {path}", made)


def beside_kueue(
    server: Server, folder: Path, test: Callable[[World], Awaitable[None]], *, within_s: float = 600
) -> None:
    """Run a test on a cluster of one card, with a queue of Kueue's for one card and berth's gate."""
    if not server.is_at_least(36):
        pytest.skip(f"{server.assets.version} has no MutatingAdmissionPolicy")
    kueue, kubeconfig = Kueue(server, folder), server.kubeconfig()

    async def story() -> None:
        async with Api(from_kubeconfig(kubeconfig)) as api:
            world = World(api, kubeconfig)
            await world.clean()
            for each in manifests(Install(""))["gate"]:
                await apply(api, each)
            await kueue.install(world)
            process = kueue.start()
            try:
                await world.node("n1", 1)
                await queue(world, milli=1000)
                await test(world)
                await world.check()
            except BaseException:
                print((folder / "kueue.log").read_text()[-5000:])
                raise
            finally:
                process.kill()
                process.wait()

    asyncio.run(asyncio.wait_for(story(), within_s))


async def gates(world: World, name: str) -> list[str]:
    spec = (await world.pods())[name]["spec"]
    return sorted(gate["name"] for gate in spec.get("schedulingGates", []))


def test_a_pod_is_admitted_by_kueue_and_then_steered_by_berth(own_server: Server, tmp_path: Path) -> None:
    async def admitted(world: World) -> None:
        mine = {"labels": MINE, "gates": (), "milli": 600}
        await world.pod("first", **mine)
        await world.pod("second", **mine)

        async def lifted() -> bool:
            return [names.GATE] in [await gates(world, name) for name in ("first", "second")]

        # Kueue admits the first by its quota of parts, and lifts its own gate alone.
        await world.until("Kueue admits one", lifted)
        (one,) = [name for name in ("first", "second") if await gates(world, name) == [names.GATE]]
        (other,) = {"first", "second"} - {one}
        assert {names.GATE, GATE} <= {*await gates(world, other)}
        async with world.steerer():
            await world.until_bound(one)
            assert names.PLACEMENT in (await world.pods())[one]["metadata"]["annotations"]
            await world.until_told(other, f"held by scheduling gate {GATE}")
            await world.ended(one)
            await world.until_bound(other)  # the quota is free again: Kueue admits it, then berth places it

    beside_kueue(own_server, tmp_path, admitted)


def test_jobs_are_admitted_by_kueue_and_their_pods_steered_by_berth(
    own_server: Server, tmp_path: Path
) -> None:
    """Kueue counts the template of a Job and keeps it suspended; its pods exist only once it is admitted."""
    if why := own_server.start_jobs():
        pytest.skip(why)
    jobs = "/apis/batch/v1/namespaces/default/jobs"

    def job(name: str) -> dict[str, Any]:
        asks = {names.RESOURCE: "1", names.ASKED_MILLI: "600", "cpu": "100m", "memory": "64Mi"}
        main = {"name": "main", "image": "none", "resources": {"limits": asks, "requests": asks}}
        template = {"spec": {"restartPolicy": "Never", "containers": [main]}}
        spec = {"suspend": True, "backoffLimit": 0, "template": template}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": MINE},
            "spec": spec,
        }

    async def admitted(world: World) -> None:
        for name in ("first", "second"):
            await world.api.request("POST", jobs, job(name))

        async def has_pod(without: str = "") -> bool:
            return any(not name.startswith(without or "none") for name in await world.pods())

        await world.until("Kueue admits a Job", has_pod)
        (pod,) = await world.pods()
        one = pod.rpartition("-")[0]
        (other,) = {"first", "second"} - {one}
        assert await gates(world, pod) == [names.GATE]  # Kueue gates no pod of a Job
        async with world.steerer():
            await world.until_bound(pod)
            placed = (await world.pods())[pod]["metadata"]["annotations"][names.PLACEMENT]
            assert json.loads(placed)["gpus"][0]["milli"] == 600
            assert json.loads(await world.api.request("GET", f"{jobs}/{other}"))["spec"]["suspend"]
            await world.ended(pod)
            await world.until("Kueue admits the other", lambda: has_pod(without=one))
            (second,) = [name for name in await world.pods() if name.startswith(other)]
            await world.until_bound(second)

    beside_kueue(own_server, tmp_path, admitted)
