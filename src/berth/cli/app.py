"""The command line with every command, as help, the shell's completion and tests need it."""

from __future__ import annotations

from berth.cli.commands import application

__all__ = ["app"]

app = application()
