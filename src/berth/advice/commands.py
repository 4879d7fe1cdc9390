"""Limits as the commands of Slurm that would set them; they are shown, and never run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Final

from berth.advice.proposals import Proposal

_PER_USER: Final = {"running": "MaxJobs"}
_TOGETHER: Final = {"running": "GrpJobs"}
_TRES: Final = {"gpus": "gres/gpu", "nodes": "node"}


def commands_of(proposal: Proposal, qos: Iterable[str], users: Iterable[str] = ()) -> tuple[str, ...]:
    """The `sacctmgr` commands that set a limit where it was replayed; those of sharing are lines of configuration.

    A limit of each user holds in the replay whatever the QOS, so it goes to the users' associations (MaxJobs and
    GrpTRES; Slurm enforces it with `AccountingStorageEnforce=limits`). A limit of a QOS goes to the QOS (GrpJobs and
    GrpTRES, with `limits,qos`).
    """
    limit = proposal.limit
    if limit is None:
        return (
            f"# gres.conf: Name=shard Count={proposal.sharers}  (for each GPU)",
            "# slurm.conf: GresTypes=gpu,shard",
            "# then: sbatch --gres=shard:1 … for jobs of " + " ".join((proposal.application or "?").split()),
        )
    plain = _PER_USER if limit.scope == "user" else _TOGETHER
    settings = [
        f"{word}={value}" for name, word in plain.items() if (value := getattr(limit, name)) is not None
    ]
    tres = [f"{word}={value}" for name, word in _TRES.items() if (value := getattr(limit, name)) is not None]
    if tres:
        settings.append(f"GrpTRES={','.join(tres)}")
    if limit.scope == "user":
        whose = [limit.name] if limit.name else sorted(set(filter(None, users)))
        named = shlex.quote(f"name={','.join(whose)}") if whose else "name=USER"
        return (f"sacctmgr -i modify user where {named} set {' '.join(settings)}",)
    names = [limit.name] if limit.name else sorted(set(filter(None, qos))) or ["normal"]
    return tuple(f"sacctmgr -i modify qos {shlex.quote(name)} set {' '.join(settings)}" for name in names)
