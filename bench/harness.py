"""What the benchmarks share: where data is, what machine this is, where results go."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from argparse import ArgumentTypeError
from pathlib import Path

BENCH = Path(__file__).resolve().parent
OWN = BENCH.parent / "src"
"""The sources of this checkout."""


def count(text: str) -> int:
    """Read an option of the command line that is a whole number of at least 1."""
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"expected a whole number of at least 1, not '{text}'")
    return int(text)


def data_folder() -> Path:
    """$BERTH_TEST_DATA, else shared/data beside the repository; ends the script where there is none."""
    folder = Path(os.environ.get("BERTH_TEST_DATA") or BENCH.parents[1] / "shared" / "data")
    if not folder.is_dir():
        raise SystemExit(f"no traces in {folder}; name their folder in BERTH_TEST_DATA, or with --data")
    return folder


def machine() -> dict[str, str | int | None]:
    """What a figure was measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def other_sources(path: Path) -> Path:
    """The folder of another checkout's sources, given as `…/src` or as the checkout; ends the script if it is none."""
    for folder in (path, path / "src"):
        if (folder / "berth" / "__init__.py").is_file():
            return folder.resolve()
    raise SystemExit(f"{path} is no checkout of berth: neither it nor its src holds berth/__init__.py")


def environment_of(source: Path) -> dict[str, str]:
    """The environment in which Python imports berth from a folder of sources."""
    folders = [source, source.parent / "papers" / "src"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}


def with_sources(source: Path, *command: str | Path) -> str:
    """Standard output of a command that imports berth from a folder of sources; ends the script if it fails."""
    done = subprocess.run(list(map(str, command)), env=environment_of(source), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\nfails with {source}:\n{done.stderr[-2000:]}")
    return done.stdout


def save(name: str, results: object) -> None:
    """Write the results as JSON beside the scripts, and say where."""
    folder = BENCH / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
    print(f"wrote {path}")


def as_installed() -> dict[str, str]:
    """The environment for a command that is measured: Python keeps compiled modules, as pip leaves them."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
