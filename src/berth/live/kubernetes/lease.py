"""Leader election: one scheduler of several leads, by a Lease of the cluster.

Times are taken from this machine's own monotonic clock alone: a lease is over when it has not changed for its duration
as seen here, whatever the clock of its holder says.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime

from berth.errors import ApiError
from berth.live.kubernetes import names
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.objects import Lease, LeaseSpec, Meta

log = logging.getLogger(__name__)

DURATION_S = 15
"""Time without renewal after which another may take the lease."""
HELD_S = 10.0
"""Time without renewal after which its holder stops acting. A request that it has sent by then may take
`WRITE_S`, and is over before the lease is."""
WRITE_S = 4.0
RENEW_S = 2.0
UNCERTAIN_S = 0.1
"""Time between two checks whether the lease is held again."""


class Leadership:
    """This process's part in the election."""

    def __init__(
        self, api: Api, namespace: str, name: str, identity: str, policy: str, *, advise: bool = False
    ) -> None:
        """`policy` places the holder's pods, or only says where they would go (`advise`). Both are written into the
        lease, for `berth k8s status` to read."""
        self.identity = identity
        self._annotations = {names.POLICY: policy, names.MODE: "advise" if advise else "place"}
        self.learned_starts = ""
        """What start intervals have learned: written with each renewal, and read when the lease is taken."""
        self._api = api
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace, self._name = namespace, name
        self._renewed_s = -1e9
        self._seen: tuple[str, float] = ("", 0.0)
        self._holder = ""

    @property
    def is_held(self) -> bool:
        """Whether this process leads, for certain."""
        return time.monotonic() - self._renewed_s < HELD_S

    async def acquire(self) -> None:
        """Return when this process leads."""
        logged = ""
        while not await self._attempt():
            if self._holder != logged:
                logged = self._holder
                log.warning("waiting: %s leads", logged or "no known steerer")
            await asyncio.sleep(RENEW_S)
        log.warning("%s leads", self.identity)

    async def keep(self) -> None:
        """Renew the lease until it is lost; returns then."""
        while self.is_held:
            await self._attempt()
            await asyncio.sleep(RENEW_S)
        log.warning("%s no longer leads", self.identity)

    async def until_held(self) -> None:
        """Wait while it is not certain that this process leads: its renewal is late, or `keep` is about to return."""
        while not self.is_held:
            await asyncio.sleep(UNCERTAIN_S)

    async def release(self) -> None:
        """Give the lease up, so that another may take it at once."""
        if not self.is_held:
            return
        self._renewed_s = -1e9
        try:
            lease = await self._api.get(f"{self._path}/{self._name}", Lease)
            if lease.spec.holder_identity == self.identity:
                lease.spec.holder_identity = ""
                await self._write(lease)
        except ApiError as error:
            log.warning("the lease is not given up: %s", error)

    async def _attempt(self) -> bool:
        """Take or renew the lease; whether this process holds it."""
        asked_s = (
            time.monotonic()
        )  # before the request, so that our lease is never over later than others compute
        try:
            found = await self._api.find(f"{self._path}/{self._name}", Lease, patience_s=0)
            lease = found or Lease(Meta(name=self._name, namespace=self._namespace))
            if not self._may_take(lease):
                return False
            if not self.is_held:
                self.learned_starts = lease.metadata.annotations.get(names.STARTS, self.learned_starts)
            self._sign(lease)
            await self._write(lease)
        except ApiError as error:
            if error.status != 409:
                log.warning("the lease is not renewed: %s", error)
            return False
        self._renewed_s = asked_s
        return True

    def _may_take(self, lease: Lease) -> bool:
        holder = self._holder = lease.spec.holder_identity or ""
        if holder in ("", self.identity):
            return True
        version, now_s = lease.metadata.resource_version, time.monotonic()
        if self._seen[0] != version:
            self._seen = (version, now_s)
        return now_s - self._seen[1] > (lease.spec.lease_duration_seconds or DURATION_S)

    def _sign(self, lease: Lease) -> None:
        now, before = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), lease.spec
        same = before.holder_identity == self.identity
        transitions = (before.lease_transitions or 0) + (not same)
        acquired = before.acquire_time if same else now
        lease.spec = LeaseSpec(self.identity, DURATION_S, acquired, now, transitions)
        lease.metadata.annotations |= self._annotations
        if self.learned_starts:
            lease.metadata.annotations[names.STARTS] = self.learned_starts

    async def _write(self, lease: Lease) -> None:
        """Make or change the lease; the version makes a change by another in between a conflict."""
        is_there = bool(lease.metadata.resource_version)
        path = f"{self._path}/{self._name}" if is_there else self._path
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": lease.metadata,
            "spec": lease.spec,
        }
        await self._api.request("PUT" if is_there else "POST", path, body)
