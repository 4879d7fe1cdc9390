"""The list of all commands, which is drawn without Typer, is what Typer draws."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer.rich_utils

from berth.cli.commands import application
from berth.cli.overview import is_meant, print_overview


@pytest.fixture
def _colours_are_kept() -> Iterator[None]:
    kept = typer.rich_utils.COLOR_SYSTEM
    yield
    typer.rich_utils.COLOR_SYSTEM = kept


@pytest.mark.usefixtures("_colours_are_kept")
@pytest.mark.parametrize("told", ["", "FORCE_COLOR", "NO_COLOR"])
def test_the_overview_is_what_typer_draws(
    told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    if told:
        monkeypatch.setenv(told, "1")
    if told == "NO_COLOR":  # on a terminal, where it rules out bold too
        monkeypatch.setenv("FORCE_COLOR", "1")
    app = application()
    for columns in (30, 60, 80, 100, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        app(["--help"], prog_name="berth", standalone_mode=False)
        of_typer = capsys.readouterr().out
        print_overview()
        assert capsys.readouterr().out == of_typer
        assert ("\x1b[" in of_typer) == (told == "FORCE_COLOR")


def test_what_typer_alone_can_draw_is_left_to_it() -> None:
    assert [is_meant(words, {}) for words in ([], ["-h"], ["--help"], ["-q", "-h"], ["compare", "-h"])] == [
        *(True, True, True, False, False)
    ]
    assert not is_meant(["--help"], {"_BERTH_COMPLETE": "complete_bash"})
    assert not is_meant(["--help"], {"TERMINAL_WIDTH": "50"})


@pytest.mark.parametrize(("words", "status"), [([], 2), (["--help"], 0), (["-V"], 0)])
def test_neither_typer_nor_numpy_is_loaded_for_it(words: list[str], status: int) -> None:
    code = (
        "import atexit, json, sys; from berth.cli import main\n"
        "loaded = lambda: sorted({'typer', 'numpy', 'berth.cli.compare'} & set(sys.modules))\n"
        "atexit.register(lambda: print(json.dumps(loaded()), file=sys.stderr))\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stderr)) == (status, [])
