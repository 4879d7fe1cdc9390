"""Every how-to runs as written, each on a queue of its own with one fake GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(page for page in (ROOT / "docs" / "how-to").glob("*.md") if page.stem != "index")
BLOCKS = {
    page.stem: re.findall(r"<!-- runs -->\n```sh\n(.*?)```", page.read_text(), re.DOTALL) for page in PAGES
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A reader's folder, short enough for a socket, with the program that the pages call train.py."""
    with tempfile.TemporaryDirectory(prefix="bq-", dir="/dev/shm") as made:
        shutil.copy(ROOT / "examples" / "local_queue" / "train.py", made)
        yield Path(made)


@pytest.mark.slow
@pytest.mark.parametrize("page", [name for name, blocks in BLOCKS.items() if blocks])
def test_a_how_to_runs_as_written(page: str, folder: Path) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
    environment = own | {
        "PATH": f"{Path(sys.executable).parent}:{own['PATH']}",
        "BERTH_STATE": str(folder / "state"),
        "BERTH_ROOT": str(folder / "partitions"),
        "BERTH_CONFIG": str(folder / "berth.toml"),
    }

    failed = []
    for text in ("berth up --fake-gpus 1xA100-80G", *BLOCKS[page], "berth down --cancel"):
        if failed and text in BLOCKS[page]:
            continue  # the queue goes down all the same
        done = subprocess.run(
            ["bash", "-ec", text],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != 0:
            failed.append(f"{text}\n{done.stdout}{done.stderr}")
    assert not failed, "\n".join(failed)


def test_a_how_to_is_short_and_has_a_title() -> None:
    assert len(PAGES) >= 20
    texts = {page.stem: page.read_text().split("---\n", 2)[-1].lstrip() for page in PAGES}
    assert [name for name, text in texts.items() if not text.startswith("# ")] == []
    assert [name for name, text in texts.items() if len(text.split()) > 150] == []
