"""The one scontrol that is kept: it answers line by line, and a new one takes over where it has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.errors import LiveError
from berth.live.slurm.controller import run_program
from berth.live.slurm.scontrol import Scontrol

PROGRAM = r"""#!/bin/bash
# As scontrol does with a standard input that is no terminal: it repeats each line behind its prompt.
echo $$ >>"$BEGUN"
printf 'scontrol: '
while read -r line; do
    echo "$line"
    case $line in
    *bad*) echo "Invalid job id specified for job 7" ;;
    *away*) echo "slurm_update error: Unable to contact slurm controller (connect failure)" ;;
    *dies*) exit 1 ;;
    *sleeps*) sleep 60 ;;
    esac
    printf 'scontrol: '
done
"""


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[Scontrol, list[str], Path]]:
    program = tmp_path / "scontrol"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    scontrol = Scontrol({**os.environ, "BEGUN": str(tmp_path / "begun")}, timeout_s=60.0)
    yield scontrol, [str(program)], tmp_path / "begun"
    scontrol.close()


def test_one_scontrol_does_what_one_a_call_would(kept: tuple[Scontrol, list[str], Path]) -> None:
    scontrol, words, begun = kept
    assert scontrol(words, "hold 1\nhold bad\n") == (
        "scontrol: hold 1\nscontrol: hold bad\nInvalid job id specified for job 7\n"
    )
    assert scontrol(words, "release 2\n") == "scontrol: release 2\n"
    assert len(begun.read_text().split()) == 1


def test_a_scontrol_that_ends_tells_no_more_and_the_next_call_has_a_new_one(
    kept: tuple[Scontrol, list[str], Path],
) -> None:
    scontrol, words, begun = kept
    assert scontrol(words, "hold 1\ndies\nhold 3\n") == "scontrol: hold 1\nscontrol: dies\n"
    assert scontrol(words, "hold 3\n") == "scontrol: hold 3\n"
    assert "Unable to contact" in scontrol(words, "away\n")  # slurm.conf may have changed by now
    assert scontrol(words, "hold 4\n") == "scontrol: hold 4\n"
    assert len(begun.read_text().split()) == 3


def test_a_scontrol_that_was_killed_meanwhile_is_begun_anew(kept: tuple[Scontrol, list[str], Path]) -> None:
    scontrol, words, begun = kept
    scontrol(words, "hold 1\n")
    killed = int(begun.read_text())
    os.kill(killed, signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    assert scontrol(words, "hold 2\n") == "scontrol: hold 2\n"
    assert len(begun.read_text().split()) == 2


def test_a_scontrol_that_is_not_there_or_does_not_answer_is_an_answer_that_is_missing(
    kept: tuple[Scontrol, list[str], Path],
) -> None:
    scontrol, words, _ = kept
    with pytest.raises(LiveError, match="there is no /none here"):
        scontrol(["/none"], "hold 1\n")
    hasty = Scontrol({**os.environ, "BEGUN": "/dev/null"}, timeout_s=0.3)
    with pytest.raises(LiveError, match=r"has not answered for 0\.3 s"):
        hasty(words, "sleeps\n")


def test_what_a_program_says_before_it_gives_up_is_one_line_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(
        "#!/bin/sh\necho 'squeue: error: DNS SRV lookup failed' >&2\n"
        "echo 'squeue: fatal: Could not establish a configuration source' >&2\nexit 1\n"
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    said = (
        "squeue: fatal: Could not establish a configuration source; run berth where `scontrol ping` answers"
    )
    with pytest.raises(LiveError) as refused:
        run_program(["squeue"])
    assert str(refused.value) == said
