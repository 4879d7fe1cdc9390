"""The Container Device Interface specification of a partition, for Docker, Podman, containerd and CRI-O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from berth.errors import PartitionError
from berth.partition.hardware import Hardware, variables
from berth.partition.oci import STAGES
from berth.partition.regions import INSIDE, Mount, Partition, mounts

CAPABILITIES = Path("/proc/driver/nvidia/capabilities")


def specification(
    name: str,
    parts: Sequence[Partition],
    library: Path,
    devices: Sequence[str] | None = None,
    hook: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """CDI 0.3: mounts of the library, the preload list and the region, whose limits are read-only inside.

    `hook`: the program that gives a container's cgroup the limit, where the driver keeps it.
    """
    files = mounts(parts, library)
    nodes = (
        list(devices)
        if devices
        else [str(path) for path in sorted(Path("/dev").glob("nvidia*")) if path.is_char_device()]
    )
    kept = [part.hardware for part in parts if part.hardware is not None]
    environment: dict[str, str] = {"BERTH_REGION": f"{INSIDE}/region"} | dict(variables(kept))
    for one in kept:
        if one.can.needs_variables:
            folder = Path(one.pipe).parent
            files.append(Mount(folder, str(folder), True))
        elif not devices and not one.can.needs_entry:
            nodes = [node for node in nodes if not _is_other_gpu(node, one)] + access_nodes(one, CAPABILITIES)
    edits: dict[str, Any] = {
        "env": [f"{name}={value}" for name, value in environment.items()],
        "mounts": [cdi_mount(*file) for file in files],
    }
    if hook is not None and any(one.can.needs_entry for one in kept):
        edits["hooks"] = [{"hookName": stage, **hook} for stage in STAGES]
    if nodes:
        edits["deviceNodes"] = [{"path": node} for node in nodes]
    return {
        "cdiVersion": "0.3.0",
        "kind": "berth.dev/gpu",
        "devices": [{"name": name, "containerEdits": edits}],
    }


def _is_other_gpu(node: str, instance: Hardware) -> bool:
    number = node.removeprefix("/dev/nvidia")
    return number.isdigit() and int(number) != instance.gpu_minor


def access_nodes(instance: Hardware, capabilities: Path) -> list[str]:
    """The devices by which the driver gives access to an instance of MIG: one of its GPU instance, one of its compute
    instance. Their numbers are in NVIDIA's files under /proc."""
    parts = capabilities / f"gpu{instance.gpu_minor}" / "mig" / f"gi{instance.gpu_instance}"
    nodes = []
    for access in (parts / "access", parts / f"ci{instance.compute_instance}" / "access"):
        try:
            words = dict(line.split(":", 1) for line in access.read_text().splitlines() if ":" in line)
            nodes.append(f"/dev/nvidia-caps/nvidia-cap{int(words['DeviceFileMinor'])}")
        except (OSError, KeyError, ValueError) as error:
            why = (
                (error.strerror or "it cannot be read")
                if isinstance(error, OSError)
                else "no DeviceFileMinor"
            )
            raise PartitionError(
                f"{access} does not name the instance's device ({why}); name its devices with --device"
            ) from error
    return nodes


def cdi_mount(host: Path, inside: str, writable: bool) -> dict[str, Any]:
    return {
        "hostPath": str(host),
        "containerPath": inside,
        "options": ["rw" if writable else "ro", "nosuid", "nodev", "bind"],
    }
