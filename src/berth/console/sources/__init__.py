"""Where the console looks: each queue that the settings name, as a `Source`."""

from __future__ import annotations

from berth.console.settings import Settings
from berth.console.source import Source


def sources_of(settings: Settings) -> tuple[Source, ...]:
    """The sources of these settings; none is asked anything yet."""
    found: list[Source] = []
    if settings.local_socket is not None:
        from berth.console.sources.local import LocalSource

        found.append(LocalSource(settings.local_socket))
    if settings.slurm_state is not None:
        from berth.console.sources.slurm import SlurmSource

        found.append(SlurmSource(settings.slurm_state))
    if settings.kubeconfig is not None:
        from berth.console.sources.kubernetes import KubernetesSource

        found.append(KubernetesSource(settings.kubeconfig))
    return tuple(found)
