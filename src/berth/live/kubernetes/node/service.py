"""One node put together: the plugins that the kubelet calls, the agent that looks, and what the cluster is told."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from berth.errors import BerthError, SettingError
from berth.live.card_models import card_model
from berth.live.kubernetes import names
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.node.agent import EXPORT, Agent
from berth.live.kubernetes.node.allotments import Allotments
from berth.live.kubernetes.node.api_server import ApiServer
from berth.live.kubernetes.node.claims import LOST, ClaimFiles, Claims, DraDriver, SlicePublisher, devices_of
from berth.live.kubernetes.node.device_plugin import DevicePlugin, Identity
from berth.live.kubernetes.node.driver_files import fake_driver, real_driver, with_library
from berth.live.kubernetes.node.growing import Growing
from berth.live.kubernetes.node.reaper import Reaper
from berth.live.kubernetes.node.serving import NodeCollector, host_and_port, serve_node
from berth.live.kubernetes.node.xid import XidWatch
from berth.live.kubernetes.nodes import label_of
from berth.live.local.cards import Card, Cards
from berth.partition import fake_driver_folder
from berth.partition.gpus import minor_of
from berth.partition.mig import is_cut

log = logging.getLogger(__name__)

CHECKPOINT = "kubelet_internal_checkpoint"
PODS_S, PODS_EVERY = 10.0, 5
"""Seconds between two lists of the node's pods; looks, if those come more often than every second."""
AGAIN_S = 0.25
"""Until the look that confirms what one look suspected."""
HANGS_S = 300.0
"""A look that takes longer is taken to hang, as in a driver that does not answer."""
RETRY_S = 5.0
"""Until what the cluster could not be told is told again."""
REPUBLISH_S = 60.0
"""How often labels and slice are told anew, in case they were removed, or the node was made anew."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    node: str
    """The node's name in the cluster."""
    state: Path
    """Kept over restarts of the machine; the same path on the host and in the agent's container."""
    run: Path
    """In memory: regions and device nodes of containers."""
    cdi: Path
    """Where the container runtime reads CDI specifications."""
    kubelet: Path
    """The kubelet's folder."""
    dra: str = "none"
    """GPUs of which claims get parts, `berth.dev/gpu` those of the others: `all`, `none`, or indices such as `0,1`."""
    metrics: str = ""
    """Where Prometheus may ask, such as `:9400`; empty: nowhere."""
    every_s: float = 1.0
    """How often the agent looks."""
    fake: bool = False
    grow: str = "off"
    """Which memory may grow: `off`, of pods that say how far; `on`, of all up to the card; `suspend`, the same, and a
    pod that matters less leaves its GPU if there is no room."""
    uncounted: str = "report"
    """What is done about a pod that holds more than its region counts (`reconciling.ANSWERS`)."""


