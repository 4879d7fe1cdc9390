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


def steps(stage: str) -> list[tuple[str, str]]:
    """The instructions of a stage."""
    lines = CONTAINERFILE.read_text().partition(f" AS {stage}\n")[2].partition("\nFROM ")[0].splitlines()
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
    quick = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str | Path) -> str:
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=quick, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def build(stage: str) -> None:
        for kind, words in steps(stage):
            if kind == "COPY":
                *sources, target = words.split()
                for name in sources:
                    to = source / target / (name if target == "./" else "")
                    if (ROOT / name).is_dir():
                        shutil.copytree(ROOT / name, to, dirs_exist_ok=True)
                    else:
                        shutil.copy(ROOT / name, to)
            elif kind == "RUN" and not words.startswith("apt-get"):
                lock = re.search(r" -r (\S+\.lock)$", words)
                if lock is not None and (lock[1].endswith("build.lock") or linked(source / lock[1], home)):
                    continue  # what builds is where these tests run
                command = (
                    words.replace("python3 -m venv /opt/build && ", "")
                    .replace("/opt/build/bin/python", sys.executable)
                    .replace("python3 ", f"{sys.executable} ")
                    .replace("/opt/berth", str(home))
                    .replace("/src", str(source))
                )
                run("sh", "-c", f"cd {source} && {command}")

    build("build")
    berth, python = home / "bin" / "berth", home / "bin" / "python"
    run(berth, "k8s", "node", "--help")
    shown = run(python, "-c", "from berth.partition.library import library_path; print(library_path())")
    assert str(home) in shown
    build("build-steerer")
    run(berth, "k8s", "install", "--image", "x", "--dry-run")


PROGRAMS = {
    "agent": ("berth.cli", "berth.live.kubernetes.node.service", "berth.live.kubernetes.node.recording"),
    "steerer": ("berth.cli", "berth.live.kubernetes.steering", "berth.live.kubernetes.collecting"),
}
ALONE = """
import importlib, sys
from importlib import metadata

there, programs = set(sys.argv[1].split(",")), sys.argv[2:]
owners = metadata.packages_distributions()

class Within:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        of = owners.get(name.partition(".")[0])
        is_there = not of or there & {each.lower().replace("_", "-") for each in of}
        return self.finder.find_spec(name, path, target) if is_there else None

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Within, sys.meta_path)
for program in programs:
    importlib.import_module(program)
if "numba" in there:
    from berth.knowledge import make_knowledge
    from berth.live.driver.warming import warm_up
    warm_up("easy+priority+best-fit", make_knowledge("user"))
"""
"""Imports programs where only the packages of a lock file are, and has a steerer decide."""


@pytest.mark.slow
@pytest.mark.parametrize("image", PROGRAMS)
def test_an_image_has_every_package_that_its_programs_import(image: str) -> None:
    lock = (ROOT / "requirements" / f"{image}.lock").read_text()
    there = {"berth-gpu", *re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}
    assert ("numba" in there) == (image == "steerer")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, ",".join(there), *PROGRAMS[image]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_image_runs_as_nobody_and_has_what_is_compiled() -> None:
    text = CONTAINERFILE.read_text()
    assert re.findall(r"^USER (\d+)$", text, re.MULTILINE) == ["65534"]
    assert "apt-get install -y --no-install-recommends gcc libc6-dev make" in text
