"""Which application a job ran: rules over what it says of itself, read from a small file.

A rule is a line `application: pattern`; a pattern is a regular expression, looked for without regard to case.
The first that matches wins. The comment is looked at first, then the name, then the command (container image,
script, executable path, command line): what a user says of a job counts more than what its command looks like.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from berth.errors import SettingError, cause_of

_LINE = re.compile(r"([^\s:#][^:#]*?)\s*:\s*(\S.*)")


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules in the order in which they are tried."""

    names: tuple[str, ...]
    pattern: re.Pattern[str]
    """All of them as one, with a group `r0`, `r1` … for each; it looks ahead, so that no match hides another."""

    def application(self, comment: str, name: str, command: str) -> str:
        """The application's name; empty where no rule knows it."""
        for text in (comment, name, command):
            if text and (found := self._match(text)):
                return found
        return ""

    def _match(self, text: str) -> str:
        best = -1
        for found in self.pattern.finditer(text):
            index = int((found.lastgroup or "r0")[1:])
            best = index if best < 0 else min(best, index)
        return self.names[best] if best >= 0 else ""


def read_rules(path: Path | None = None) -> Rules:
    """The rules of a file; by default those that ship with berth. SettingError names a bad line."""
    if path is None:
        return _shipped()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read as rules for applications: {cause_of(error)}") from error
    return _rules(text.splitlines(), str(path))


@lru_cache(maxsize=1)
def _shipped() -> Rules:
    source = files("berth.history.values") / "rules" / "applications.rules"
    return _rules(source.read_text(encoding="utf-8").splitlines(), "applications.rules")


def _rules(lines: Sequence[str], where: str) -> Rules:
    names: list[str] = []
    patterns: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise SettingError(f"{where}, line {number}: {line.strip()!r}; expected 'application: pattern'")
        try:
            compiled = re.compile(found[2], re.IGNORECASE)
        except re.error as error:
            raise SettingError(f"{where}, line {number}: {found[2]!r} is no pattern: {error}") from error
        if compiled.groups or compiled.match(""):
            raise SettingError(
                f"{where}, line {number}: {found[2]!r}; expected a pattern without groups that matches no "
                "empty text; write (?:a|b) for (a|b)"
            )
        names.append(found[1])
        patterns.append(f"(?P<r{len(patterns)}>{found[2]})")
    if not names:
        raise SettingError(f"{where} holds no rule; expected lines 'application: pattern'")
    return Rules(tuple(names), re.compile(f"(?={'|'.join(patterns)})", re.IGNORECASE))
