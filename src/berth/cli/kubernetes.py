"""`berth k8s`: the steerer on a Kubernetes cluster, what it sees, and how it is installed."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from berth.cli import kubernetes_node
from berth.cli.output import JsonOrCsv, console, printed
from berth.cli.shared_options import Grow, GrowOption, Uncounted, UncountedOption
from berth.cli.snapshot_table import snapshot_tables
from berth.console.certificate import own_certificate
from berth.errors import ApiError, KubernetesError, MissingExtraError, SettingError
from berth.live.driver.defaults import DEFAULT_KNOWLEDGE, DEFAULT_POLICY
from berth.live.driver.snapshot import GOING, Snapshot, job_dict
from berth.live.driver.words import span
from berth.live.kubernetes.names import CLAIMS_API, GATHERED, GATING, HISTORY_FOLDER, NAMESPACE, pod_path
from berth.live.local.cards import fake_gpus as checked

if TYPE_CHECKING:
    from berth.live.kubernetes.client import Api

T = TypeVar("T")
app = typer.Typer(
    help="Steer pods on a Kubernetes cluster, say why they wait, and install what that needs.",
    no_args_is_help=True,
)
app.command("node")(kubernetes_node.node)

Kubeconfig = Annotated[str | None, typer.Option(help="Kubeconfig file; by default what kubectl would use.")]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; by default its current one.")]
PolicyName = Annotated[
    str, typer.Option(help="The policy that decides, such as easy+priority+best-fit or learned.")
]
KnowledgeName = Annotated[
    str, typer.Option(help="Source of beliefs about pods: user, history?begin=FOLDER, or your own.")
]


QuotaOption = Annotated[
    str,
    typer.Option(
        "--quota", metavar="NAMESPACE=GPUS,…", help="GPU quota per namespace, or A+B=GPUS; unlisted get 0."
    ),
]
BorrowOption = Annotated[bool, typer.Option("--borrow", help="Lend idle GPUs beyond the quotas.")]
ReclaimOption = Annotated[
    bool,
    typer.Option("--reclaim", help="Evict pods that borrowed when a pod within its quota waits for room."),
]


class RightSize(StrEnum):
    """What becomes of pods that ask for more than is enough."""

    OFF = "off"
    ADVISE = "advise"
    APPLY = "apply"


RightSizeOption = Annotated[
    RightSize,
    typer.Option(
        "--right-size",
        help="If a profile shows that less is enough: off, give what was asked; advise, also say so; apply, give less.",
    ),
]


class Mode(StrEnum):
    """What is done with a decision."""

    PLACE = "place"
    ADVISE = "advise"


@app.command()
def steerer(
    policy: PolicyName = DEFAULT_POLICY,
    knowledge: KnowledgeName = DEFAULT_KNOWLEDGE,
    mode: Annotated[
        Mode, typer.Option(help="Place pods, or say in events where they would go.")
    ] = Mode.PLACE,
    right_size: RightSizeOption = RightSize.OFF,
    once: Annotated[bool, typer.Option(help="Place what can be placed now, then stop.")] = False,
    elect: Annotated[
        bool, typer.Option(help="Wait to be elected by a Lease; needed if several steerers run.")
    ] = True,
    namespace: Annotated[
        str, typer.Option(envvar="POD_NAMESPACE", help="Where the Lease is.")
    ] = "berth-system",
    alive_file: Annotated[
        Path | None, typer.Option(help="File to touch every 10 s while decisions work, for a liveness probe.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Choose a node and part of a GPU for gated pods and lift their gates, until stopped. kube-scheduler binds them."""
    from berth.live.kubernetes.pod_site import Settings
    from berth.live.kubernetes.steering import Options, Steering

    _log()
    settings = Settings(policy, knowledge, advise=mode is Mode.ADVISE, right_size=right_size.value)
    identity = f"{platform.node()}-{os.getpid()}"

    async def run(api: Api) -> None:
        options = Options(
            settings, once, identity, namespace, elect=elect, alive_file=alive_file, own_process=True
        )
        steering = Steering(api, options)
        await steering.run()
        if once:
            done = steering.counts
            print(
                f"placed {done.placed}, advised {done.advised}, evicted {done.evicted}, failed {done.failed}"
            )

    _ask(run, kubeconfig, context, follows=not once)


