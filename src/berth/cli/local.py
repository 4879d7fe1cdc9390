"""The commands of the local queue as Typer shows them in its help; they run without it (`berth.cli.main`)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from berth.cli.output import AsJson, Form, Format, printed
from berth.live.local.words import COMMANDS, FORMAT, JSON, Command

__all__ = ["add_commands", "top"]


def top(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print once, as JSON, what the tiles and the queue show.")
    ] = False,
) -> None:
    """Show this machine's queue live: a tile per GPU, the jobs below, keys to cancel, hold and show."""
    from berth.errors import LiveError

    if as_json:
        from berth.live.local.client import top_json

        top_json()
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # Textual draws on standard error
        raise LiveError("berth top needs a terminal; berth status or berth top --json print it once")
    from berth.live.local.top import Top

    Top().run()


def add_commands(app: typer.Typer) -> None:
    """Add each command with its flags, made from what the parser goes by; and `top`, which needs Textual."""
    app.command("top")(top)
    for command in COMMANDS.values():
        app.command(command.name, context_settings={"allow_interspersed_args": not command.ordered})(
            _shown(command)
        )


def _shown(command: Command) -> Callable[..., None]:
    """A function with the command's flags as parameters, which Typer reads."""

    def run(**values: Any) -> None:
        from berth.live.local.client import main, rows

        form = values.get("form", Form.TABLE)
        if form in (Form.CSV, Form.PARQUET):
            printed(form, False, rows(sys.argv[1:]))
            return
        raise typer.Exit(main(sys.argv[1:]) or 0)

    parameters = []
    if command.operands:
        optional = command.operands.startswith("[")
        shown = typer.Argument(metavar=command.operands.strip("[]") + "…", help=_operand_help(command))
        kind = Annotated[list[str] | None, shown] if optional else Annotated[list[str], shown]
        parameters.append(_parameter("operands", kind, None if optional else inspect.Parameter.empty))
    for flag in command.flags:
        if flag is JSON:
            parameters.append(_parameter("as_json", AsJson, False))
            continue
        if flag is FORMAT:
            parameters.append(_parameter("form", Format, Form.TABLE))
            continue
        names = [flag.name, *filter(None, [flag.short])]
        if flag.metavar:
            option = typer.Option(*names, metavar=flag.metavar, help=flag.help)
            kind = Annotated[list[str] | None, option] if flag.repeats else Annotated[str | None, option]
            parameters.append(_parameter(flag.key, kind, None))
        else:
            parameters.append(
                _parameter(flag.key, Annotated[bool, typer.Option(*names, help=flag.help)], False)
            )
    run.__name__ = command.name
    run.__doc__ = command.help
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _operand_help(command: Command) -> str:
    if command.name == "submit":
        return "The command and its arguments, a script, or - for one job per line of standard input."
    if command.name == "policy":
        return "The policy, such as easy+priority+best-fit; see `berth policies`."
    if command.operands.strip("[]") == "GPU":
        return "Numbers of GPUs, as `berth status` shows them."
    return "Job ids as shown by `berth queue`: 12, or 12_3 for one array task."
