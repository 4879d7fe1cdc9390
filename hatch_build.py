"""Compiles native/ when the package is built: libberth.so, its operator's side and the fake driver."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARIES = ("libberth.so", "libberth-region.so", "berth-shim", "fake/libcuda.so.1", "fake/libnvidia-ml.so.1")


class NativeBuild(BuildHookInterface):
    """An editable install finds them in build/native; a wheel carries them and is of this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and tell the wheel what to carry."""
        root = Path(self.root)
        subprocess.run(["make", "-s", "-C", str(root / "native")], check=True)
        if version == "editable":
            return
        built = root / "build" / "native"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["force_include"].update(
            {str(built / name): f"berth/partition/native/{name}" for name in LIBRARIES}
        )
