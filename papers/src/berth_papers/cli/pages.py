"""What commands of experiments print and write: answers first, then tables, pages and numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from berth.cli.output import console

if TYPE_CHECKING:
    from berth.report import Chapter


def write_chapters(
    out: Path,
    title: str,
    trace: str,
    cluster: str,
    chapters: Sequence[Chapter],
    answer: object,
    answers: Sequence[str] = (),
) -> list[Path]:
    """Write an experiment's chapters as a report and its answer as JSON into a folder; the files' paths.

    `answers` are the sentences that the page begins with.
    """
    from berth.cli.files import command_line, write_results
    from berth.report import Report

    report = Report(
        title=title,
        command=command_line(),
        trace=trace,
        cluster=cluster,
        chapters=chapters,
        answers=answers,
    )
    return write_results(out, report, answer)


def write_numbers(out: Path, answer: object) -> Path:
    """Write an experiment's answer as JSON into a folder; the file's path."""
    from berth.files import write_whole

    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "result.json", json.dumps(answer, allow_nan=False, indent=1) + "\n")
    return out / "result.json"


def show_answers(answers: Sequence[str]) -> None:
    """Print what was found, before any table."""
    screen = console(soft_wrap=True)
    for sentence in answers:
        screen.print(sentence, highlight=False, markup=False, style="bold")


def show_chapter(chapter: Chapter, written: Sequence[Path]) -> None:
    """Print an experiment's table, and what was written."""
    show_table(chapter.headings, chapter.rows, chapter.title, written, wide=True)


def show_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    written: Sequence[Path] = (),
    *,
    wide: bool = False,
) -> None:
    """Print a table with its first column on the left and the others on the right, and what was written.

    A wide table may be wider than the terminal.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left" if wide else "center")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at else "left")
    for row in rows:
        table.add_row(*row)
    screen = console(soft_wrap=wide)
    screen.print(table)
    for path in written:
        screen.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
