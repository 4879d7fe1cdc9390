"""The package is built with a compiler and without one, and says which it was."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import berth
from berth.errors import PartitionError
from berth.partition import library

ROOT = Path(__file__).resolve().parents[2]


def build(kind: str, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    return subprocess.run(
        words, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"BERTH_NATIVE": "0"}, "BERTH_NATIVE=0: partitions"),
        ({"PATH": "/nowhere"}, "no make and no gcc here: partitions"),
    ],
)
def test_without_a_compiler_the_wheel_has_all_but_partitions(
    environment: dict[str, str], told: str, tmp_path: Path
) -> None:
    done = build("wheel", tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout + done.stderr
    (wheel,) = tmp_path.iterdir()
    assert wheel.name == f"berth_gpu-{berth.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if ".so" in name or name.startswith(("tests/", "papers/"))] == []
    assert not any("berth_papers" in name for name in names)
    assert f"berth_gpu-{berth.__version__}.data/data/share/man/man1/berth-submit.1" in names
    assert {"berth/__init__.py", "berth/py.typed", "berth/report/templates/report.html"} <= set(names)


def addresses(folder: Path) -> list[str]:
    """The addresses that the wheel in a folder names."""
    (wheel,) = folder.iterdir()
    with zipfile.ZipFile(wheel) as packed:
        metadata = packed.read(f"berth_gpu-{berth.__version__}.dist-info/METADATA").decode()
    return [line for line in metadata.splitlines() if line.startswith("Project-URL")]


@pytest.mark.slow
@pytest.mark.parametrize("url", ["", "https://example.org/me/berth"])
def test_a_wheel_names_the_repository_that_released_it_and_no_other(url: str, tmp_path: Path) -> None:
    assert build("wheel", tmp_path, BERTH_NATIVE="0", BERTH_URL=url).returncode == 0
    tree = f"{url}/blob/v{berth.__version__}"
    assert addresses(tmp_path) == (
        [
            f"Project-URL: Homepage, {url}",
            f"Project-URL: Documentation, {tree}/docs/index.md",
            f"Project-URL: Changelog, {tree}/CHANGELOG.md",
            f"Project-URL: Issues, {url}/issues",
        ]
        if url
        else []
    )


def test_the_papers_are_a_wheel_of_their_own_that_declares_what_it_adds(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(words, cwd=ROOT / "papers", capture_output=True, check=True)
    (wheel,) = tmp_path.iterdir()
    assert wheel.name == f"berth_papers-{berth.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (declared,) = (packed.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert {name.partition("/")[0] for name in names} == {
        "berth_papers",
        wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }
    assert "berth_papers/baselines/models/dqn-mps.npz" in names
    assert "genetic-paper = berth_papers.genetic.policy:GeneticPaper" in declared


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"BERTH_NATIVE": "1", "PATH": "/nowhere"}, "BERTH_NATIVE=1, but there is no make and no gcc"),
        ({"BERTH_URL": "git@example.org:me/berth"}, "BERTH_URL is 'git@example.org:me/berth'; expected an"),
        ({"BERTH_NATIVE": "yes"}, "BERTH_NATIVE is 'yes'; expected 1 (compile), 0 (leave out) or nothing"),
    ],
)
def test_a_build_that_cannot_be_as_asked_says_why(
    environment: dict[str, str], told: str, tmp_path: Path
) -> None:
    done = build("wheel", tmp_path, **environment)
    assert done.returncode != 0
    assert told in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_source_brings_what_compiles_it(tmp_path: Path) -> None:
    assert build("sdist", tmp_path).returncode == 0
    (packed,) = tmp_path.iterdir()
    with tarfile.open(packed) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "native/Makefile",
        "hatch_build.py",
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "papers/pyproject.toml",
    } <= names


def test_a_library_that_was_not_built_is_named_with_what_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_PACKAGED", tmp_path / "packaged")
    monkeypatch.setattr(library, "_BUILT", tmp_path / "build" / "native")
    with pytest.raises(
        PartitionError, match=r"no C compiler when berth was installed.*-m pip install .*--no-deps"
    ):
        library.library_path()
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "Makefile").touch()
    with pytest.raises(
        PartitionError, match=rf"build it with: make -C {re.escape(str(tmp_path / 'native'))}"
    ):
        library.library_path()
