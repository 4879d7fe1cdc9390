"""What TAB offers in real shells and in this process, and that it never waits nor complains."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from berth.cli import completing
from berth.live.local.protocol import decoded, encoded
from tests.command import berth

ROWS = [  # as the queue answers: the fields of a LiveJob in their order
    [job_id, "ann", name, state, 1, 1000, 0, 0, 0, None]
    for job_id, name, state in (
        ("11", "train", "running"),
        ("12_3", "train", "waiting"),
        ("20", "evaluate", "waiting"),
    )
]


@contextmanager
def queue(path: Path, answers: dict[str, dict[str, Any]] | None) -> Iterator[None]:
    """A queue that answers one connection after the other; with None it takes them and says nothing."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        done = threading.Event()

        def serve() -> None:
            while True:
                connection, _ = listening.accept()
                with connection, connection.makefile("rb") as lines:
                    if done.is_set():
                        return
                    if answers is None:
                        done.wait()
                        return
                    for line in lines:
                        asked = decoded(line)
                        connection.sendall(encoded({"ok": True, **answers[asked["do"]]}))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            done.set()
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
            thread.join()


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gpus = [{"index": 0, "model": "A100"}, {"index": 1, "model": "A100"}]
    monkeypatch.setenv("BERTH_SOCKET", str(tmp_path / "socket"))
    monkeypatch.setattr(completing, "ANSWER_S", 60.0)  # a busy machine is no silent queue
    with queue(tmp_path / "socket", {"queue": {"rows": ROWS}, "status": {"gpus": gpus}}):
        yield


def test_a_digit_completes_ids_and_a_letter_names(answering: None) -> None:
    assert completing.active_jobs("1") == [("11", "running, train"), ("12_3", "waiting, train")]
    assert completing.known_jobs("ev") == [("evaluate", "waiting, 20")]
    assert [word for word, _ in completing.active_jobs("")] == ["11", "12_3", "20"]
    assert completing.gpus("1") == [("1", "A100")]


def test_a_policy_is_completed_part_by_part_and_in_lists() -> None:
    assert [word for word, _ in completing.policy("eas")] == ["easy"]
    assert [word for word, _ in completing.policy("easy+fi")] == ["easy+fifo", "easy+first-fit"]
    assert [word for word, _ in completing.policies("fgd,sjf-r")] == ["fgd,sjf-requested"]
    assert all("\n" not in text for _, text in completing.policy(""))


def test_a_queue_that_is_silent_or_down_offers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_SOCKET", str(tmp_path / "socket"))
    assert completing.active_jobs("") == []
    with queue(tmp_path / "socket", None):
        assert completing.active_jobs("") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_offered_what_the_queue_names(answering: None, shell: str) -> None:
    words = {"COMP_WORDS": "berth cancel 1", "COMP_CWORD": "2"}
    words |= {"_TYPER_COMPLETE_ARGS": "berth cancel 1", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = berth(env={**os.environ, **words, "_BERTH_COMPLETE": f"complete_{shell}"})
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"\b1[12](?:_3)?\b", done.stdout) == ["11", "12_3"]


def test_bash_completes_by_the_script_that_berth_prints() -> None:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash here")
    script = 'eval "$(_BERTH_COMPLETE=source_bash berth)"; COMP_WORDS=(berth su); COMP_CWORD=1;'
    script += ' _berth_completion berth; echo "${COMPREPLY[@]}"'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("submit suspend\n", "")


def test_zsh_completes_by_the_script_that_berth_prints() -> None:
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh here")
    script = "compdef() { : }; _arguments() { print -r -- $@ }; "  # what zsh's own completion brings
    script += 'eval "$(_BERTH_COMPLETE=source_zsh berth)"; words=(berth su); CURRENT=2; _berth_completion'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["zsh", "-f", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert (re.findall(r'"(su\w+)":', done.stdout), done.stderr) == (["submit", "suspend"], "")


def test_fish_is_given_a_command_that_it_can_read() -> None:
    script = berth(env={**os.environ, "_BERTH_COMPLETE": "source_fish"}).stdout
    assert script.startswith("complete --command berth --no-files --arguments ")
    assert "_BERTH_COMPLETE=complete_fish" in script
    assert script.count('"') % 2 == script.count("(") - script.count(")") == 0
    if shutil.which("fish"):
        subprocess.run(["fish", "--no-execute", "-c", script], check=True)
