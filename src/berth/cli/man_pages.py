"""Manual pages of all commands, from the table of commands and their own options.

`python -m berth.cli.man_pages FOLDER` writes them; the wheel carries them in share/man/man1, where `man` looks beside
the programs on the PATH.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from berth.cli.app import app, commands_of, load, written
from berth.cli.commands import COMMANDS, PAPERS
from berth.version import __version__

FILES = """\
.TP
.I ~/.config/berth/berth.toml\\fR, \\fI/etc/berth/berth.toml
Defaults of \\fBberth up\\fR and \\fBberth submit\\fR.
"""


def pages() -> dict[str, str]:
    """The text of each page, by its file: one for `berth`, one for each command of the table."""
    commands = {name: load(name) for name, target in COMMANDS.items() if target != PAPERS}
    summaries = {name: command.help.partition("\n\n")[0] for name, command in commands.items()}
    overview = "".join(
        f".TP\n.BR berth\\-{_roff(name)} (1)\n{_roff(summary)}\n" for name, summary in summaries.items()
    )
    made = {
        "berth.1": _page("berth", "pack, partition and account for shared GPUs", [])
        + f".SH SYNOPSIS\n.B berth\n[OPTIONS] COMMAND [ARGUMENTS]\n.SH COMMANDS\n{overview}"
        + f".SH OPTIONS\n{_options(_whole().params)}.SH FILES\n{FILES}"
    }
    for name, command in commands.items():
        found = list(commands_of(command, f"berth {name}"))
        made[f"berth-{name}.1"] = _page(f"berth-{name}", summaries[name], found)
    return made


def write(folder: Path) -> list[Path]:
    """Write the pages to a folder, which is made; the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, text in pages().items():
        (folder / name).write_text(text, "utf-8")
        files.append(folder / name)
    return files


def _whole() -> Any:
    import typer

    return typer.main.get_command(app)


def _page(title: str, summary: str, found: list[tuple[str, Any]]) -> str:
    text = f'.TH {_roff(title).upper()} 1 "" "berth {__version__}" "berth"\n'
    text += f".SH NAME\n{_roff(title)} \\- {_roff(summary.rstrip('.'))}\n"
    for name, command in found:
        usage = " ".join(written(each) for each in command.params if each.param_type_name == "argument")
        text += f".SH {'SYNOPSIS' if len(found) == 1 else _roff(name).upper()}\n"
        text += f".B {_roff(name)}\n{_roff(f'[OPTIONS] {usage}'.strip())}\n.PP\n"
        paragraphs = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
        text += ".PP\n".join(f"{_roff(part)}\n" for part in paragraphs) + _options(command.params)
    return text


def _options(parameters: list[Any]) -> str:
    text = ""
    for each in parameters:
        default = each.default
        shown = "" if default in (None, "", ()) or default is False or each.required else f" [{default}]"
        help_text = " ".join(str(getattr(each, "help", "") or "").split())
        text += f".TP\n.B {_roff(written(each))}\n{_roff(help_text + shown) or chr(92) + '&'}\n"
    return text


def _roff(text: str) -> str:
    """Text with what troff would take for its own escaped."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
