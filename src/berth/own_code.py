"""What a name such as `my.module:thing` stands for: a policy, metric, reader or model of the user's own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from berth.errors import BerthError, MissingExtraError


def named_thing(name: str, kind: str, raises: type[BerthError]) -> Any:
    """The object of this name. Raises `raises` if there is none, and MissingExtraError if its module needs an extra."""
    module_name, _, attribute = name.partition(":")
    missing = f"no {kind} '{name}': module '{module_name}'"
    try:
        module = import_module(module_name)
    except ImportError as error:
        if extra := MissingExtraError.of(error):
            raise extra from error
        raise raises(
            f"{missing} cannot be imported: {error}; run berth where Python finds it, or set PYTHONPATH"
        ) from error
    except Exception as error:
        raise raises(f"{missing} fails when it is imported: {type(error).__name__}: {error}") from error
    if not attribute or not hasattr(module, attribute):
        own = ", ".join(key for key in vars(module) if not key.startswith("_"))
        raise raises(f"{missing} has no '{attribute}'; it has {own or 'no names'}")
    return getattr(module, attribute)
