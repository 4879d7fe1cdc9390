"""`berth.toml`: what `berth up` and `berth submit` take where the command line says nothing.

The site's file is /etc/berth/berth.toml, a user's is in ~/.config/berth; a user's value wins. Its tables are `[up]` and
`[submit]`, whose keys are the options, and `[notify]`: `to` and `on` are `--notify` and `--notify-on` of every job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from berth.errors import LiveError

SITE = "/etc/berth/berth.toml"
NOTIFY = {"to": "notify", "on": "notify_on", "smtp": "smtp"}
"""Keys of `[notify]`, and the options of `berth submit` that they are; `smtp` is the mail server, which has none."""
SWITCHES = frozenset(("exclusive", "foreground", "interactive", "mem_shows_max", "no_gpus", "rerun"))
"""Options that are true or false."""
LISTS = frozenset(("notify", "to", "param", "on", "notify_on"))
"""Options that may have several values."""

Flags = dict[str, str | bool | list[str]]


@dataclass(frozen=True, slots=True)
class Setting:
    table: str
    key: str
    value: str | bool | list[str]
    path: str
    where: str
    """The file, and the line if it is known."""


def paths() -> tuple[str, str]:
    """The site's file and the user's; `$BERTH_CONFIG` names another in the place of both."""
    if named := os.environ.get("BERTH_CONFIG"):
        return "", named
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return SITE, os.path.join(base, "berth", "berth.toml")


def settings(options: Mapping[str, Collection[str]]) -> list[Setting]:
    """What both files say, a user's value in the place of the site's.

    `options` are the names of the options of each command that has a table; of an empty list any key is taken. Raises
    LiveError for a file that is no TOML, and for a table or key that there is not.
    """
    tables = {**{name: list(each) for name, each in options.items()}, "notify": list(NOTIFY)}
    found: dict[tuple[str, str], Setting] = {}
    for path in paths():
        for setting in _of_file(path, tables):
            found[setting.table, setting.key] = setting
    return list(found.values())


def flags_of(command: str, options: Collection[str]) -> tuple[Flags, dict[str, str]]:
    """The options that the files give to a command, and the file of each, by its flag."""
    flags: Flags = {}
    files: dict[str, str] = {}
    if not any(map(os.path.exists, paths())):
        return flags, files
    for each in settings({name: options if name == command else () for name in ("up", "submit")}):
        key = each.key if each.table == command else NOTIFY[each.key] if each.table == "notify" else ""
        if key in options:
            flags[key] = each.value
            files[f"--{key.replace('_', '-')}"] = each.where
    return flags, files


def _of_file(path: str, tables: Mapping[str, list[str]]) -> Iterator[Setting]:
    if not path or not os.path.exists(path):
        return
    import tomllib

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        content = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise LiveError(f"{path}: {error}") from error
    for table, values in content.items():
        if table not in tables or not isinstance(values, dict):
            raise LiveError(
                f"{path}: no table [{table}]; there are {', '.join(f'[{name}]' for name in tables)}"
            )
        known = tables[table]
        for written, value in values.items():
            key = written.replace("-", "_")
            if known and key not in known:
                names = ", ".join(name.replace("_", "-") for name in known)
                raise LiveError(f"{path}: [{table}] has no key '{written}'; there are {names}")
            where = f"{path}{_line_of(text, table, written)}"
            yield Setting(table, key, _plain(key, value, f"{where}: [{table}] {written}"), path, where)


def _line_of(text: str, table: str, key: str) -> str:
    """Where a key stands in a file, `, line 3`; empty if it is written in another way than on a line of its own."""
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if words.startswith("["):
            inside = words.partition("]")[0].strip("[ ")
        elif inside == table and re.match(rf"[\"']?{re.escape(key)}[\"']?\s*=", words):
            return f", line {number}"
    return ""


def _plain(key: str, value: object, where: str) -> str | bool | list[str]:
    """A value as the command line has it."""
    if key in SWITCHES:
        if isinstance(value, bool):
            return value
        raise LiveError(f"{where} is {value!r}; expected true or false")
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    texts = isinstance(value, list) and all(isinstance(each, str | int | float) for each in value)
    if isinstance(value, list) and texts and key in LISTS:
        return [str(each) for each in value]
    wanted = "a text or a list of texts" if key in LISTS else "a text or a number"
    raise LiveError(f"{where} is {value!r}; expected {wanted}")
