"""The Container Device Interface specification of a partition, for Docker, Podman, containerd and CRI-O."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from berth.partition.regions import INSIDE, Partition, preload_list

__all__ = ["specification"]


def specification(
    name: str, parts: Sequence[Partition], library: Path, devices: Sequence[str] | None = None
) -> dict[str, Any]:
    """CDI 0.3: mounts of the library, the preload list and the region, whose limits are read-only inside."""
    folder = parts[0].folder
    mounts = [_mount(library, f"{INSIDE}/libberth.so"), _mount(preload_list(folder), "/etc/ld.so.preload")]
    for part in parts:
        mounts.append(_mount(folder / f"{part.uuid}.limit", f"{INSIDE}/region/{part.uuid}.limit"))
        mounts.append(_mount(folder / f"{part.uuid}.use", f"{INSIDE}/region/{part.uuid}.use", writable=True))
    nodes = (
        list(devices)
        if devices
        else [str(path) for path in sorted(Path("/dev").glob("nvidia*")) if path.is_char_device()]
    )
    edits: dict[str, Any] = {"env": [f"BERTH_REGION={INSIDE}/region"], "mounts": mounts}
    if nodes:
        edits["deviceNodes"] = [{"path": node} for node in nodes]
    return {
        "cdiVersion": "0.3.0",
        "kind": "berth.dev/gpu",
        "devices": [{"name": name, "containerEdits": edits}],
    }


def _mount(outside: Path, inside: str, *, writable: bool = False) -> dict[str, Any]:
    return {
        "hostPath": str(outside),
        "containerPath": inside,
        "options": ["rw" if writable else "ro", "nosuid", "nodev", "bind"],
    }
