"""Slurm's configuration files as lines that can be replaced, read in Slurm's order with what they include."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from berth.errors import SettingError

_INCLUDE = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)
_PAIR = re.compile(r'(?<!\S)(\w+)[-+*/]?=("[^"]*"|\S+)')
_LINE = re.compile(r"(?:(?:[^\n#\\]|\\[^\n])*\\\n)*[^\n]*(?:\n|\Z)")
"""Slurm takes comments away before it joins lines; of two backslashes the second is a letter."""
_COMMENT = re.compile(r"(?<!\\)#.*", re.DOTALL)
_SPACED = re.compile(r'("[^"]*")|\s*([-+*/]?=)\s*')
"""A quoted value, which stays, or an equals sign, around which Slurm skips spaces."""


class Line:
    """One line of a file, with the lines that continue it."""

    def __init__(self, text: str) -> None:
        self.text = text
        """With its line breaks; write it to change the file."""

    @property
    def content(self) -> str:
        """What Slurm reads of it: no comment, no line breaks, no spaces around equals signs."""
        text = _COMMENT.sub("", re.sub(r"(?<!\\)\\\n\s*", " ", self.text)).strip()
        return _SPACED.sub(lambda found: found[1] or found[2], text)

    @property
    def comment(self) -> str:
        """Its comment as it stands behind other content; empty if it has none."""
        found = _COMMENT.search(self.text)
        return "" if found is None else f" {found[0].strip()}"

    @property
    def pairs(self) -> dict[str, str]:
        """Its `Key=value` pairs, with keys in small letters."""
        return {key.lower(): value.strip('"') for key, value in _PAIR.findall(self.content)}

    @property
    def key(self) -> str:
        """Its first key in small letters; empty if it has none."""
        return next(iter(self.pairs), "")


def lines_of(text: str) -> list[Line]:
    """The lines of a file."""
    return [Line(each) for each in _LINE.findall(text) if each]


def with_pairs(content: str, pairs: Mapping[str, str]) -> str:
    """The content of a line with these values in place of its own, or behind them."""
    for key, value in pairs.items():
        pattern = re.compile(rf'(?<!\S){key}=("[^"]*"|\S+)', re.IGNORECASE)
        found = pattern.search(content)
        if found is not None:
            content = f"{content[: found.start(1)]}{value}{content[found.end(1) :]}"
        else:
            content = f"{content} {key}={value}"
    return content


def included(text: str, folder: Path, cluster: str) -> str | None:
    """The file that a line includes, relative to the folder of slurm.conf if it is in there; None: it includes none."""
    found = _INCLUDE.match(text)
    if found is None:
        return None
    path = folder / found[1].replace("%c", cluster)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


class SiteConfig:
    """One of Slurm's configuration files with all that it includes."""

    def __init__(self, name: str, texts: Mapping[str, str], folder: Path, cluster: str) -> None:
        """`texts` has files by name, relative to `folder` if they are in there. SettingError if one is missing."""
        self._name = name
        self._files: dict[str, list[Line]] = {}
        self.lines: list[Line] = []
        """All lines in the order in which Slurm reads them."""
        self._read(name, texts, folder, cluster)

    def _read(self, name: str, texts: Mapping[str, str], folder: Path, cluster: str) -> None:
        if name in self._files:
            raise SettingError(f"{self._name} includes {name} twice; include it once, and run install again")
        lines = self._files[name] = lines_of(texts.get(name, ""))
        for line in lines:
            other = included(line.content, folder, cluster)
            if other is None:
                self.lines.append(line)
            elif other in texts:
                self._read(other, texts, folder, cluster)
            else:
                raise SettingError(
                    f"{name} includes {other}, which cannot be read here; run install where it can"
                )

    def texts(self) -> dict[str, str]:
        """The files as they are now."""
        return {name: "".join(line.text for line in lines) for name, lines in self._files.items()}

    def value(self, key: str) -> str:
        """What a setting is; the last line of it counts."""
        line = self._line_of(key)
        return "" if line is None else line.pairs[key.lower()]

    def _line_of(self, key: str) -> Line | None:
        return next((line for line in reversed(self.lines) if line.key == key.lower()), None)

    def set_value(self, key: str, value: str) -> None:
        """Give a setting this value where it stands, or on a line of its own at the end."""
        line = self._line_of(key)
        if line is not None and line.pairs[key.lower()] != value:
            line.text = f"{with_pairs(line.content, {key: value})}{line.comment}\n"
        elif line is None:
            self.add(f"{key}={value}")

    def add_items(self, key: str, items: Sequence[str]) -> None:
        """Add what a list lacks of these items."""
        has = [each for each in self.value(key).split(",") if each]
        self.set_value(key, ",".join([*has, *(each for each in items if each not in has)]))

    def add(self, text: str) -> None:
        """Add a line at the end of the file itself."""
        lines = self._files[self._name]
        if lines and not lines[-1].text.endswith("\n"):
            lines[-1].text += "\n"
        line = Line(text + "\n")
        lines.append(line)
        self.lines.append(line)
