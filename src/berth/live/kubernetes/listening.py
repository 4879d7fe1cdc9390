"""What the scheduler listens to: nodes and pods, and what else of use to it the cluster serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from berth.errors import ApiError
from berth.live.kubernetes import names, objects
from berth.live.kubernetes.board import Board
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.informer import Informer

On = Callable[[Callable[..., None]], Callable[[Any], None]]
"""Makes a listener of what is to be done when its turn has come."""
PATIENCE_S = 30
WITHOUT_POD_GROUPS = (
    "pods of PodGroups wait, and all others are placed; give this scheduler the rule: berth k8s install"
)


async def listeners(api: Api, board: Board, on: On) -> list[Informer[Any]]:
    """Those of all but pods."""
    found: list[Informer[Any]] = [
        Informer(
            api, "/api/v1/nodes", objects.Node, changed=on(board.nodes.changed), gone=on(board.nodes.gone)
        )
    ]
    path = "/apis/resource.k8s.io/v1"
    if await _answer(api, path) is not None:
        found += [
            Informer(
                api,
                f"{path}/resourceslices",
                objects.ResourceSlice,
                changed=on(board.nodes.slice_changed),
                gone=on(board.nodes.slice_gone),
            ),
            Informer(
                api,
                f"{path}/resourceclaims",
                objects.Claim,
                changed=on(board.claim_changed),
                gone=on(board.claim_gone),
            ),
        ]
    for group in (names.PLUGINS_GROUP, names.OWN_GROUP):
        if (served := await _pod_groups(api, group)) is not None:
            changed = partial(board.pod_group_changed, group)
            gone = partial(board.pod_group_gone, group)
            found.append(
                Informer(
                    api,
                    served,
                    objects.PodGroup,
                    changed=on(changed),
                    gone=on(gone),
                    without=WITHOUT_POD_GROUPS,
                )
            )
    return found


async def until_listed(informer: Informer[Any], task: asyncio.Task[None]) -> None:
    """Wait until all was listed once; raises what the informer raises."""
    listed = asyncio.ensure_future(informer.synced.wait())
    await asyncio.wait([listed, task], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        listed.cancel()
        task.result()


async def _pod_groups(api: Api, group: str) -> str | None:
    """The path of the PodGroups of an API group, in the version that the server prefers; None where it has none."""
    served = await _answer(api, f"/apis/{group}")
    for each in () if served is None else objects.served_versions(served):
        path = f"/apis/{group}/{each}"
        kinds = await _answer(api, path)
        if kinds is not None and "podgroups" in objects.served_kinds(kinds):
            return f"{path}/podgroups"
    return None


async def _answer(api: Api, path: str) -> bytes | None:
    """What the server says of an API group; None where it has none."""
    try:
        return await api.request("GET", path, patience_s=PATIENCE_S)
    except ApiError as error:
        if error.status != 404:
            raise
        return None
