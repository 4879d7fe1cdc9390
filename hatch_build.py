"""Makes what the wheel carries beside Python: native/ compiled, and the manual pages.

Without a C compiler or `make` the package is pure Python: all of berth but partitions. `BERTH_NATIVE=0` leaves
native/ out on purpose, `BERTH_NATIVE=1` refuses to build without it. Where Typer is missing, the manual pages are left
out.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LIBRARIES = (
    "libberth.so",
    "libberth-region.so",
    "berth-shim",
    "berth-prove",
    "fake/libcuda.so.1",
    "fake/libnvidia-ml.so.1",
)


class Addresses(MetadataHookInterface):
    """The package names the repository that released it; one built elsewhere names none."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the addresses if the release workflow gave the repository's."""
        url = os.environ.get("BERTH_URL", "").rstrip("/")
        if not url:
            return
        if not url.startswith("https://"):
            raise SystemExit(
                f"BERTH_URL is '{url}'; expected an address such as https://example.org/me/berth"
            )
        tree = f"{url}/blob/v{metadata['version']}"
        metadata["urls"] = {
            "Homepage": url,
            "Documentation": f"{tree}/docs/index.md",
            "Changelog": f"{tree}/CHANGELOG.md",
            "Issues": f"{url}/issues",
        }


class NativeBuild(BuildHookInterface):
    """An editable install finds them in build/native; a wheel carries them and is of this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build where there is a compiler, and tell the wheel what to carry."""
        root = Path(self.root)
        if version != "editable":
            build_data["shared_data"].update(self._manual_pages(root))
        asked = os.environ.get("BERTH_NATIVE", "")
        if asked not in ("", "0", "1"):
            raise SystemExit(f"BERTH_NATIVE is '{asked}'; expected 1 (compile), 0 (leave out) or nothing")
        lacking = _lacking()
        if asked == "1" and lacking:
            raise SystemExit(f"BERTH_NATIVE=1, but there is no {' and no '.join(lacking)}")
        if asked == "0" or lacking:
            why = "BERTH_NATIVE=0" if asked == "0" else f"no {' and no '.join(lacking)} here"
            self.app.display_warning(f"{why}: partitions (berth run, berth up) are left out")
            return
        subprocess.run(["make", "-s", f"-j{os.cpu_count() or 1}", "-C", str(root / "native")], check=True)
        if version == "editable":
            return
        built = root / "build" / "native"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["force_include"].update(
            {str(built / name): f"berth/partition/native/{name}" for name in LIBRARIES}
        )

    def _manual_pages(self, root: Path) -> dict[str, str]:
        """Make the manual pages; where the wheel puts each."""
        folder = root / "build" / "man"
        shutil.rmtree(folder, ignore_errors=True)
        made = subprocess.run(
            [sys.executable, "-m", "berth.cli.man_pages", str(folder)],
            env={**os.environ, "PYTHONPATH": str(root / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            why = (made.stderr.splitlines() or [""])[-1]
            self.app.display_warning(f"manual pages are left out: {why}")
            return {}
        return {str(page): f"share/man/man1/{page.name}" for page in sorted(folder.iterdir())}


def _lacking() -> list[str]:
    """What of make and the compiler is not on the search path."""
    compiler = shlex.split(os.environ.get("CC", "gcc"))[0]
    return [tool for tool in ("make", compiler) if shutil.which(tool) is None]
