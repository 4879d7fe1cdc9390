"""Which GPU model each node has, for jobs whose accounting does not tell: what `sinfo -h -N -o '%N %G'` prints."""

from __future__ import annotations

import re
from pathlib import Path

from berth.errors import SettingError, cause_of

_GPU = re.compile(r"(?:^|,)gpu:([A-Za-z][\w.-]*)(?::\d+)?")


def read_models(path: Path | None) -> dict[str, str]:
    """Node to model; empty without a file. SettingError where no line of it names a node and its GPU type."""
    if path is None:
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read as a list of nodes: {cause_of(error)}") from error
    found = {}
    for line in lines:
        node, _, gres = line.strip().partition(" ")
        if model := _GPU.search(gres.strip()):
            found[node] = model[1]
    if not found:
        raise SettingError(
            f"{path} names no node with a GPU type; expected lines such as 'gpu01 gpu:a100:8', as "
            "`sinfo -h -N -o '%N %G'` prints them"
        )
    return found
