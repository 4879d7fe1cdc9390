"""How `berth k8s install` installs, as the manifests of all parts need it."""

from __future__ import annotations

from dataclasses import dataclass

from berth.live.driver.defaults import DEFAULT_POLICY
from berth.live.kubernetes import names


@dataclass(frozen=True)
class Install:
    """How to install."""

    image: str
    """The container image of berth; none is published, and an image of a name that anyone may take is not run as
    root on every node by default."""
    policy: str = DEFAULT_POLICY
    mode: str = "place"
    knowledge: str = names.GATHERED
    compat: str | None = None
    quota: str = ""
    """GPUs of each namespace, such as `team-a=8,team-b=4`; empty: there are no quotas."""
    borrow: bool = False
    reclaim: bool = False
    replicas: int = 2
    """Steerers: one leads, the others wait for it to fail."""
    fake_gpus: str = ""
    """For a demo on nodes without GPUs, such as `2xA100-80G`."""
    claims: bool = False
    """Give parts of GPUs by claims instead of `berth.dev/gpu`, where the cluster serves `resource.k8s.io/v1`."""
    evict: bool = False
    """Let the agents evict pods that got out of their limit."""
    gathers: bool = True
    """Whether a container beside each steerer gathers the nodes' histories into `names.HISTORY_FOLDER`."""
    history_claim: str = ""
    """The PersistentVolumeClaim of that folder; empty: it goes with its pod."""
