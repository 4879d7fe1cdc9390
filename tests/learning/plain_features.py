"""What the network sees of one combination, job by job: the slow definition that the compiled one is held to."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from berth.interference import Speeds
from berth.network.features import LONG_MS, LOOKS, MARGIN_MILLI, SLOWEST_MILLI, Scene

MEM = 1


class _Job(NamedTuple):
    """A job of a scene."""

    cells: Any  # (H, 4)
    now: Any  # (4,)
    same_ms: Any
    left_ms: Any
    old: bool
    """Whether it runs already."""


def job_features(cells: Any, left_ms: int, step_ms: int, mem_mib: int) -> list[float]:
    """The features of one job: `cells`, (H, 4), is what it needs in each step, `left_ms` the work that is left."""
    use = np.asarray(cells) / [1000, mem_mib, 1000, 1000]
    steps = min(max(-(-left_ms // step_ms), 1), len(use))
    looks = [use[min(look, len(use) - 1)] for look in LOOKS]
    seen = [look[column] for column in range(4) for look in looks]
    return [*seen, *use.max(axis=0), *use.sum(axis=0) / steps, left_ms / (len(use) * step_ms)]


def combination_features(scene: Scene, row: int, members: Any, speeds: Speeds) -> list[float]:
    """The features of one combination: scene number `row`, whose waiting jobs `members`, bool (M,), start."""
    running = [_Job(*one, old=True) for one in zip(*(part[row] for part in scene[:4]), strict=True)]
    waiting = [_Job(*one, old=False) for one in zip(*(part[row] for part in scene[4:8]), strict=True)]
    tenants = [one for one in running if one.left_ms]
    tenants += [one for one, starts in zip(waiting, members, strict=True) if starts and one.left_ms]
    horizon, mem_mib = scene.running.shape[2], int(np.broadcast_to(scene.mem_mib, len(scene.running))[row])
    horizon_ms = horizon * scene.step_ms
    looks = [min(look, horizon - 1) for look in LOOKS]

    def together(rows: list[Any], there: list[bool]) -> list[int]:
        """Speeds per mille at one moment, 0 of those that are not there."""
        if not rows:
            return []
        return [int(speed) for speed in speeds(np.array([rows]), np.array([there]), np.array([mem_mib]))[0]]

    alive = [[one.left_ms > look * scene.step_ms for one in tenants] for look in looks]
    at_looks = [
        together([one.cells[look] for one in tenants], there)
        for look, there in zip(looks, alive, strict=True)
    ]
    present = [True] * len(tenants)
    now = together([one.now for one in tenants], present)
    slowest = together([one.cells.max(axis=0) for one in tenants], present)

    # Until the first use changes all is known; a job that is over by then, with a hundredth to spare, has left.
    changes = [
        min(one.same_ms, LONG_MS) * 1000 // speed
        for one, speed in zip(tenants, now, strict=True)
        if one.same_ms < one.left_ms
    ]
    change_ms = min(changes, default=1 << 30)
    stays = [
        at
        for at, one in enumerate(tenants)
        if one.left_ms >= LONG_MS or one.left_ms * 1010 // now[at] >= change_ms
    ]
    most_mib = sum(int(one.now[MEM]) for one in tenants)
    for step in range(horizon):
        total_mib = 0
        for at in stays:
            pace = 1000 if len(stays) == 1 else max(slowest[at] * MARGIN_MILLI // 1000, SLOWEST_MILLI)
            late = -(-tenants[at].left_ms // (pace * scene.step_ms // 1000))
            total_mib += int(tenants[at].cells[: step + 1, MEM].max()) if late > step else 0
        most_mib = max(most_mib, total_mib)

    widths = np.diff([*LOOKS, max(horizon, LOOKS[-1] + 1)])
    weights = [width * any(there) for width, there in zip(widths, alive, strict=True)]
    both_milli = np.dot([sum(row) for row in at_looks], weights) / max(sum(weights), 1)
    worst = [min([row[at] / 1000 for row in at_looks if row[at]], default=1.0) for at in range(len(tenants))]
    old, new = ([at for at, one in enumerate(tenants) if one.old == which] for which in (True, False))
    left = [one.left_ms / horizon_ms for one in tenants]
    old_most, new_most = (
        max([left[at] for at in old], default=0.0),
        max([left[at] for at in new], default=0.0),
    )
    means = [job_features(one.cells, one.left_ms, scene.step_ms, mem_mib)[-5:-1] for one in tenants]
    seen = sum(one.left_ms > 0 for one in waiting)
    return [
        *(len(old) / 5, len(new) / 5, (seen - len(new)) / 5, not new, not tenants),
        both_milli / 1000,
        min(most_mib / mem_mib, 1.0),
        *(min([worst[at] for at in some], default=1.0) for some in (range(len(tenants)), old, new)),
        sum(at_looks[0][at] for at in old) / 1000 / max(len(old), 1),
        *(old_most, new_most, sum(left[at] for at in old), sum(left[at] for at in new)),
        abs(old_most - new_most),
        *(sum(mean[column] for mean in means) for column in (0, 2)),
        sum(int(one.now[0]) for one in tenants) / 1000,
        *(scene.backlog_jobs[row] / 30, scene.backlog_ms[row] / (30 * horizon_ms)),
        *(sum(row) / 1000 for row in at_looks),
        *(min([speed / 1000 for speed in row if speed], default=1.0) for row in at_looks),
    ]
