"""Mistakes that one makes with accounting, from the command line: one line that says what to do, and status 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BERTH = Path(sys.executable).parent / "berth"


def berth(*words: object) -> tuple[int, str, str]:
    """Status, output and errors of a command."""
    done = subprocess.run([BERTH, *map(str, words)], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:////tmp/x.db", "slurmdbd keeps its jobs in MySQL or MariaDB, not in 'sqlite'"),
        ("postgresql://a:secret@h/d", "slurmdbd keeps its jobs in MySQL or MariaDB, not in 'postgresql'"),
        ("mysql+pymysql://a:secret@h:port/d", "no address of a database"),
        ("odd", "no address of a database"),
    ],
)
def test_an_address_that_is_no_slurmdbds_is_told_in_a_line(tmp_path: Path, url: str, told: str) -> None:
    pytest.importorskip("sqlalchemy", reason="the extra slurm is not installed")
    wanted = "expected mysql+pymysql://user:password@host/database"
    found = berth("import", "slurmdbd", url, "--history", tmp_path / "h")
    assert found == (2, "", f"berth: {told}; {wanted}\n")
