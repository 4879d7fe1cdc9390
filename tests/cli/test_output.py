"""Rows of a command as a table, CSV and JSON, as wide and as plain as the environment says."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from berth.cli import main
from berth.cli.app import app, load
from berth.cli.commands import COMMANDS
from berth.cli.output import console, printed
from berth.cli.snapshot_table import snapshot_tables
from berth.live.driver.snapshot import Gpu, LiveJob, Snapshot, Tenant

ROWS = [
    {"name": "=cmd()", "gpus": 2, "use": None, "nodes": ["a", "b"], "done": True},
    {"name": "ann, the first", "gpus": 3, "use": 0.5, "nodes": [], "done": False},
]


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run berth as a process of its own, which is what a pipe and a completion script see."""
    environment = {**os.environ, **variables}
    code = "import sys; sys.argv[0] = 'berth'; from berth.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, env=environment, check=False
    )


def test_rows_are_csv_that_no_spreadsheet_computes(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(False, ROWS)
    assert list(csv.reader(io.StringIO(capsys.readouterr().out))) == [
        ["name", "gpus", "use", "nodes", "done"],
        ["'=cmd()", "2", "", '["a", "b"]', "True"],
        ["ann, the first", "3", "0.5", "[]", "False"],
    ]


def test_json_is_the_whole_answer(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"by": ["user"], "rows": ROWS}
    assert printed(True, ROWS, answer)
    assert json.loads(capsys.readouterr().out) == answer
    assert not printed(None, ROWS)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """Each command's name with its options."""
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))
    if path and not hasattr(command, "commands"):
        yield (
            " ".join(path),
            {option for each in command.params for option in each.opts + each.secondary_opts},
        )


def test_every_command_that_lists_rows_prints_them_in_every_form() -> None:
    """A command without --csv prints sentences, a stream, or what it changed, and no table."""
    found = {key: options for name in COMMANDS for key, options in commands(load(name), (name,))}
    assert {name for name, options in found.items() if "--json" in options and "--csv" not in options} == {
        "job",
        "train",
        "run",
        "history undo",
        *(f"import {name.rpartition(' ')[2]}" for name in found if name.startswith("import ")),
        *(f"partition {name}" for name in ("exec", "create", "watch", "resize")),
        "slurm report",
        *("submit", "logs", "wait", "cancel", "hold", "release", "edit", "requeue", "why", "policy"),
        *("drain", "undrain", "up", "jupyter", "down", "suspend", "resume"),
    }
    assert not {name for name, options in found.items() if "--csv" in options and "--json" not in options}


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ("trace formats", lambda told: told["formats"] + told["synthetic"] + told["public"]),
        ("trace describe synthetic:demo?jobs=20", lambda told: [told]),
        (
            "experiment utilisation synthetic:demo?jobs=20 --seeds 1 --policies fifo+first-fit,fifo+best-fit",
            lambda told: told["runs"],
        ),
    ],
)
def test_the_rows_of_a_table_are_those_of_its_json(words: str, rows: Any) -> None:
    said = {
        form: CliRunner().invoke(app, [*words.split(), f"--{form}"], catch_exceptions=False).stdout
        for form in ("json", "csv")
    }
    listed, found = rows(json.loads(said["json"])), list(csv.DictReader(io.StringIO(said["csv"])))
    assert len(found) == len(listed) > 0
    for row, told in zip(found, listed, strict=True):
        names = [name for name in told if isinstance(told[name], (str, int)) and name != "bad_rows"]
        assert names
        assert [row[name] for name in names] == [str(told[name]) for name in names]


def test_a_table_is_as_wide_as_columns_says_and_has_no_style_without_colour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    assert console().width == 60
    monkeypatch.setenv("COLUMNS", "wide")
    assert console().width == 400
    for told, codes in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", told)
        monkeypatch.setenv("FORCE_COLOR", "1")
        screen = console()
        with screen.capture() as captured:
            screen.print("answer", style="bold red")
        assert ("\x1b[" in captured.get()) == codes


def test_what_users_wrote_between_brackets_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    why = "annotation berth.dev/models is '[/red]' :smile: [bold]"
    job = LiveJob("n/[a]", "u", "[a]", "held", 1, 1000, 0, 0, None, why=why)
    console().print(snapshot_tables(Snapshot(0, jobs=(job,), waiting=1, notes=("quota '[/x]' is odd",))))
    shown = capsys.readouterr().out
    assert "n/[a]" in shown
    assert why in shown
    assert "quota '[/x]' is odd" in shown


def test_a_tenant_with_a_promise_is_shown_as_measured_too(capsys: pytest.CaptureFixture[str]) -> None:
    tenant = Tenant("7", "ann", "new", 1000, 2048, promise_mib=1024, max_mib=4096, measured=True)
    console().print(snapshot_tables(Snapshot(0, gpus=(Gpu("n", 0, "A100-80G", 81_920, tenants=(tenant,)),))))
    shown = " ".join(capsys.readouterr().out.split())
    assert "7 (1G promised, 2G granted, at most 4G, measured)" in shown


def test_an_interruption_whose_cleaning_up_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: str) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("generator didn't stop after throw()")

    monkeypatch.setattr("berth.cli.app.load", fail)
    monkeypatch.setattr(sys, "argv", ["berth", "policies"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capfd.readouterr().err) == (130, "berth: interrupted\n")


def test_a_disk_with_a_fault_is_not_blamed_on_standard_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("berth.cli.app.load", fail)
    monkeypatch.setattr(sys, "argv", ["berth", "policies"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capfd.readouterr().err) == (
        2,
        "berth: Input/output error while a file was read or written; the kernel's log (dmesg) names the disk with the "
        "fault\n",
    )


def command_in(tmp_path: Path) -> dict[str, str]:
    """The environment in which `berth` is the one under test."""
    (tmp_path / "berth").write_text(
        f"#!{sys.executable}\nimport sys\nsys.argv[0] = 'berth'\nfrom berth.cli import main\nmain()\n"
    )
    (tmp_path / "berth").chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def completed(tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words, by the script that `berth --install-completion` installs."""
    script = (
        'source <(_BERTH_COMPLETE=source_bash berth)\nCOMP_WORDS=(berth "$@")\nCOMP_CWORD=$#\n'
        '_berth_completion berth\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", *words],
        capture_output=True,
        text=True,
        check=True,
        env=command_in(tmp_path),
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_and_their_values(tmp_path: Path) -> None:
    assert completed(tmp_path, "polic") == ["policies", "policy"]
    assert completed(tmp_path, "stats", "--cs") == ["--csv"]
    assert completed(tmp_path, "slurm", "run", "--mode", "") == ["advise", "place"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_zsh_completes_commands_and_the_values_of_options(tmp_path: Path) -> None:
    script = (
        "compdef() { }\n_arguments() { print -r -- $@ }\nsource <(_BERTH_COMPLETE=source_zsh berth)\n"
        "words=(berth polic); CURRENT=2; _berth_completion\n"
        'words=(berth slurm run --mode ""); CURRENT=5; _berth_completion'
    )
    done = subprocess.run(
        ["zsh", "-f", "-c", script], capture_output=True, text=True, check=True, env=command_in(tmp_path)
    )
    commands, modes = done.stdout.splitlines()
    assert done.stderr == ""
    assert re.findall(r'"(\w+)":', commands) == ["policies", "policy"]
    assert modes == '*: :(("advise" "place"))'