def split_gpus(dra: str, gpus: Sequence[int], *, has_claims: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The GPUs of the DRA driver, and those of the device plugin: the others. Raises SettingError if claims are not
    served, or for a GPU that is not there."""
    if dra in ("none", "all"):
        first = [*gpus] if dra == "all" else []
    else:
        first = sorted({int(word) for word in dra.split(",")})
    if not set(first) <= set(gpus):
        there = ",".join(map(str, gpus))
        raise SettingError(
            f"--dra '{dra}'; write all, none or indices of this node's GPUs ({there}), such as 0,1"
        )
    if first and not has_claims:
        raise SettingError("--dra names GPUs, and the API server serves no resource.k8s.io/v1; leave it out")
    return tuple(first), tuple(gpu for gpu in gpus if gpu not in first)


def check_options(dra: str, metrics: str) -> None:
    """SettingError for what is wrong on any node."""
    if dra not in ("all", "none") and not all(word.isdecimal() for word in dra.split(",")):
        raise SettingError(f"--dra '{dra}'; write all, none or indices of GPUs, such as 0,1")
    if metrics:
        host_and_port(metrics)


class _Node:
    """The parts of one node, and how they hear of each other."""

    def __init__(self, settings: NodeSettings, cards: Cards, server: ApiServer) -> None:
        self.settings, self.cards, self.server = settings, cards, server
        folder = fake_driver_folder() if settings.fake else None
        cut = {card.index for card in cards.cards if is_cut(card.gpu, folder)}
        if cut:
            log.warning("GPUs %s are left out, because their MIG is on", sorted(cut))
        gpus = [card.index for card in cards.cards if card.index not in cut]
        self.dra_gpus, self.plugin_gpus = split_gpus(settings.dra, gpus, has_claims=server.has_claims)
        state = settings.state
        indices = [card.index for card in cards.cards]
        if settings.fake:
            driver = fake_driver(indices, state / "driver", Path(os.environ["BERTH_FAKE_CARD"]))
        else:
            driver = real_driver({card.index: minor_of(card.gpu) for card in cards.cards})
        driver = with_library(driver, state / "library")
        nodes = settings.run / "nodes"
        self.allotments = Allotments(state / "allotments", settings.run / "regions", cards.cards, nodes)
        self.allotments.load()
        for damaged in self.allotments.damaged:
            log.warning("set aside: %s", damaged)
        kubelet = settings.kubelet
        identity = Identity(
            kubelet / "pod-resources" / "kubelet.sock",
            kubelet / "device-plugins" / CHECKPOINT,
        )
        self.reaper = Reaper(self.allotments, server, identity if self.plugin_gpus else None)
        self.plugin: DevicePlugin | None = None
        self.growing: Growing | None = None
        self.claims: Claims | None = None
        self.driver: DraDriver | None = None
        if self.plugin_gpus:
            card = os.environ["BERTH_FAKE_CARD"] if settings.fake else ""
            self.growing = Growing(self.allotments, server, settings.grow, settings.uncounted, fake_card=card)
            places = settings.node, kubelet / "device-plugins", nodes, self.plugin_gpus
            admit = self.growing.admit
            self.plugin = DevicePlugin(
                *places, self.allotments, driver, identity, server, self.reaper.collect, admit
            )
        if self.dra_gpus:
            files = ClaimFiles(settings.cdi, driver)
            self.claims = Claims(
                settings.node, self.dra_gpus, self.allotments, files, server, self.reaper.collect
            )
            self.reaper.claims = self.claims
            self.driver = DraDriver(
                settings.node, kubelet / "plugins", kubelet / "plugins_registry", self.claims
            )
        pods_every_s = PODS_S if settings.every_s >= 1 else PODS_EVERY * settings.every_s
        self.agent = Agent(state, cards, self.allotments, server, self.reaper, pods_every_s=pods_every_s)
        self._publisher = SlicePublisher(settings.node, server)
        self._news: tuple[dict[str, str | None], list[dict[str, Any]]] | None = None
        self._again_s = 0.0
        """When the same is told again."""
        self._looked_s = time.monotonic()

    @property
    def hangs(self) -> bool:
        return time.monotonic() - self._looked_s > HANGS_S

    def registrations(self) -> dict[str, int]:
        parts = {"device-plugin": self.plugin, "dra": self.driver}
        return {name: part.registrations for name, part in parts.items() if part is not None}

    async def look(self) -> None:
        """Look every few seconds, and tell the kubelet and the cluster what changed."""
        while True:
            try:
                view = await self.agent.step(time.time_ns() // 1_000_000)
                if self.plugin is not None:
                    await self.plugin.set_lost(frozenset(view.ailing))
                if self.claims is not None:
                    self.claims.lost = frozenset(gpu for gpu, why in view.ailing.items() if why == LOST)
                await self._publish(view.ailing)
                if self.growing is not None:
                    await self.growing.report(self.agent.pods)
                await self.agent.record()
            except (BerthError, OSError) as error:
                log.warning("%s", error)
            except Exception:  # an agent that ends enforces nothing new: it is said, and tried again
                log.exception("a look failed")
            self._looked_s = time.monotonic()
            await asyncio.sleep(AGAIN_S if self.agent.suspects else self.settings.every_s)

    async def _publish(self, ailing: Mapping[int, str]) -> None:
        """Tell what has changed, and all of it now and then."""
        cards = [card for card in self.cards.cards if card.index in self.plugin_gpus]
        claimed = [card for card in self.cards.cards if card.index in self.dra_gpus]
        news, now_s = (_labels(cards, ailing), devices_of(claimed, ailing)), time.monotonic()
        if news == self._news and now_s < self._again_s:
            return
        self._news, self._again_s = news, now_s + RETRY_S
        labels, devices = news
        await self.server.label_node(labels)
        await self.server.advertise(_resources(cards))
        if self.server.has_claims:
            await self._publisher.publish(devices)
        self._again_s = now_s + REPUBLISH_S


def _labels(cards: Sequence[Card], ailing: Mapping[int, str]) -> dict[str, str | None]:
    """The device plugin's GPUs, by which pods that ask for `berth.dev/gpu` are placed; taken away where it has none."""
    if not cards:
        return dict.fromkeys(names.GPU_LABELS)
    least = min(cards, key=lambda card: card.mem_mib)
    model = card_model(least.model, least.mem_mib).name
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in model)[:63]
    return {
        names.LABEL_GPU_COUNT: str(len(cards)),
        names.LABEL_GPU_INDICES: label_of(card.index for card in cards),
        names.LABEL_GPUS_AILING: label_of(card.index for card in cards if card.index in ailing) or None,
        names.LABEL_GPU_MODEL: plain.strip("-_."),
        names.LABEL_GPU_MEMORY_MIB: str(least.mem_mib),
    }


def _resources(cards: Sequence[Card]) -> dict[str, str | None]:
    """What Kubernetes counts of the device plugin's GPUs. Those that ail are in it, because their pods are too."""
    mem_mib = sum(card.mem_mib for card in cards)
    return {
        names.ASKED_MILLI: str(1000 * len(cards)) if cards else None,
        names.ASKED_MEM_MIB: str(mem_mib) if cards else None,
    }


async def run_node(settings: NodeSettings, api: Api) -> None:
    """Serve the kubelet and look, until cancelled."""
    cards = Cards(fake=settings.fake)
    server = ApiServer(api, settings.node)
    await server.find_claims()
    node = _Node(settings, cards, server)
    loop = asyncio.get_running_loop()

    def on_error(gpu: int, xid: int) -> None:
        log.warning("XID %d on GPU %d: it is not allocated until this agent restarts", xid, gpu)
        loop.call_soon_threadsafe(node.agent.xids.__setitem__, gpu, str(xid))

    watch = XidWatch(on_error, fake_driver_folder() if settings.fake else None)
    watch.start()
    collector = NodeCollector(node.agent, node.cards.cards, node.registrations)
    log.info(
        "node %s: %d GPUs, of which claims get parts of %s and berth.dev/gpu of %s",
        settings.node,
        len(cards.cards),
        list(node.dra_gpus) or "none",
        list(node.plugin_gpus) or "none",
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(node.look())
            if settings.metrics:
                archive = settings.state / EXPORT
                tasks.create_task(serve_node(settings.metrics, collector, archive, lambda: node.hangs))
            for part in (node.growing, node.plugin, node.driver):
                if part is not None:
                    tasks.create_task(part.run())
    finally:
        watch.stop()
