"""`berth history …`: what was imported, taking it back, and speeds that were measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.history_folder import NamedHistory
from berth.cli.output import AsJson, JsonOrCsv, printed
from berth.counts import counted
from berth.history.jobs.measured_pairs import measured_speeds, write_measurements
from berth.history.values.durations import moment_text

if TYPE_CHECKING:
    from berth.history.store.reader import PastImport

app = typer.Typer(help="Look at imports, undo one, and write measured speeds.", no_args_is_help=True)


@app.command("imports")
def list_imports(history: NamedHistory = Path("history"), as_json: JsonOrCsv = None) -> None:
    """List the imports that can be undone, the newest last."""
    from berth.history.store.folder import open_history

    past = open_history(history, must_exist=True).index().imports
    if printed(as_json, [_answer(each) for each in past]):
        return
    for each in past:
        print(_line(each))
    if not past:
        print("no import can be taken back")


@app.command()
def undo(history: NamedHistory = Path("history"), as_json: AsJson = False) -> None:
    """Undo the last import that changed something; repeat to undo the one before."""
    from berth.history.store.folder import open_history

    last = open_history(history, must_exist=True).undo()
    print(json.dumps(_answer(last), ensure_ascii=False) if as_json else f"took back {_line(last)}")


@app.command()
def speeds(
    alone: Annotated[Path, typer.Option(help="File for what applications use alone.")] = Path("single.csv"),
    pairs: Annotated[Path, typer.Option(help="File for speeds of pairs on one GPU.")] = Path("pairs.csv"),
    history: NamedHistory = Path("history"),
) -> None:
    """Write how fast applications advanced alone and in pairs on one GPU, for `berth interference fit`."""
    from berth.history.store.folder import open_history
    from berth.profiles import Profiles

    found = measured_speeds(open_history(history, must_exist=True).records())
    profiles = Profiles.of_history(history, wrong=[]).of_runs_alone(begun=False)
    print(f"wrote {counted(write_measurements(found, profiles, alone, pairs), 'pair')} to {pairs}")


def _line(past: PastImport) -> str:
    return f"{moment_text(past.at_ms)}  {past.what}: imported {past.imported:,}, updated {past.updated:,}"


def _answer(past: PastImport) -> dict[str, object]:
    return {"what": past.what, "at_ms": past.at_ms, "imported": past.imported, "updated": past.updated}
