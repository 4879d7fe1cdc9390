"""Tenants: how many GPUs namespaces have, as the ConfigMap `berth-tenants` says while the steerer runs.

Its data are `quotas`, such as `vision=8,speech+audio=4`, and `borrow` and `reclaim`, which are true or false. A change
takes effect at once. A mistake changes nothing: an event of the ConfigMap says what is wrong, and what was in force
stays in force, also for a steerer that begins later, because it is written into an annotation.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from berth.errors import ApiError, BerthError, SettingError
from berth.live.kubernetes import names, objects
from berth.live.kubernetes.client import Api, Informer, event
from berth.policies import Setting, make_policy
from berth.policies.schemes.quotas import quotas_of

log = logging.getLogger(__name__)

FLAGS = ("borrow", "reclaim")
_NAMESPACE = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
WITHOUT = "namespaces have no quotas; give berth the rule: berth k8s install"


class Tenants(msgspec.Struct, frozen=True, omit_defaults=True):
    policy: str = ""
    """The policy that was asked to keep to it."""
    quotas: dict[str, int] | None = None
    """GPUs of each namespace, or of several together (`vision+speech`); None: there are no quotas."""
    borrow: bool = False
    reclaim: bool = False


def tenants_in(data: Mapping[str, str], policy: str) -> Tenants:
    """What a ConfigMap says. Raises SettingError for a mistake, PolicyError if the policy has no quotas."""
    if wrong := sorted(data.keys() - {"quotas", *FLAGS}):
        raise SettingError(f"'{wrong[0]}' is no key of it; there are quotas, {', '.join(FLAGS)}")
    flags = {}
    for name in FLAGS:
        if (text := data.get(name, "false")) not in ("true", "false"):
            raise SettingError(f"{name} is '{text[:40]}'; expected true or false")
        flags[name] = text == "true"
    if flags["reclaim"] and not flags["borrow"]:
        raise SettingError("reclaim takes back what borrow lends; set borrow to true as well")
    parts = [part.strip() for part in data.get("quotas", "").replace("\n", ",").split(",")]
    if not (text := ",".join(filter(None, parts))):
        return Tenants(policy)
    found = Tenants(
        policy, quotas_of(text, form="NAMESPACE=GPUS, such as vision=8 or vision+speech=8"), **flags
    )
    tenants_of(found.quotas or ())
    make_policy(policy, Setting(quotas=found.quotas, borrow=found.borrow, reclaim=found.reclaim))
    return found


def tenants_of(quotas: Iterable[str]) -> dict[str, str]:
    """The quota of each namespace that has one, by the quotas' names: a namespace, or several as `vision+speech`.
    Raises SettingError."""
    found: dict[str, str] = {}
    for name in quotas:
        for namespace in name.split("+"):
            if not namespace:
                raise SettingError(f"quota '{name}': expected a namespace, or several such as vision+speech")
            if not _NAMESPACE.fullmatch(namespace):
                raise SettingError(
                    f"quota '{name}': no namespace can be called '{namespace}'; expected a-z, 0-9 and hyphens"
                )
            if namespace in found:
                raise SettingError(
                    f"namespace '{namespace}' has two quotas, '{found[namespace]}' and '{name}'"
                )
            found[namespace] = name
    return found


def in_force(config: objects.ConfigMap) -> Tenants:
    """The tenants that the steerer wrote into a ConfigMap; none if it wrote none, or they cannot be decoded."""
    try:
        return msgspec.json.decode(config.metadata.annotations.get(names.IN_FORCE, "{}"), type=Tenants)
    except msgspec.DecodeError:
        return Tenants()


def fault_of(config: objects.ConfigMap, policy: str) -> str:
    try:
        tenants_in(config.data, policy)
    except BerthError as error:
        return str(error)
    return ""


class TenantsWatch:
    def __init__(self, api: Api, namespace: str, policy: str) -> None:
        self.tenants = Tenants(policy)
        """What is in force."""
        self.changed = asyncio.Event()
        self._api, self._policy = api, policy
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._last_fault = ""
        self._unreported: asyncio.Queue[objects.ConfigMap] = asyncio.Queue()
        self.informer = Informer(
            api,
            self._path,
            objects.ConfigMap,
            changed=self._take,
            gone=lambda config: self._use(Tenants(policy)),
            params={"fieldSelector": f"metadata.name={names.TENANTS}"},
            without=WITHOUT,
        )

    def _take(self, config: objects.ConfigMap) -> None:
        try:
            self._use(tenants_in(config.data, self._policy))
        except BerthError:
            if not self.informer.synced.is_set():  # this steerer has just begun
                before = in_force(config)
                self._use(before if before.policy == self._policy else Tenants(self._policy))
        self._unreported.put_nowait(config)

    def _use(self, tenants: Tenants) -> None:
        if tenants != self.tenants:
            self.tenants = tenants
            self.changed.set()

    async def report(self) -> None:
        """Write what is in force into the ConfigMap, and what is wrong with it into an event; until cancelled."""
        while True:
            config = await self._unreported.get()
            fault, meta = fault_of(config, self._policy), config.metadata
            try:
                if not fault and in_force(config) != self.tenants:
                    text = msgspec.json.encode(self.tenants).decode()
                    body = {"metadata": {"uid": meta.uid, "annotations": {names.IN_FORCE: text}}}
                    await self._api.request("PATCH", f"{self._path}/{meta.name}", body, patience_s=10)
                if fault and fault != self._last_fault:
                    log.warning("%s", fault_text(fault))
                    about = meta.namespace, meta.name, meta.uid
                    fault_event = event(*about, "Invalid", fault_text(fault), "berth", kind="ConfigMap")
                    path = f"/api/v1/namespaces/{meta.namespace}/events"
                    await self._api.request("POST", path, fault_event, patience_s=10)
                self._last_fault = fault
            except ApiError as error:
                log.warning("%s: %s", names.TENANTS, error)


def fault_text(fault: str) -> str:
    """How a mistake is told."""
    return f"ConfigMap {names.TENANTS} changes nothing, what was in force stays in force: {fault}"


def manifest_of(quota: str, *, borrow: bool, reclaim: bool) -> dict[str, Any]:
    """The ConfigMap as `berth k8s install` makes it. It has every key, so that none is left of one made before."""
    flags = {name: str(on).lower() for name, on in zip(FLAGS, (borrow, reclaim), strict=True)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.TENANTS, "namespace": names.NAMESPACE},
        "data": {"quotas": quota, **flags},
    }
