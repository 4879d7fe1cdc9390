"""Manual pages: each option of each command, in a form that `man` reads without a warning."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from berth.cli.app import commands_of, load, written
from berth.cli.commands import COMMANDS, PAPERS
from berth.cli.man_pages import pages, write


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages()


def test_every_command_has_a_page_with_all_its_options(made: dict[str, str]) -> None:
    own = [name for name, target in COMMANDS.items() if target != PAPERS]
    assert set(made) == {"berth.1", *(f"berth-{name}.1" for name in own)}
    for name in own:
        page = made[f"berth-{name}.1"].replace("\\-", "-").replace("\\e", "\\")
        for words, command in commands_of(load(name), f"berth {name}"):
            assert f".B {words}\n" in page
            for parameter in command.params:
                assert written(parameter) in page


def test_a_reader_of_manual_pages_has_nothing_to_complain_of(tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("there is no groff here")
    files = write(tmp_path / "man1")
    done = subprocess.run(
        ["groff", "-k", "-man", "-Tutf8", "-wmac", *files], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "Number of GPUs, or a part of one such as 0.5" in " ".join(done.stdout.split())
