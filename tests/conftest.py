"""What every test may ask for."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from tests.examples import ALL, examples
from tests.interpreted import interpret

# How long an example takes says more of the machine than of the code.
settings.register_profile("berth", deadline=None, max_examples=examples(100))
settings.load_profile("berth")

# pytest loads readline, which sets them for the workers of pytest-xdist: a table would be 80 columns wide there alone.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# A script's background jobs ignore interruptions, and so would each command that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A queue of this machine, and its history, would answer where a folder without any is meant.
os.environ.setdefault("BERTH_STATE", os.path.join(tempfile.gettempdir(), f"berth-no-queue-{os.getpid()}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Interpret what takes long to compile, unless something slow is asked of it."""
    if not ALL and not any(item.get_closest_marker("slow") for item in session.items):
        interpret()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which Slurm was tested on, where it was another than this machine's."""
    if root := os.environ.get("BERTH_TEST_SLURM"):
        from tests.other_slurms import version_of

        terminalreporter.write_line(f"Slurm of these tests: {version_of(Path(root))} in {root}")


_ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """Finds a real trace by its path in the folder of test data; skips the test where it is not there."""
    folder = Path(os.environ.get("BERTH_TEST_DATA") or _ROOT.parent / "shared" / "data")

    def find(path: str) -> Path:
        found = folder / path
        if not found.exists():
            pytest.skip(f"no {path} in {folder}; name the folder of test data in BERTH_TEST_DATA")
        return found

    return find
