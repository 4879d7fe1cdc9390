"""The five commands of docs/partition.md, as they stand there, over the fake driver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.partition.conftest import ROOT
from tests.partition.test_runtimes import INSIDE, Podman
from tests.partition.test_runtimes import podman as podman

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "partition.md"

BERTH = """#!/bin/sh
case "$2" in
create) exec {berth} "$@" --fake-gpu ;;
watch) exec {berth} "$@" --times 1 ;;
*) exec {berth} "$@" ;;
esac
"""
"""The card is the fake one, and `watch` ends after one look."""

PODMAN = """#!{python}
import os, sys
words = [word for word in sys.argv[1:]]
at = words.index("nvidia.com/gpu=0")
del words[at - 1 : at + 1]
at = words.index("pytorch/pytorch")
words[at:] = {image} + ["/bin/sh", "-c", "/opt/check over && /bin/sleep 600"]
os.execvp({podman}[0], {podman} + words[:1] + {more} + words[1:])
"""
"""Podman's own words stay; image and program are the tests', and there is no NVIDIA device."""


def commands() -> str:
    """The block of the page under its heading on five commands."""
    _, _, after = PAGE.read_text().partition("in five commands")
    block = re.search(r"```console\n(.*?)```", after, re.DOTALL)
    assert block is not None
    return "\n".join(line.removeprefix("$ ") for line in block[1].splitlines())


def test_the_page_has_five_commands() -> None:
    assert len(commands().splitlines()) == 5


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_the_five_commands_work_as_they_stand(podman: Podman, tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    berth = Path(sys.executable).parent / "berth"
    more = [word for value in INSIDE for word in ("-e", value)]
    more += ["--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    (tmp_path / "shared").mkdir()
    more += ["-v", f"{tmp_path / 'shared'}:/card"]
    write_program(bin_folder / "berth", BERTH.format(berth=berth))
    write_program(bin_folder / "sudo", '#!/bin/sh\nexec "$@"\n')
    write_program(
        bin_folder / "podman",
        PODMAN.format(python=sys.executable, image=[podman.name], podman=podman.command, more=more),
    )
    environment = os.environ | {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "BERTH_ROOT": str(tmp_path / "root"),
        "BERTH_FAKE_CARD": str(tmp_path / "shared" / "card"),
        "BERTH_FAKE_MEM_MIB": "24576",
        "COLUMNS": "200",
    }
    try:
        ran = subprocess.run(
            ["bash", "-euc", commands()], env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert "blue" in ran.stdout
        assert "red" in ran.stdout
        deadline = time.monotonic() + 120
        while True:
            listed = subprocess.run(
                [berth, "partition", "list", "--json"], env=environment, capture_output=True, check=True
            )
            seen = {one["name"]: one for one in json.loads(listed.stdout)}
            if all(seen[name]["refused"] > 0 for name in ("blue", "red")) or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        for name in ("blue", "red"):  # each went over, got its error, and runs on
            assert (seen[name]["limit_bytes"], seen[name]["core_pct"]) == (10 << 30, 50)
            assert seen[name]["refused"] > 0
            state = podman("inspect", "--format", "{{.State.Status}}", name)
            assert state.stdout.strip() == "running", podman("logs", name)
    finally:
        for name in ("blue", "red"):
            podman("rm", "--force", "--time", "0", name)
            (Path("/etc/cdi") / f"berth-{name}.json").unlink(missing_ok=True)
