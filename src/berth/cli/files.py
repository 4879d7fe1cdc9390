"""Files that a command leaves behind."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from berth.counts import counted
from berth.errors import SettingError
from berth.files import write_whole

if TYPE_CHECKING:
    from berth.report import Report


def checked_place(path: Path, ending: str = "") -> Path:
    """The same path; SettingError where no file of this ending can be written, before the work that it is to hold."""
    if not path.name.endswith(ending):
        raise SettingError(f"{path}: expected a name that ends in {ending}")
    folder = path.parent
    if not folder.is_dir():
        raise SettingError(f"{path}: there is no folder {folder}; make it first")
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise SettingError(f"{path}: {'is a folder' if path.is_dir() else f'{folder} cannot be written to'}")
    return path


def made_folder(out: Path) -> Path:
    """The folder, made if it is not there; SettingError if it is a file or cannot be made."""
    if out.exists() and not out.is_dir():
        raise SettingError(f"--out {out} is a file; name a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingError(
            f"--out {out} cannot be made ({reason}); name a folder that can be written"
        ) from error
    if not os.access(out, os.W_OK):
        raise SettingError(f"--out {out} cannot be written to; name a folder that can be written")
    return out


def write_results(out: Path, report: Report, numbers: object) -> list[Path]:
    """Write the page of an experiment and its numbers into a folder; returns both files, each whole."""
    from berth.report import write

    page, answer = made_folder(out) / "report.html", out / "result.json"
    write(report, page)
    write_whole(answer, json.dumps(numbers, allow_nan=False, indent=1) + "\n")
    return [page, answer]


def command_line() -> str:
    """The command that runs, as one could type it."""
    return shlex.join(["berth", *sys.argv[1:]])


@contextmanager
def interruption_explained(out: Path | None, folder: str = "runs") -> Iterator[None]:
    """Make the folder of an experiment's runs; on an interruption say how many are in its `folder`."""
    if out is not None:
        made_folder(out)  # one that cannot be written is refused before the work
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            kept = len(list((out / folder).rglob("*.parquet")))
            print(
                f"berth: {counted(kept, 'finished run is', 'finished runs are')} in {out / folder}; the same command"
                " continues from there",
                file=sys.stderr,
            )
        raise
