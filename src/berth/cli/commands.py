"""The one table of commands; help lists them in this order, and a command's module is imported when it is used."""

from __future__ import annotations

from typing import Final

PAPERS: Final = "berth-papers"
"""The package whose commands are entry points of the group `berth.commands`."""

COMMANDS: Final = {
    "simulate": "compare:simulate",
    "compare": "compare:compare",
    "sweep": "sweep:sweep",
    "size": "size:size",
    "backtest": "backtest:backtest",
    "advise": "advice:advise",
    "policies": "policies:policies",
    "experiment": PAPERS,
    "trace": "trace:app",
    "import": "importing:app",
    "history": "history:app",
    "stats": "stats:stats",
    "job": "job:job",
    "report": "stats:report",
    "cost": "cost:cost",
    "digest": "digest:digest",
    "applications": "stats:applications",
    "profile": "profile:app",
    "interference": PAPERS,
    "predict-wait": "waiting:app",
    "sample": "sampling:sample",
    "train": "train:train",
    "doctor": "doctor:doctor",
    "run": "partition:run",
    "partition": "partition:app",
    "k8s": "kubernetes:app",
    "slurm": "slurm:app",
    "console": "console:app",
    "top": "local:top",
    "submit": "local:submit",
    "jupyter": "local:jupyter",
    "mcp": "mcp:app",
    "queue": "local:queue",
    "logs": "local:logs",
    "wait": "local:wait",
    "cancel": "local:cancel",
    "hold": "local:hold",
    "release": "local:release",
    "suspend": "local:suspend",
    "resume": "local:resume",
    "edit": "local:edit",
    "requeue": "local:requeue",
    "why": "local:why",
    "policy": "local:policy",
    "drain": "local:drain",
    "undrain": "local:undrain",
    "up": "local:up",
    "config": "local:config",
    "down": "local:down",
    "status": "local:status",
}
"""MODULE:NAME in `berth.cli` of each command's function, or of a group's Typer; PAPERS if berth-papers declares it."""

COMMAND_FOLLOWS: Final = frozenset(("run", "submit"))
"""Commands whose first operand begins another command, whose options are its own."""
