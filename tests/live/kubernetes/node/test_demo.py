"""The steps of docs/kubernetes.md, "Twelve pods on two GPUs", with a real API server, kubelet, containerd and runc.

Steerer and agent run as processes, since no image of berth can be built without a network; the pods are those of
examples/kubernetes, whose programs run by this machine's Python.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth.live.kubernetes.names import PLACEMENT, RESOURCE
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.node.real_node import KUBELET_FOLDER, RealNode, programs
from tests.live.kubernetes.node.test_real_kubelet import logs
from tests.live.kubernetes.node.test_service import Running
from tests.live.kubernetes.world import World

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "kubernetes"
BERTH = Path(sys.executable).with_name("berth")


def manifest(file: str, name: str, go: Path) -> dict[str, Any]:
    """A pod of the examples, as this node can run it: it ends when `go/now` is there."""
    text = (EXAMPLES / file).read_text().replace("NAME", name).replace("IMAGE", "localhost/berth-test:1")
    pod: dict[str, Any] = yaml.safe_load(text)
    (container,) = pod["spec"]["containers"]
    container["imagePullPolicy"] = "Never"
    container["command"][0] = f"{sys.base_prefix}/bin/python3"
    (program,) = container["args"]
    assert "time.sleep(60)" in program
    container["args"] = [
        program.replace("time.sleep(60)", "import os\nwhile not os.path.exists('/go/now'): time.sleep(0.2)")
    ]
    folders = {"python": sys.base_prefix, "usr": "/usr", "lib": "/lib/x86_64-linux-gnu", "go": str(go)}
    container["volumeMounts"] = [
        {"name": key, "mountPath": "/go" if key == "go" else path, "readOnly": True}
        for key, path in folders.items()
    ]
    pod["spec"] |= {
        "volumes": [{"name": key, "hostPath": {"path": path}} for key, path in folders.items()],
        "hostNetwork": True, "enableServiceLinks": False, "dnsPolicy": "Default",
        "tolerations": [{"operator": "Exists"}],
    }  # fmt: skip
    return pod


async def berth(*words: str, kubeconfig: Path) -> str:
    """What a command prints."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "COLUMNS": "220"}
    done = await asyncio.to_thread(
        subprocess.run, [BERTH, *words], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("kube_scheduler", "kubelets_turn")
@pytest.mark.skipif(os.geteuid() != 0, reason="a kubelet runs as root")
def test_twelve_pods_share_two_gpus_one_exceeds_its_memory_and_the_report_says_so(
    play: Played, folder: Path
) -> None:
    if missing := programs():
        if os.environ.get("CI"):
            pytest.fail(f"CI must test against a real kubelet: {missing}")
        pytest.skip(missing)
    names = [*(f"share{number}" for number in range(1, 12)), "exceeds"]

    async def story(world: World) -> None:
        real, running, steerer = RealNode(folder, world.kubeconfig), None, None
        (folder / "go").mkdir()
        try:
            await asyncio.to_thread(real.start)
            running = Running(folder, world.kubeconfig, KUBELET_FOLDER)

            async def ready() -> bool:
                told = json.loads(await world.api.request("GET", "/api/v1/nodes/here"))
                state = {each["type"]: each["status"] for each in told["status"]["conditions"]}
                allocatable = told["status"]["allocatable"].get(RESOURCE)
                labels = told["metadata"]["labels"]
                return state["Ready"] == "True" and allocatable == "32" and "berth.dev/gpu-indices" in labels

            await world.until("the node is ready", ready, 120)
            words = [str(BERTH), "k8s", "steerer", "--kubeconfig", str(world.kubeconfig)]
            with (folder / "steerer.log").open("w") as log:
                steerer = subprocess.Popen(words, stdout=log, stderr=log)
            path = "/api/v1/namespaces/default/pods"
            for name in names:
                made = manifest("exceeds.yaml" if name == "exceeds" else "shares.yaml", name, folder / "go")
                await world.api.request("POST", path, made)

            def all_are(phase: str) -> Any:
                async def are() -> bool:
                    pods = await world.pods()
                    return all(pods[name]["status"].get("phase") == phase for name in names)

                return are

            await world.until("all twelve run", all_are("Running"), 180)
            shown = await berth("k8s", "status", kubeconfig=world.kubeconfig)
            assert all(f"default/{name}" in shown for name in names), shown
            pods = await world.pods()
            gpus = [json.loads(pods[name]["metadata"]["annotations"][PLACEMENT])["gpus"] for name in names]
            assert sorted([gpu["index"] for ((gpu),) in gpus]) == [0] * 6 + [1] * 6

            async def refused() -> Any:
                listed = json.loads(await world.api.request("GET", "/api/v1/namespaces/default/events"))
                return [each for each in listed["items"] if each["reason"] == "GpuMemoryRefused"]

            (event,) = await world.until("its refusal is told", refused)
            assert event["involvedObject"]["name"] == "exceeds"
            assert "the pod's part of it is 2000 MiB" in event["message"]
            expected = {name: ["12000 MiB"] for name in names} | {"exceeds": ["4000 MiB: 2", "500 MiB: 0"]}

            async def all_said() -> bool:
                return all(logs(name) == said for name, said in expected.items())

            await world.until("each has its part", all_said)
            (folder / "go" / "now").touch()
            await world.until("all have ended well", all_are("Succeeded"), 60)
            await collected(world, running)
        except BaseException:
            print(real.said("kubelet"), running.said if running else "")
            print((folder / "steerer.log").read_text() if steerer else "")
            raise
        finally:
            if steerer is not None:
                steerer.kill()
                steerer.wait()
            if running is not None:
                running.close()
            await asyncio.to_thread(real.close)

    async def collected(world: World, running: Running) -> None:
        where = ("--history", str(folder / "history"))
        async with world.agent_pod(running.port):

            async def all_told() -> bool:
                words = ("k8s", "history", str(folder / "history"), "--json")
                (said,) = json.loads(await berth(*words, kubeconfig=world.kubeconfig))
                if not (folder / "history" / "index.json").exists():
                    return False  # nothing was measured yet
                told = json.loads(await berth("stats", "--json", *where, kubeconfig=world.kubeconfig))
                jobs = {row["application"]: row["jobs"] for row in told["rows"]}
                return (
                    said["node"] == "agents"
                    and "new records" in said["result"]
                    and jobs == {"default/shares": 11, "default/exceeds": 1}
                )

            await world.until("the history has all twelve", all_told, 180)
            page = folder / "report.html"
            await berth("report", str(page), *where, kubeconfig=world.kubeconfig)
            assert "exceeds" in page.read_text()

    play(story)
