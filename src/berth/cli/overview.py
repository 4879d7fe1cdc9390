"""`berth --help`, drawn as Typer draws it but without Typer, whose import takes longer than the drawing.

The texts are in overview.json, which docs/make_reference.py makes from the commands; a test holds both equal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["TEXTS", "is_meant", "print_overview", "print_version"]

TEXTS: Final = Path(__file__).with_name("overview.json")
_OF_TYPER: Final = {"GITHUB_ACTIONS", "PY_COLORS", "TERMINAL_WIDTH", "_TYPER_FORCE_DISABLE_TERMINAL"}
"""Variables that change how Typer draws, and Rich alone does not know."""


def is_meant(words: list[str], environment: Mapping[str, str]) -> bool:
    """Whether these arguments ask for the list of all commands, as drawn here."""
    return words in ([], ["-h"], ["--help"]) and not {"_BERTH_COMPLETE", *_OF_TYPER} & set(environment)


def print_overview() -> None:
    """Print the options that all commands share, and each command with its first sentence."""
    from rich.columns import Columns
    from rich.console import Console
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    texts = json.loads(TEXTS.read_text("utf-8"))
    console = Console(color_system=None if os.environ.get("NO_COLOR") else "auto")

    def panel(title: str, table: Table) -> Panel:
        return Panel(table, title=title, title_align="left", border_style="dim")

    options, commands = (
        Table(show_header=False, expand=True, box=None, pad_edge=False, padding=(0, 1)) for _ in range(2)
    )
    for *names, kind, said in texts["Options"]:
        shown = Text.from_markup(kind, style="bold yellow", overflow="fold")
        options.add_row(*map(Text.from_markup, names), shown, Columns([Text.from_markup(said)]))
    commands.add_column(
        style="bold cyan", no_wrap=True, width=max(len(name) for name, _ in texts["Commands"])
    )
    commands.add_column(ratio=10)
    for name, said in texts["Commands"]:
        commands.add_row(name, Text.from_markup(said))
    console.print(Padding(Text.from_markup(texts["usage"]), 1), style="bold")
    console.print(Padding(Text.from_markup(texts["help"]), (0, 1, 1, 1)))
    console.print(panel("Options", options))
    console.print(panel("Commands", commands))
    console.print()


def print_version() -> None:
    """Print the version that is installed."""
    from berth import __version__

    print(__version__)
