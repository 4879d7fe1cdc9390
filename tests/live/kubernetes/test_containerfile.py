"""The steps of the Containerfile make a berth that runs: they are run in an empty folder, without containers.

No base image is to be had without a network; what the image adds to these steps is Debian's Python and compiler.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
CONTAINERFILE = ROOT / "deploy" / "kubernetes" / "Containerfile"


def steps() -> list[tuple[str, str]]:
    """The instructions of the stage that builds."""
    lines = (
        CONTAINERFILE.read_text().partition("\nFROM docker.io")[2].partition("\nFROM ")[0].splitlines()[1:]
    )
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines if line and line[0] != "#"]


def linked(lock: Path, home: Path) -> bool:
    """Link what a lock file pins, and nothing else, from where these tests run; False if they run with other versions.

    To install a hundred megabytes again shows nothing that `tests/install` does not.
    """
    (site,) = home.glob("lib/python*/site-packages")
    lines = re.findall(r"^([\w.-]+(?:\[.*?\])?==[^\\\n]+)", lock.read_text(), re.MULTILINE)
    pins = [each for each in map(Requirement, lines) if each.marker is None or each.marker.evaluate()]
    found: dict[str, Path] = {}
    for pin in pins:
        try:
            there = metadata.distribution(pin.name)
        except metadata.PackageNotFoundError:
            return False
        if there.version not in pin.specifier:
            return False
        tops = {file.parts[0] for file in there.files or ()} - {"..", "__pycache__"}
        found |= {top: Path(str(there.locate_file(top))) for top in tops}
    for top, path in found.items():
        if not (site / top).exists():
            (site / top).symlink_to(path)
    return bool(pins)


@pytest.mark.slow
def test_the_steps_of_the_containerfile_make_a_berth_that_runs(tmp_path: Path) -> None:
    source, home = tmp_path / "src", tmp_path / "berth"
    source.mkdir()
    quick = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PIP_NO_COMPILE": "1"
    }
    for kind, words in steps():
        if kind == "COPY":
            *sources, target = words.split()
            for name in sources:
                to = source / target / (name if target == "./" else "")
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, to, dirs_exist_ok=True)
                else:
                    shutil.copy(ROOT / name, to)
        elif kind == "RUN" and not words.startswith("apt-get"):
            command = (
                words.replace(" --no-cache-dir", "")
                .replace("/opt/berth", str(home))
                .replace("python -m venv", f"{sys.executable} -m venv")
            )
            lock = re.search(r" -r (\S+\.lock)$", command)
            if lock is not None and linked(source / lock[1], home):
                continue
            done = subprocess.run(command, shell=True, cwd=source, env=quick, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}: {done.stderr[-3000:]}"
    for words in (["k8s", "node", "--help"], ["k8s", "install", "--image", "x", "--dry-run"]):
        done = subprocess.run(
            [home / "bin" / "berth", *words], capture_output=True, text=True, cwd=tmp_path, env=quick
        )
        assert done.returncode == 0, done.stderr
    loaded = "from berth.partition.library import library_path; print(library_path())"
    done = subprocess.run(
        [home / "bin" / "python", "-c", loaded],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
        env=quick,
    )
    assert str(home) in done.stdout


def test_the_image_runs_as_nobody_and_has_what_is_compiled() -> None:
    text = CONTAINERFILE.read_text()
    assert re.findall(r"^USER (\d+)$", text, re.MULTILINE) == ["65534"]
    assert "apt-get install -y --no-install-recommends gcc libc6-dev make" in text