@app.command()
def gate(
    cert: Annotated[Path, typer.Option(metavar="FILE", help="TLS certificate.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="Private key of the certificate.")],
    port: Annotated[int, typer.Option(help="Port to serve on.", min=1, max=65535)] = 8443,
    parts: Annotated[
        bool, typer.Option(help="Also ask for parts of GPUs as resources, as the pod's annotations do.")
    ] = True,
) -> None:
    """Serve the webhook that adds the gate on clusters older than 1.36, until stopped."""
    import asyncio

    from berth.live.kubernetes.gating import serve

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_until_terminated(serve(port, cert, key, parts=parts)))


@app.command()
def status(
    as_json: JsonOrCsv = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show how much of each GPU is allocated to which pods, and which pods wait."""
    seen = _look(kubeconfig, context)
    if not printed(as_json, [asdict(gpu) for gpu in seen.gpus], asdict(seen)):
        console().print(snapshot_tables(seen))


@app.command()
def why(
    pod: Annotated[str, typer.Argument(metavar="POD", help="The pod: NAME, or NAMESPACE/NAME.")],
    as_json: JsonOrCsv = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Explain in numbers why a pod waits, or show where it runs."""
    seen = _look(kubeconfig, context)
    name = pod if "/" in pod else f"default/{pod}"
    found = [each for each in seen.jobs if each.id == name]
    if not found:
        raise KubernetesError(_ask(lambda api: _unsteered(api, name), kubeconfig, context))
    if printed(as_json, [job_dict(each) for each in found]):
        return
    for each in found:
        if each.state in GOING:
            others = seen.neighbours_of(name)
            company = f"with {', '.join(others)}" if others else "alone"
            print(f"{name} is {each.state} on {each.where}, {company}{'; ' if each.why else ''}{each.why}")
        else:
            print(f"{name} has waited for {span(seen.at_ms - each.submit_ms)}: {each.why}")
            for note in seen.notes:
                if note != each.why:
                    print(note)


@app.command()
def history(
    into: Annotated[Path, typer.Argument(metavar="FOLDER", help="History folder to collect into.")],
    namespace: Annotated[
        str, typer.Option(envvar="POD_NAMESPACE", help="Where the agents run.")
    ] = "berth-system",
    follow: Annotated[
        bool, typer.Option("--follow", help="Collect again and again until stopped; print nothing.")
    ] = False,
    every_s: Annotated[
        float, typer.Option("--every", help="Seconds between collections with --follow.", min=1)
    ] = 60.0,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: JsonOrCsv = None,
) -> None:
    """Collect the histories and profiles of all nodes, for report, stats and --knowledge history."""
    from berth.live.kubernetes.collecting import Collector

    if into.exists() and not into.is_dir():
        raise SettingError(f"{into} is not a folder; name one for the history, new or made by this command")
    if follow:
        _log()
        _ask(lambda api: Collector(api, into, namespace).follow(every_s), kubeconfig, context, follows=True)
    results = _ask(lambda api: Collector(api, into, namespace).collect(), kubeconfig, context)
    if printed(as_json, [{"node": node, "result": result} for node, result in results.items()]):
        return
    for node, result in results.items():
        print(f"{node}: {result}")


@app.command()
def install(
    image: Annotated[
        str, typer.Option(help="The container image of berth, built from deploy/kubernetes/Containerfile.")
    ],
    agent_image: Annotated[
        str, typer.Option(help="The smaller image of the node agents; by default the same image.")
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the manifests for the cluster, or for Kubernetes 1.36 without one; change nothing.",
        ),
    ] = False,
    write: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a Helm chart to this folder.")
    ] = None,
    policy: PolicyName = DEFAULT_POLICY,
    knowledge: KnowledgeName = GATHERED,
    history_claim: Annotated[
        str,
        typer.Option(
            metavar="PVC",
            help="PersistentVolumeClaim in berth-system that keeps the history; by default it goes with its pod.",
        ),
    ] = "",
    mode: Annotated[
        Mode, typer.Option(help="Place pods, or say in events where they would go.")
    ] = Mode.PLACE,
    quota: QuotaOption = "",
    borrow: BorrowOption = False,
    reclaim: ReclaimOption = False,
    right_size: RightSizeOption = RightSize.OFF,
    replicas: Annotated[int, typer.Option(help="Number of steerers; one of them leads.", min=1, max=9)] = 2,
    fake_gpus: Annotated[
        str, typer.Option(help="Offer fake GPUs on the nodes, such as 2xA100-80G, for a demo.")
    ] = "",
    claims: Annotated[
        bool,
        typer.Option(
            help="Give parts of GPUs through resource claims instead of berth.dev/gpu; needs resource.k8s.io/v1."
        ),
    ] = False,
    grow: GrowOption = Grow.OFF,
    uncounted: UncountedOption = Uncounted.REPORT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Install or update the steerer, the node agents and their access rights. Running pods continue."""
    from berth import __version__
    from berth.knowledge import history_folder
    from berth.live.kubernetes.installing import (
        apply,
        check_namespace,
        gate_tls,
        lift_gates,
        take_away,
    )
    from berth.live.kubernetes.manifests import Install, as_yaml, helm_chart, manifests, manifests_of_0_2

    if fake_gpus:
        checked(fake_gpus)
    for option, text in (("--image", image), ("--agent-image", agent_image or image)):
        if not text or any(letter.isspace() for letter in text):
            raise SettingError(
                f"{option} '{text}'; expected the image's name, such as registry.example/berth:1"
            )
    if (borrow or reclaim) and not quota:
        raise SettingError(
            f"--{'borrow' if borrow else 'reclaim'} goes with --quota; a cluster that has quotas keeps its own:"
            " kubectl edit configmap -n berth-system berth-tenants"
        )
    if reclaim and not borrow:
        raise SettingError("--reclaim takes back what --borrow lends; give both, or leave --reclaim out")
    _check_names(policy, knowledge)
    if quota:
        from berth.live.kubernetes.tenants import tenants_in

        flags = {"borrow": str(borrow).lower(), "reclaim": str(reclaim).lower()}
        with contextlib.suppress(MissingExtraError):  # the steerer's image has it
            tenants_in({"quotas": quota, **flags}, policy)  # says so if the policy has no quotas
    how = Install(
        image,
        agent_image,
        policy,
        mode.value,
        knowledge,
        quota,
        borrow,
        reclaim,
        replicas,
        fake_gpus,
        claims,
        grow.value,
        uncounted=uncounted.value,
        right_size=right_size.value,
        gathers=history_folder(knowledge) == Path(HISTORY_FOLDER),
        history_claim=history_claim,
    )
    if history_claim and not how.gathers:
        raise SettingError(
            f"--history-claim '{history_claim}' keeps the history in {HISTORY_FOLDER}, and --knowledge"
            f" '{knowledge}' reads another or none; leave one of them out, or write --knowledge '{GATHERED}'"
        )
    if write is not None:
        for name, text in helm_chart(how, __version__).items():
            path = write / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        print(f"wrote the chart {write}")
        return

    async def gate_of(api: Api) -> tuple[str, str] | None:
        return await gate_tls(api, _certificate) if mode is Mode.PLACE else None

    if dry_run:
        try:
            tls = _ask(gate_of, kubeconfig, context)
        except KubernetesError as error:
            tls = None
            print(
                f"berth: this is for Kubernetes 1.36 or later; no cluster was asked: {error}", file=sys.stderr
            )
        made = manifests(replace(how, tls=tls))
        print(as_yaml([each for group in made.values() for each in group]), end="")
        return

    async def run(api: Api) -> None:
        await check_namespace(api)
        if claims and not await api.kinds(CLAIMS_API):
            raise SettingError(
                f"--claims: this API server serves no {CLAIMS_API}, which Kubernetes has from 1.34 on; leave it out"
            )
        made = manifests(replace(how, tls=await gate_of(api)))
        for each in [each for group in made.values() for each in group]:
            print(await apply(api, each))
        every = _of_any_cluster()
        unused = [each for name in ("gate", "gate-webhook") if name not in made for each in every[name]]
        for each in [*manifests_of_0_2(), *unused]:
            if done := await take_away(api, each):
                print(done)
        if mode is Mode.ADVISE:  # no steerer lifts them any more
            for done in await lift_gates(api):
                print(done)

    _ask(run, kubeconfig, context)


@app.command()
def uninstall(kubeconfig: Kubeconfig = None, context: Context = None) -> None:
    """Remove all that `install` made, and lift the gates of waiting pods. Running pods continue."""
    from berth.live.kubernetes.installing import clean, take_away
    from berth.live.kubernetes.manifests import manifests_of_0_2

    made = [each for group in _of_any_cluster().values() for each in group]
    # The gate's policy is made after the pods' namespace, and so goes before the gates are lifted.
    everything = [*manifests_of_0_2(), *reversed(made)]

    async def run(api: Api) -> None:
        for each in everything:
            if done := await take_away(api, each):
                print(done)
        for done in await clean(api):
            print(done)

    _ask(run, kubeconfig, context)


def _of_any_cluster() -> dict[str, list[Any]]:
    """All that `install` makes on one cluster or another."""
    from berth.live.kubernetes.manifests import Install, manifests

    every = Install("", claims=True, quota="none=0")
    return manifests(replace(every, tls=("", ""))) | manifests(every)


def _certificate() -> tuple[str, str]:
    """A new certificate of the webhook and its key, both base64."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        made = own_certificate(Path(folder), f"{GATING}.{NAMESPACE}.svc", days=3650)
        if made is None:
            raise KubernetesError(
                "before Kubernetes 1.36 a webhook adds the gate, and openssl makes its certificate, which is not here;"
                " install openssl, or use Helm (--write FOLDER)"
            )
        certificate, key = (b64encode(path.read_bytes()).decode() for path in made)
    return certificate, key


def _check_names(policy: str, knowledge: str) -> None:
    """Refuse what no steerer would know. What has a colon or a path may be in the image alone."""
    from berth.knowledge import check_knowledge
    from berth.policies import make_policy

    if not {":", "/"} & set(policy):
        with contextlib.suppress(MissingExtraError):
            make_policy(policy)
    if not {":", "/"} & set(knowledge):
        check_knowledge(knowledge)


def _look(kubeconfig: str | None, context: str | None) -> Snapshot:
    from berth.live.kubernetes.viewing import look

    return _ask(look, kubeconfig, context)


async def _unsteered(api: Api, name: str) -> str:
    """Why nothing is known of a pod, NAMESPACE/NAME."""
    from urllib.parse import quote

    namespace, _, pod = name.partition("/")
    with contextlib.suppress(ApiError):
        path = pod_path(quote(namespace, ""), quote(pod, ""))
        if await api.find(path, dict[str, Any]) is None:
            return f"no such pod '{name}'; name it as NAMESPACE/NAME"
    return f"pod '{name}' neither waits for berth nor runs by it; see berth k8s status"


def _ask(
    what: Callable[[Api], Awaitable[T]],
    kubeconfig: str | None,
    context: str | None,
    *,
    follows: bool = False,
) -> T:
    """Run something with a client of the cluster, until it ends or is interrupted. Raises ApiError soon if the server
    cannot be reached, unless it `follows` the cluster and so waits for the server."""
    import asyncio

    from berth.live.kubernetes.access import find_access
    from berth.live.kubernetes.client import Api, check_reachable

    access = find_access(kubeconfig, context)

    async def whole() -> T:
        async with Api(access) as api:
            if not follows:
                await check_reachable(api)
            return await what(api)

    try:
        return asyncio.run(_until_terminated(whole()))
    except asyncio.CancelledError:
        raise typer.Exit from None


async def _until_terminated(work: Coroutine[Any, Any, T]) -> T:
    """Await something that SIGTERM cancels."""
    import asyncio

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def _log() -> None:
    import logging

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
