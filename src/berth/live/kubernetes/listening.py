"""What the steerer listens to: nodes, pods, and what else of use to it the cluster serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from berth.errors import ApiError
from berth.live.kubernetes import names, objects
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.informer import Informer
from berth.live.kubernetes.pod_site import PodSite

PATIENCE_S = 30
WITHOUT_POD_GROUPS = (
    "pods of PodGroups wait, and all others are placed; give berth the rule: berth k8s install"
)


class Heard(NamedTuple):
    """One kind of objects, and what a site does with each."""

    path: str
    kind: type[Any]
    changed: Callable[[Any], None]
    gone: Callable[[Any], None]
    without: str = ""
    """What a site lacks that may not list them; empty: it cannot do without."""


async def heard(api: Api, site: PodSite, now_ms: Callable[[], int]) -> list[Heard]:
    """All that a site listens to but pods, as far as the cluster serves it."""
    found = [
        Heard("/api/v1/nodes", objects.Node, lambda node: site.node_changed(node, now_ms()), site.node_gone)
    ]
    for group in (names.PLUGINS_GROUP, names.OWN_GROUP):
        if (served := await pod_groups(api, group)) is not None:
            changed = partial(_told, site.pod_group_changed, group, now_ms)
            gone = partial(_told, site.pod_group_gone, group, now_ms)
            found.append(Heard(served, objects.PodGroup, changed, gone, WITHOUT_POD_GROUPS))
    return found


def _told(what: Callable[..., None], group: str, now_ms: Callable[[], int], found: objects.PodGroup) -> None:
    what(group, found, now_ms())


async def until_listed(informer: Informer[Any], task: asyncio.Task[None]) -> None:
    """Wait until all was listed once; raises what the informer raises."""
    listed = asyncio.ensure_future(informer.synced.wait())
    await asyncio.wait([listed, task], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        listed.cancel()
        task.result()


async def pod_groups(api: Api, group: str) -> str | None:
    """The path of the PodGroups of an API group, in the version that the server prefers; None where it has none."""
    for each in (await _served(api, f"/apis/{group}")).get("versions", ()):
        path = f"/apis/{group}/{each['version']}"
        if "podgroups" in [kind["name"] for kind in (await _served(api, path)).get("resources", ())]:
            return f"{path}/podgroups"
    return None


async def _served(api: Api, path: str) -> dict[str, Any]:
    """What the server says of an API group or a version of it; nothing where it has none."""
    try:
        return await api.get(path, dict[str, Any], patience_s=PATIENCE_S)
    except ApiError as error:
        if error.status != 404:
            raise
        return {}
