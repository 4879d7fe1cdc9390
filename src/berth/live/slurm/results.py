"""What the Epilogs measured of jobs: a small file a job and node, in a folder that nodes and berth share.

Slurm 22.05 takes no change of a job that has ended, its AdminComment included, so that it cannot carry this.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Result:
    """What a job did with the GPUs of one node, or of all its nodes."""

    raw_id: str
    node: str
    peak_mib: int
    """The most that it held on one GPU."""
    refused: int
    """Calls for GPU memory that were refused."""
    needs_mib: int
    """What would have been enough for them."""
    closed: bool = False
    """Whether there was no partition for it, so that its tasks got no GPU."""
    gpu_ms: int | None = None
    """Time of its kernels, on all its GPUs together; None: it was not measured, as without a limit of compute."""


def keep(folder: Path, result: Result) -> None:
    """Write one, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{result.raw_id}-{result.node}"
    new.write_text(json.dumps(asdict(result)), encoding="ascii")
    os.replace(new, folder / f"{result.raw_id}-{result.node}")


def taken(folder: Path, raw_ids: Collection[str]) -> dict[str, Result]:
    """Merge the results of these jobs over their nodes, by the job's number, and delete the files."""
    found: dict[str, Result] = {}
    wanted = set(raw_ids)
    for path in _files(folder):
        raw_id = path.name.partition("-")[0]
        if raw_id not in wanted:
            continue
        with contextlib.suppress(OSError, ValueError, TypeError):
            one = Result(**json.loads(path.read_text(encoding="ascii")))
            before = found.get(raw_id, Result(raw_id, "", 0, 0, 0, gpu_ms=0))
            found[raw_id] = Result(
                raw_id,
                max(one.node, before.node),
                max(one.peak_mib, before.peak_mib),
                one.refused + before.refused,
                max(one.needs_mib, before.needs_mib),
                one.closed or before.closed,
                None if one.gpu_ms is None or before.gpu_ms is None else one.gpu_ms + before.gpu_ms,
            )
        with contextlib.suppress(OSError):
            path.unlink()
    return found


def names(folder: Path) -> set[str]:
    """The numbers of the jobs of which something lies there."""
    return {path.name.partition("-")[0] for path in _files(folder)}


def prune(folder: Path, older_s: float) -> None:
    """Throw away what is older than this: it was not asked for."""
    for path in _files(folder):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > older_s:
                path.unlink()


def _files(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (path for path in folder.iterdir() if not path.name.startswith("."))
