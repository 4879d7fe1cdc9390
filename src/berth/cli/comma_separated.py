"""Options whose value is several names, separated by commas."""

from __future__ import annotations

from berth.errors import SettingError


def names_of(text: str) -> tuple[str, ...]:
    """Split such a value; the names are in their order, without the spaces around them; empty ones are left out."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def policies_of(text: str) -> list[str]:
    """The value of `--policies`, split. Raises SettingError if it names none, or one twice."""
    names = list(names_of(text))
    if not names:
        raise SettingError(
            f"--policies '{text}' names none; expected names that `berth policies` lists: A,B,…"
        )
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise SettingError(f"--policies names '{twice}' twice; name each policy once")
    return names
