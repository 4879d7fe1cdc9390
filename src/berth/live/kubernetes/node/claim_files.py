"""The CDI specifications of prepared claims: one file a claim, one device for each part, whole or not there at all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from berth.files import whole_file
from berth.live.kubernetes.names import DRIVER
from berth.live.kubernetes.node.allotments import Allotment, Allotments, plain
from berth.live.kubernetes.node.driver_files import DriverFiles
from berth.partition.regions import INSIDE

KIND = f"{DRIVER}/claim"


class ClaimFiles:
    """The folder that the container runtime reads."""

    def __init__(self, folder: Path, driver: DriverFiles) -> None:
        self._folder, self._driver = folder, driver

    @staticmethod
    def device(allotment: Allotment) -> str:
        """The full name by which a container gets this allotment."""
        return f"{KIND}={allotment.name}"

    def write(self, uid: str, given: Sequence[Allotment], allotments: Allotments) -> None:
        """Write the specification of a claim, unless it is there as it should be."""
        specification = {
            "cdiVersion": "0.5.0",
            "kind": KIND,
            "containerEdits": self._shared,
            "devices": [
                {"name": each.name, "containerEdits": self._edits(each, allotments)} for each in given
            ],
        }
        text, path = msgspec.json.encode(specification), self._path(uid)
        if path.exists() and path.read_bytes() == text:
            return
        try:
            _write(path, text)
        except FileNotFoundError:  # the folder, which lies in memory
            self._folder.mkdir(parents=True, exist_ok=True)
            _write(path, text)

    def remove(self, uid: str) -> None:
        """Take the specification of a claim away; one that is not there is no error."""
        self._path(uid).unlink(missing_ok=True)

    def _path(self, uid: str) -> Path:
        return self._folder / f"{DRIVER}-claim-{uid}.json"

    @cached_property
    def _shared(self) -> msgspec.Raw:
        edits: dict[str, Any] = {
            "mounts": [_mount(file.host, file.inside, file.writable) for file in self._driver.mounts],
            "deviceNodes": [_node(path) for path in self._driver.common],
            "env": [f"{name}={value}" for name, value in self._driver.environment.items()],
        }
        return msgspec.Raw(msgspec.json.encode({name: found for name, found in edits.items() if found}))

    def _edits(self, allotment: Allotment, allotments: Allotments) -> dict[str, Any]:
        mounts: list[dict[str, Any]] = []
        nodes: list[dict[str, Any]] = []
        region = f"{allotments.root}/{allotment.name}"
        for part in allotment.parts:
            card = allotments.cards[part.index]
            for kind, writable in (("limit", False), ("use", True)):
                file = f"{plain(card.uuid)}.{kind}"
                mounts.append(_mount(f"{region}/{file}", f"{INSIDE}/region/{file}", writable))
            nodes.append(_node(self._driver.nodes[part.index]))
        return {"mounts": mounts, "deviceNodes": nodes}


def _write(path: Path, text: bytes) -> None:
    with whole_file(path) as temporary:
        temporary.write_bytes(text)


def _mount(host: Path | str, inside: str, writable: bool = False) -> dict[str, Any]:
    options = ["rw" if writable else "ro", "nosuid", "nodev", "bind"]
    return {"hostPath": str(host), "containerPath": inside, "options": options}


def _node(path: Path) -> dict[str, Any]:
    return {"path": f"/dev/{path.name}", "hostPath": str(path), "permissions": "rw"}
