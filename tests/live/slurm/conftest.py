"""What tests of berth beside Slurm may ask for."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that jobs of other users get to, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="berth-slurm-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
