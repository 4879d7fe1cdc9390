"""Limits as the commands of Slurm that would set them; they are shown, and never run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Final

from berth.advice.proposals import Proposal

__all__ = ["commands_of"]

_PER_USER: Final = {"running": "MaxJobsPerUser", "submitted": "MaxSubmitJobsPerUser"}
_TOGETHER: Final = {"running": "GrpJobs", "submitted": "GrpSubmitJobs"}
_TRES: Final = {"gpus": "gres/gpu", "nodes": "node"}


def commands_of(proposal: Proposal, qos: Iterable[str]) -> tuple[str, ...]:
    """The `sacctmgr` commands that set a limit on these QOS; those of sharing are lines of slurm.conf and gres.conf.

    A limit of each user is one of each QOS's users, a limit of a QOS one of its jobs together (MaxTRESPerUser and
    GrpTRES); Slurm enforces either only with `AccountingStorageEnforce=limits,qos`.
    """
    limit = proposal.limit
    if limit is None:
        return (
            f"# gres.conf: Name=shard Count={proposal.sharers}  (for each GPU)",
            "# slurm.conf: GresTypes=gpu,shard",
            "# then: sbatch --gres=shard:1 … for jobs of " + " ".join((proposal.application or "?").split()),
        )
    plain, together = (_PER_USER, "MaxTRESPerUser") if limit.scope == "user" else (_TOGETHER, "GrpTRES")
    settings = [
        f"{word}={value}" for name, word in plain.items() if (value := getattr(limit, name)) is not None
    ]
    tres = [f"{word}={value}" for name, word in _TRES.items() if (value := getattr(limit, name)) is not None]
    if tres:
        settings.append(f"{together}={','.join(tres)}")
    names = (
        [limit.name] if limit.name and limit.scope != "user" else sorted(set(filter(None, qos))) or ["normal"]
    )
    return tuple(f"sacctmgr -i modify qos {shlex.quote(name)} set {' '.join(settings)}" for name in names)
