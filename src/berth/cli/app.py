"""The command line as Typer runs it, made from the table of commands."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from berth.cli.commands import COMMAND_FOLLOWS, COMMANDS, PAPERS


def load(name: str) -> Any:
    """Import a command, or a group of commands; returns what Typer has made of it."""
    found = _declared(name)
    if isinstance(found, typer.Typer):
        _declare(found)
        command: Any = typer.main.get_group(found)
        command.name = name
        return command
    alone = typer.Typer(add_completion=False)
    alone.command(name, context_settings={"allow_interspersed_args": name not in COMMAND_FOLLOWS})(found)
    _declare(alone)
    return typer.main.get_command(alone)


def commands_of(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """A command, or all commands of a group, each with its words, such as `berth trace describe`."""
    if not hasattr(command, "commands") or command.invoke_without_command:  # a group may be a command, too
        yield name, command
    for inner in sorted(getattr(command, "commands", {})):
        yield from commands_of(command.commands[inner], f"{name} {inner}")


def written(parameter: Any) -> str:
    """An option or argument as a user writes it, such as `--gpus, -g N`."""
    named = parameter.metavar or (parameter.name.upper() if not parameter.opts[0].startswith("-") else "")
    if parameter.param_type_name == "argument":
        return str(named)
    return f"{', '.join([*parameter.opts, *parameter.secondary_opts])} {named}".strip()


def _declared(name: str) -> Any:
    """The function of a command, or the Typer of a group, imported."""
    if COMMANDS[name] == PAPERS:
        return _of_papers(name)
    module, _, attribute = COMMANDS[name].partition(":")
    return getattr(import_module(f"berth.cli.{module}"), attribute)


def _of_papers(name: str) -> Any:
    """The function or Typer that berth-papers declares; SettingError if it is not installed."""
    from importlib.metadata import entry_points

    for declared in entry_points(group="berth.commands", name=name):
        return declared.load()
    from berth.errors import SettingError, install_command

    raise SettingError(
        f"`berth {name}` is a part of berth-papers; install it with: {install_command(package=PAPERS)}"
    )


class _Table(UserDict[str, Any]):
    """The commands of the table as a list shows them: without options, which take Typer as long to make as the imports.

    Those of berth-papers are hidden if it is lacking.
    """

    def __getitem__(self, name: str) -> Any:
        if COMMANDS[name] == PAPERS and find_spec("berth_papers") is None:
            return TyperCommand(name, hidden=True)
        found = _declared(name)
        text = found.info.help if isinstance(found, typer.Typer) else inspect.getdoc(found)
        return TyperCommand(name, help=" ".join(str(text).partition("\n\n")[0].split()))


class _Commands(TyperGroup):
    """The commands of the table: a list of them imports all, a use only the one that is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Table(COMMANDS)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the options; a mistake in them ends with one line."""
        with _in_one_line():
            return super().make_context(*args, **extra)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the options before the command; its own words are kept as they are, for another machine."""
        given, ctx.meta[_WORDS], _ = self.make_parser(ctx).parse_args(list(args))
        if given.get("version") and given.get("host") is not None and not ctx.resilient_parsing:
            from berth.cli.remote import run_there

            run_there(given["host"], ["--version"])
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is named, here or on `--host`; a mistake in its words ends with one line."""
        with _in_one_line():
            if ctx.params.get("host") is not None:
                from berth.cli.remote import run_there

                quiet = ["--quiet"] if ctx.params["quiet"] else []
                run_there(ctx.params["host"], [*quiet, *ctx.meta[_WORDS]])
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names, imported, and the arguments behind it."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest


_WORDS = "berth.words"
UsageError: Any = typer.BadParameter.__base__  # Typer itself does not name it


_PLAINER: Final = (
    ("a valid int range", "a whole number"),
    ("a valid float range", "a number"),
    (r" is not in the range x>=(\S+)$", r"; expected \1 or more"),
    (r" is not in the range (\S+)<=x<=(\S+)$", r"; expected \1 to \2"),
    (r"^Got unexpected extra argument\S* \((\S*)\)$", r"'\1' is one argument too many; leave it out"),
    (r"^Got unexpected extra argument\S* \((.*)\)$", r"'\1' are too many arguments; leave them out"),
)
"""What Typer says, and what berth says instead."""


@contextmanager
def _in_one_line() -> Iterator[None]:
    """End with one line and status 2 for a mistake in the words of the command line."""
    try:
        yield
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # which shows the help
            raise
        message = error.format_message().rstrip(".")
        for theirs, ours in _PLAINER:
            message = re.sub(theirs, ours, message)
        path = error.ctx.command_path if error.ctx else "berth"
        print(f"berth: {message}; see: {path} --help", file=sys.stderr)
        raise typer.Exit(2) from error


class _Command(TyperCommand):
    """One command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; of a switch with two names the parser would silently take the last."""
        for parameter in self.params:
            both = {*parameter.opts, *parameter.secondary_opts}
            if parameter.secondary_opts and both <= {*args}:
                raise UsageError(f"{' and '.join(sorted(both))} exclude each other: choose one", ctx)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            error.ctx = error.ctx or ctx  # the parser names no command
            raise


def _declare(group: typer.Typer) -> None:
    """Give commands their class, and let the paragraphs of docstrings flow: Typer would keep their line breaks."""
    for command in group.registered_commands:
        command.cls = _Command
        paragraphs = inspect.cleandoc(command.help or command.callback.__doc__ or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for inner in group.registered_groups:
        if inner.typer_instance:
            _declare(inner.typer_instance)


def _print_version(wanted: bool) -> None:
    if wanted:
        from berth import __version__

        print(__version__)
        raise typer.Exit


if os.environ.get("NO_COLOR"):  # Rich alone would still print bold
    from typer import rich_utils

    rich_utils.COLOR_SYSTEM = None

app = typer.Typer(
    cls=_Commands,
    help="berth packs, partitions and accounts for shared GPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _berth(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Print the version and stop.", callback=_print_version, is_eager=True
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Show no progress on standard error; errors and warnings stay."),
    ] = False,
    host: Annotated[
        str | None,
        typer.Option(metavar="[USER@]MACHINE", help="Run the whole command on another machine, through ssh."),
    ] = None,
) -> None:
    if quiet:
        os.environ["BERTH_QUIET"] = "1"
