"""One node for tests: fake GPUs, allotments, a kubelet and an API server of the tests' own, in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from berth.live.kubernetes.node.allotments import Allotments
from berth.live.kubernetes.node.claims import ClaimFiles, Claims, DraDriver
from berth.live.kubernetes.node.device_plugin import DevicePlugin, Identity
from berth.live.kubernetes.node.driver_files import DriverFiles, fake_driver, with_library
from berth.live.local.cards import Card, fake_gpus
from tests.live.kubernetes.kubelet import CHECKPOINT, Kubelet
from tests.live.kubernetes.node.fake_api import FakeApi

ROOT = Path(__file__).resolve().parents[4]
ASK = """
import json
from berth.live.local.cards import Cards
print(json.dumps([[card.index, card.uuid, card.model, card.mem_mib] for card in Cards(fake=True).cards]))
"""


def make_cards(text: str, file: Path) -> list[Card]:
    """The fake GPUs of `2xA100-80G`, made in a process of their own: a process has one fake card for life."""
    environment = {**os.environ, **fake_gpus(text), "BERTH_FAKE_CARD": str(file)}
    told = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return [Card(*each) for each in json.loads(told.stdout)]


class NodeWorld:
    """All that one node has."""

    def __init__(self, folder: Path, gpus: str = "2xA100-80G", *, seed: int = 0) -> None:
        self.folder = folder
        self.card_file = folder / "card"
        self.cards = make_cards(gpus, self.card_file)
        self.api = FakeApi()
        self.kubelet = Kubelet(folder / "kubelet", seed=seed)
        fake = fake_driver([card.index for card in self.cards], folder / "state" / "driver", self.card_file)
        self.driver: DriverFiles = with_library(fake, folder / "state" / "library")
        self.cdi = folder / "cdi"
        self.allotments = self.new_allotments()
        self.rooms_made = 0

    def new_allotments(self) -> Allotments:
        """As a new process finds them."""
        made = Allotments(
            self.folder / "state" / "allotments", self.folder / "regions", self.cards, self.folder / "nodes"
        )
        made.load()
        return made

    def plugin(self) -> DevicePlugin:
        """A device plugin for all GPUs."""
        places = self.kubelet.plugins_folder, self.folder / "nodes", tuple(card.index for card in self.cards)
        identity = Identity(self.kubelet.resources_socket, self.kubelet.plugins_folder / CHECKPOINT)
        return DevicePlugin(
            "here", *places, self.allotments, self.driver, identity, self.api, self._make_room
        )

    def dra(self) -> DraDriver:
        """A DRA driver for all GPUs, as a new process makes it."""
        files = ClaimFiles(self.cdi, self.driver)
        gpus = tuple(card.index for card in self.cards)
        self.claims = Claims("here", gpus, self.allotments, files, self.api, self._make_room)
        return DraDriver("here", self.folder / "kubelet" / "plugins", self.kubelet.registry, self.claims)

    async def _make_room(self) -> None:
        self.rooms_made += 1
