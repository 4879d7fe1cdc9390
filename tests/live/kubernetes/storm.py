"""A storm: pods come and go while processes are killed; afterwards it is seen from outside that nothing is wrong.

Each steerer is a process of its own. The test runs it shortly, `bench/kubernetes_storm.py` for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from berth.errors import ApiError
from berth.live.kubernetes import names
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.world import World

NODES, GPUS = 8, 4
GANG = 4


class Storm:
    """Pods, faults, and what is seen of them."""

    def __init__(self, world: World, server: Server, seed: int) -> None:
        self.world, self.server = world, server
        self.faults: Counter[str] = Counter()
        self.ended = self.looks = self.given_twice = self.without_berth = 0
        self.longest_half_s = 0.0
        self._draw = random.Random(seed)
        self._steerers: list[subprocess.Popen[bytes]] = []
        self._half_since_s: dict[str, float] = {}
        self._serial = 0

    async def run(self, duration_s: float) -> None:
        """Storm for this long, then let all come to rest: everything that has room is bound."""
        for at in range(NODES):
            await self.world.node(f"n{at}", GPUS)
        end_s = time.monotonic() + duration_s
        with self._two_steerers():
            async with asyncio.TaskGroup() as both:
                faults = both.create_task(self._break_all(end_s))
                while not faults.done():
                    with contextlib.suppress(ApiError):  # the API server is away at times
                        await self._pods()
                    await asyncio.sleep(0.1)
            await self.world.until("all pods have come and gone", self._is_over, 180)
        await self.world.check()

    @contextlib.contextmanager
    def _two_steerers(self) -> Iterator[None]:
        self._steerers = [self._steerer(), self._steerer()]
        try:
            yield
        finally:
            for process in self._steerers:
                process.kill()
                process.wait()

    def _steerer(self) -> subprocess.Popen[bytes]:
        berth = Path(sys.executable).with_name("berth")
        words = [str(berth), "k8s", "steerer", "--kubeconfig", str(self.world.kubeconfig)]
        with (self.server.folder / "steerers.log").open("ab") as log:
            return subprocess.Popen(words, stdout=log, stderr=log)

    # Pods

    async def _pods(self) -> None:
        """A few come, some of those that are bound end, and all are looked at."""
        there = await self.world.pods()
        if len(there) < 3 * NODES * GPUS:
            await self._come()
        await self._go(there)
        self._look(there)

    async def _come(self) -> None:
        self._serial += 1
        name, sort = f"p-{self._serial:05}", self._serial % 5
        if sort == 0:
            said = {names.GANG: f"g{self._serial}/{GANG}"}
            for at in range(GANG):
                await self.world.pod(f"{name}-{at}", milli=600, mem=20_000, annotations=said)
        elif sort == 1:  # asks nothing of berth
            await self.world.pod(name, 0, gates=())
        else:
            await self.world.pod(name, milli=(250, 500, 900)[sort - 2], mem=20_000)

    async def _go(self, there: dict[str, dict[str, Any]]) -> None:
        """Let pods be gone whose gang, if they have one, is bound whole."""
        bound: dict[str, list[str]] = defaultdict(list)
        for name, pod in there.items():
            if "nodeName" in pod["spec"]:
                bound[pod["metadata"].get("annotations", {}).get(names.GANG, name)].append(name)
        for key, pods in bound.items():
            if len(pods) == (GANG if "/" in key else 1) and self._draw.random() < 0.2:
                for name in pods:
                    await self._delete(name)
                self.ended += len(pods)

    async def _delete(self, name: str) -> None:
        """Delete a pod; whoever loses a node may have done so just now."""
        try:
            await self.world.delete(name)
        except ApiError as error:
            if error.status != 404:
                raise

    def _look(self, there: dict[str, dict[str, Any]]) -> None:
        """Note parts that are given twice, and gangs of which only a part is bound."""
        self.looks += 1
        gangs: dict[str, int] = Counter()
        used: dict[tuple[str, int], int] = Counter()
        for pod in there.values():
            placed = json.loads(pod["metadata"].get("annotations", {}).get(names.PLACEMENT, "{}"))
            for gpu in placed.get("gpus", ()):
                used[placed["node"], gpu["index"]] += gpu["milli"]
            gang = pod["metadata"].get("annotations", {}).get(names.GANG)
            if gang is not None:
                gangs[gang] += "nodeName" in pod["spec"]
        self.given_twice += sum(milli > 1000 for milli in used.values())
        now_s = time.monotonic()
        half = {gang for gang, count in gangs.items() if 0 < count < GANG}
        self._half_since_s = {gang: self._half_since_s.get(gang, now_s) for gang in half}
        self.longest_half_s = max(
            [self.longest_half_s, *(now_s - each for each in self._half_since_s.values())]
        )

    async def _is_over(self) -> bool:
        there = await self.world.pods()
        await self._go(there)
        self._look(there)
        return not there

    # Faults

    async def _break_all(self, end_s: float) -> None:
        kinds = {
            "steerer killed": self._kill_steerer, "both steerers killed": self._kill_both,
            "kube-scheduler killed": self._kill_scheduler, "API server killed": self._kill_api,
            "etcd stalled": self._stall, "node lost": self._lose_node,
        }  # fmt: skip
        while True:
            for kind in self._draw.sample(sorted(kinds), len(kinds)):
                self.faults[kind] += 1
                await kinds[kind]()
                await asyncio.sleep(self._draw.uniform(0.5, 2.0))
            if time.monotonic() >= end_s:
                return

    async def _kill_steerer(self) -> None:
        at = self._draw.randrange(2)
        self._steerers[at].kill()
        self._steerers[at].wait()
        self._steerers[at] = self._steerer()

    async def _kill_both(self) -> None:
        """While no steerer lives, a pod that asks nothing of berth is bound as ever."""
        for process in self._steerers:
            process.kill()
            process.wait()
        self._serial += 1
        name = f"p-{self._serial:05}-plain"
        await self.world.pod(name, 0, gates=())
        await self.world.until_bound(name)
        self.without_berth += 1
        self._steerers = [self._steerer(), self._steerer()]

    async def _kill_scheduler(self) -> None:
        await asyncio.to_thread(self.server.kill_scheduler)
        await asyncio.to_thread(self.server.start_scheduler)

    async def _kill_api(self) -> None:
        """All watches break; the lists after it begin at other versions."""
        await asyncio.to_thread(self.server.stop_api, signal.SIGKILL)
        await asyncio.to_thread(self.server.start_api)

    async def _stall(self) -> None:
        with self.server.etcd_stalls():
            await asyncio.sleep(2)

    async def _lose_node(self) -> None:
        """A node vanishes with its pods and the gangs that these are of, and comes back empty."""
        name = f"n{self._draw.randrange(NODES)}"
        await self.world.delete(name, "nodes", None)
        there = await self.world.pods()
        gangs = {
            pod: each["metadata"].get("annotations", {}).get(names.GANG, pod) for pod, each in there.items()
        }
        lost = {gangs[pod] for pod, each in there.items() if each["spec"].get("nodeName") == name}
        for pod, gang in gangs.items():
            if gang in lost:
                await self._delete(pod)
        await self.world.node(name, GPUS)
