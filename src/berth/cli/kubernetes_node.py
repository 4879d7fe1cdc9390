"""`berth k8s node`: what runs on every node whose GPUs are shared."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from berth.cli.shared_options import Grow, GrowOption, Uncounted, UncountedOption
from berth.errors import BerthError, SettingError
from berth.live.local.cards import fake_gpus as settings_of
from berth.live.local.places import FAKE_CARD


def node(
    node_name: Annotated[
        str,
        typer.Option(envvar="NODE_NAME", help="This node's name in the cluster; by default its host name."),
    ] = "",
    fake_gpus: Annotated[
        str,
        typer.Option(help="Offer fake GPUs, such as 2xA100-80G, for tests and demos."),
    ] = "",
    dra: Annotated[
        str,
        typer.Option(
            help="GPUs to give in parts to claims, and not through berth.dev/gpu: all, none, or indices such as 0,1."
        ),
    ] = "none",
    grow: GrowOption = Grow.OFF,
    uncounted: UncountedOption = Uncounted.REPORT,
    metrics: Annotated[
        str,
        typer.Option(help="Address to serve Prometheus metrics on, such as :9400; by default none."),
    ] = "",
    every_s: Annotated[
        float, typer.Option("--every", min=0.1, help="Seconds between samples of the GPUs.")
    ] = 1.0,
    kubeconfig: Annotated[
        str,
        typer.Option(help="Kubeconfig file; by default what kubectl or the pod would use."),
    ] = "",
    kubelet_folder: Annotated[Path, typer.Option(help="The kubelet's folder on this node.")] = Path(
        "/var/lib/kubelet"
    ),
    state_folder: Annotated[Path, typer.Option(help="Folder of allocations and the history.")] = Path(
        "/var/lib/berth"
    ),
    run_folder: Annotated[Path, typer.Option(help="Folder in memory for the regions of containers.")] = Path(
        "/run/berth"
    ),
    cdi_folder: Annotated[
        Path, typer.Option(help="Where the container runtime reads CDI specifications.")
    ] = Path("/var/run/cdi"),
) -> None:
    """Give pods their parts of this node's GPUs, enforce them, and report what they use."""
    from berth.live.kubernetes.node.service import NodeSettings, check_options

    check_options(dra, metrics)
    if os.geteuid() != 0:
        raise SettingError("the node's agent makes device nodes and sockets of the kubelet; run it as root")
    if fake_gpus:
        os.environ.update(settings_of(fake_gpus))
        os.environ.setdefault("BERTH_FAKE_CARD", str(state_folder / FAKE_CARD))
    settings = NodeSettings(
        node_name or os.uname().nodename,
        state_folder,
        run_folder,
        cdi_folder,
        kubelet_folder,
        dra,
        metrics,
        every_s,
        bool(fake_gpus),
        grow.value,
        uncounted.value,
    )
    os.environ["BERTH_ROOT"] = str(run_folder / "regions")  # what suspends pods looks there too
    import asyncio
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_run(settings, kubeconfig or None))


async def _run(settings: object, kubeconfig: str | None) -> None:
    import asyncio

    from berth.live.kubernetes.access import find_access
    from berth.live.kubernetes.client import Api
    from berth.live.kubernetes.node.service import NodeSettings, run_node

    assert isinstance(settings, NodeSettings)
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        async with Api(find_access(kubeconfig), agent="berth-node") as api:
            if settings.fake:
                settings.state.mkdir(parents=True, exist_ok=True)  # the fake driver keeps its card there
            await run_node(settings, api)
    except* BerthError as group:
        raise group.exceptions[0] from None
