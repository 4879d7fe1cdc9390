"""Containers of the tests' own: a process in a mount namespace with the mounts, nodes and variables that it was given.

What a runtime does with an answer of a device plugin, or with a CDI specification: bind mounts, read-only or not,
device nodes (of a folder: those in it), environment. Nothing else is kept apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GPU_SHARE = Path(__file__).with_name("gpu_share.py")
IN_CONTAINER = Path(__file__).with_name("in_container.py")


@dataclass
class Edits:
    """What a container is given."""

    environment: dict[str, str] = field(default_factory=dict)
    mounts: list[tuple[str, str, bool]] = field(default_factory=list)
    """Of the host, inside, writable."""
    nodes: list[tuple[str, str]] = field(default_factory=list)


def of_device_plugin(answer: Any) -> Edits:
    """The edits of an answer to Allocate; folders of nodes are read now, as containerd does."""
    made = Edits(dict(answer.envs))
    made.mounts = [(each.host_path, each.container_path, not each.read_only) for each in answer.mounts]
    for device in answer.devices:
        path = Path(device.host_path)
        if path.is_dir():
            made.nodes += [
                (str(node), f"{device.container_path}/{node.name}") for node in sorted(path.iterdir())
            ]
        else:
            made.nodes.append((str(path), device.container_path))
    return made


def of_cdi(folder: Path, names: Sequence[str]) -> Edits:
    """The edits of CDI devices by their full names, looked up in the specifications of a folder."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        told = json.loads(path.read_text())
        for device in told["devices"]:
            both = [told.get("containerEdits", {}), device["containerEdits"]]
            assert f"{told['kind']}={device['name']}" not in found
            found[f"{told['kind']}={device['name']}"] = both
    made = Edits()
    for name in names:
        for edits in found[name]:
            made.environment |= dict(word.split("=", 1) for word in edits.get("env", ()))
            made.mounts += [
                (each["hostPath"], each["containerPath"], "rw" in each["options"])
                for each in edits.get("mounts", ())
            ]
            made.nodes += [
                (each.get("hostPath", each["path"]), each["path"]) for each in edits.get("deviceNodes", ())
            ]
    return made


def start(
    edits: Edits, command: Sequence[str], scratch: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a process in a container; its output is a pipe."""
    nodes = [(os.stat(host).st_rdev, inside) for host, inside in edits.nodes]
    last = sorted(
        edits.mounts, key=lambda each: each[1] == "/etc/ld.so.preload"
    )  # then the loader wants the library
    plan = {
        "scratch": str(scratch),
        "nodes": [(os.major(number), os.minor(number), inside) for number, inside in nodes],
        "mounts": list({inside: (host, inside, writable) for host, inside, writable in last}.values()),
    }
    scratch.with_suffix(".json").write_text(json.dumps(plan))
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "LD_", "CUDA_"))
    }
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(IN_CONTAINER), str(scratch.with_suffix(".json")), *command],
        env=kept | edits.environment | dict(environment or {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def share_of(*words: str) -> list[str]:
    """The command that finds out what a container may have."""
    return [sys.executable, "-I", "-S", str(GPU_SHARE), *words]
