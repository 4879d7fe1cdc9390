"""Every command in one place; a command's module is imported when it is meant, and what it needs when it runs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any, Final

import typer

from berth.cli.overview import print_version
from berth.errors import SettingError, install_command

__all__ = ["COMMANDS", "OF_PAPERS", "application"]

COMMANDS: Final = {
    "simulate": "compare:simulate",
    "compare": "compare:compare",
    "policies": "policies:policies",
    "trace": "trace:app",
    "import": "importing:app",
    "history": "history:app",
    "stats": "stats:stats",
    "job": "job:job",
    "report": "stats:report",
    "cost": "cost:cost",
    "digest": "digest:digest",
    "plot": "stats:plot",
    "applications": "stats:applications",
    "profile": "profile:app",
    "predict-wait": "waiting:app",
    "advise": "advice:advise",
    "sample": "sampling:sample",
    "collect": "sampling:collect",
    "train": "train:train",
    "doctor": "doctor:doctor",
    "run": "partition:run",
    "partition": "partition:app",
    "k8s": "kubernetes:app",
    "slurm": "slurm:app",
    "console": "console:app",
}
"""Each command's function, or the Typer of a group, as MODULE:NAME; help lists them in this order."""

OF_PAPERS: Final = ("experiment", "interference")
"""Commands of the package berth-papers, which declares them as entry points of the group `berth.commands`."""

_SETTINGS: Final[dict[str, dict[str, Any]]] = {"run": {"allow_interspersed_args": False}}


def application(only: str = "") -> typer.Typer:
    """The command line: with all commands, or with one of COMMANDS alone, so that no other's module is loaded."""
    app = typer.Typer(
        help="berth packs, partitions and accounts for shared GPUs.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_berth)
    if os.environ.get("NO_COLOR"):  # Rich alone would still print bold
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None
    for name, found in _meant(only):
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name, context_settings=_SETTINGS.get(name))(found)
    if not only:
        import_module("berth.cli.local").add_commands(app)
    _join_lines(app)
    return app


def _meant(only: str) -> Iterator[tuple[str, Any]]:
    """Each command with its function or Typer, those that other installed packages declare last; or one of them."""
    for name, place in COMMANDS.items():
        if only in ("", name):
            module, _, attribute = place.partition(":")
            yield name, getattr(import_module(f"berth.cli.{module}"), attribute)
    if only in COMMANDS:
        return
    declared = {found.name: found for found in entry_points(group="berth.commands")}
    if only and only not in declared:
        raise SettingError(
            f"`berth {only}` is a part of berth-papers; install it with: {install_command(package='berth-papers')}"
        )
    for name in [only] if only else sorted(declared):
        yield name, declared[name].load()


def _join_lines(app: typer.Typer) -> None:
    """Let the paragraphs of docstrings flow: Typer would keep their line breaks, at any width of the terminal."""
    for command in app.registered_commands:
        paragraphs = inspect.cleandoc(command.help or command.callback.__doc__ or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for group in app.registered_groups:
        if group.typer_instance:
            _join_lines(group.typer_instance)


def _version(wanted: bool) -> None:
    if wanted:
        print_version()
        raise typer.Exit


def _berth(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version and stop.", callback=_version, is_eager=True),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Show no progress on standard error; errors and warnings stay."),
    ] = False,
) -> None:
    if quiet:
        os.environ["BERTH_QUIET"] = "1"
