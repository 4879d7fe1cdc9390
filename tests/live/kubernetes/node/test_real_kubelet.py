"""The device plugin under a real kubelet, containerd and runc: real pods share fake GPUs."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from berth.live.kubernetes.names import PLACED_UID, PLACEMENT, RESOURCE
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.node.real_node import KUBELET_FOLDER, RealNode, programs
from tests.live.kubernetes.node.test_service import Running
from tests.live.kubernetes.world import World

pytestmark = pytest.mark.slow

SCRIPT = """
ls /dev | grep nvidia; /opt/check total; echo $?
(echo x >> /run/berth/region/$(ls /run/berth/region | grep limit | busybox head -1)) 2>/dev/null && echo written
env -i LD_LIBRARY_PATH=$LD_LIBRARY_PATH BERTH_FAKE_CARD=$BERTH_FAKE_CARD BERTH_FAKE_NODES=/dev /opt/check total
"""


async def make_pod(world: World, name: str, gpu: int, milli: int, mem_mib: int, command: str) -> None:
    """A pod that is bound with its placement, as the scheduler does it."""
    takes = {"cpu": "10m", "memory": "32Mi", RESOURCE: "1"}
    container = {
        "name": "main", "image": "localhost/berth-test:1", "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command], "resources": {"requests": takes, "limits": takes},
    }  # fmt: skip
    body = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "schedulerName": "nobody", "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "containers": [container], "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}], "dnsPolicy": "Default", "hostNetwork": True,
        },
    }  # fmt: skip
    made = json.loads(await world.api.request("POST", "/api/v1/namespaces/default/pods", body))
    placed = {"gpus": [{"index": gpu, "uuid": None, "milli": milli, "mem_mib": mem_mib}], "shared": True}
    binding = {
        "kind": "Binding", "apiVersion": "v1", "target": {"kind": "Node", "name": "here"},
        "metadata": {
            "name": name, "uid": made["metadata"]["uid"],
            "annotations": {PLACEMENT: json.dumps(placed), PLACED_UID: made["metadata"]["uid"]},
        },
    }  # fmt: skip
    await world.api.request("POST", f"/api/v1/namespaces/default/pods/{name}/binding", binding)


def logs(name: str) -> list[str]:
    """What a pod's container printed, as the kubelet keeps it."""
    path = max(
        Path("/var/log/pods").glob(f"default_{name}_*/main/*.log"), key=lambda file: file.stat().st_mtime
    )
    return [line.split(" ", 3)[3] for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("kubelets_turn")
@pytest.mark.skipif(os.geteuid() != 0, reason="a kubelet runs as root")
def test_real_pods_get_their_own_limits_and_keep_them_over_a_restart_of_the_kubelet(
    play: Played, folder: Path
) -> None:
    if missing := programs():
        if os.environ.get("CI"):
            pytest.fail(f"CI must test against a real kubelet: {missing}")
        pytest.skip(missing)

    async def story(world: World) -> None:
        real = RealNode(folder, world.kubeconfig)
        running: Running | None = None
        try:
            await asyncio.to_thread(real.start)
            running = Running(folder, world.kubeconfig, KUBELET_FOLDER)

            async def capacity(count: str = "32") -> bool:
                told = json.loads(await world.api.request("GET", "/api/v1/nodes/here"))
                ready = any(
                    each["type"] == "Ready" and each["status"] == "True"
                    for each in told["status"]["conditions"]
                )
                return ready and told["status"].get("allocatable", {}).get(RESOURCE) == count

            await world.until("the node is ready", capacity, 120)
            shares = {f"pod{n}": (n % 2, 50 + n, 3000 + 100 * n) for n in range(6)}
            for name, share in shares.items():
                await make_pod(world, name, *share, SCRIPT)

            async def phases(*names: str, phase: str = "Succeeded") -> Any:
                pods = await world.pods()
                return all(pods[name]["status"].get("phase") == phase for name in names)

            await world.until("all have ended", lambda: phases(*shares), 180)
            for name, (gpu, _, mem_mib) in shares.items():
                assert logs(name) == [f"nvidia{gpu}", str(mem_mib), "0", str(mem_mib)]
            await make_pod(world, "long", 1, 500, 40_000, "/opt/check total; sleep 1000")
            await world.until("one runs", lambda: phases("long", phase="Running"), 180)
            real.stop_kubelet()
            real.start_kubelet()

            async def again() -> bool:
                return 'berth_registrations_total{plugin="device-plugin"} 2.0' in running.metrics()

            await world.until("the plugin is there again", again, 180)
            # Its units follow, and a pod that is admitted before them fails for good: then its owner makes another.
            for at in itertools.count():
                name = f"late{at}"
                await make_pod(world, name, 1, 500, 41_000, SCRIPT)

                async def has_ended(name: str = name) -> Any:
                    status = (await world.pods())[name]["status"]
                    return status["phase"] in ("Succeeded", "Failed") and status

                status = await world.until("the late one has ended", has_ended, 180)
                if status.get("reason") != "UnexpectedAdmissionError":
                    break
            assert status["phase"] == "Succeeded", status
            assert logs(name) == ["nvidia1", "41000", "0", "41000"]
            assert (await world.pods())["long"]["status"]["phase"] == "Running"
        except BaseException:
            print(real.said("kubelet"), running.said if running else "")
            raise
        finally:
            if running is not None:
                running.close()
            await asyncio.to_thread(real.close)

    play(story)
