"""The extender of another scheduler: which nodes a pod fits, how well, and its bind with a placement.

For clusters that keep their default scheduler. It decides one pod at a time, as it is asked: no queue, no gangs, no
preemption. TLS only, for clients with a certificate. One extender per cluster: two would give one GPU twice.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from berth.cluster import Queue
from berth.errors import ApiError, AskError, KubernetesError
from berth.live.kubernetes import objects, writing
from berth.live.kubernetes.asks import ask_of
from berth.live.kubernetes.board import Board
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.clock import steady_clock
from berth.live.kubernetes.entries import Settings
from berth.live.kubernetes.informer import Informer
from berth.live.kubernetes.jobs import job_of
from berth.live.kubernetes.placements import annotation_of
from berth.live.kubernetes.reasons import lacking
from berth.live.kubernetes.renewing import Renewal
from berth.live.kubernetes.steps import Bind
from berth.model import Job, Placement

log = logging.getLogger(__name__)

MOST_BYTES = 64 << 20
"""Of one question: a scheduler without `nodeCacheCapable` sends every node whole."""
BEST = 10
"""The highest priority that an extender may give."""


class Args(objects.Struct):
    """What filter and prioritize are asked. Keys are as Go writes them."""

    pod: objects.Pod | None = msgspec.field(default=None, name="Pod")
    node_names: list[str] | None = msgspec.field(default=None, name="NodeNames")
    nodes: dict[str, msgspec.Raw] | None = msgspec.field(default=None, name="Nodes")


class BindArgs(objects.Struct):
    """What bind is asked."""

    pod_name: str = msgspec.field(default="", name="PodName")
    pod_namespace: str = msgspec.field(default="", name="PodNamespace")
    pod_uid: str = msgspec.field(default="", name="PodUID")
    node: str = msgspec.field(default="", name="Node")


def tls_of(certificate: Path, key: Path, client_ca: Path) -> ssl.SSLContext:
    """The context of a server with this certificate, for clients with one from `client_ca` alone: a client binds pods
    with berth's rights. Raises KubernetesError if the files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise KubernetesError(f"certificate {certificate} with key {key} cannot be used: {error}") from error
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(client_ca)
    except (OSError, ssl.SSLError) as error:
        raise KubernetesError(f"the clients' CA {client_ca} cannot be used: {error}") from error
    return context


class Extender:
    """Answers from a board that is kept up to date by watches."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self.api = api
        self._renewal = Renewal(settings.knowledge)
        self.board = Board(settings)
        self._now_ms = steady_clock()
        self._pods: Informer[objects.Pod] | None = None
        self._binding = asyncio.Lock()  # one decision at a time: two would give one GPU twice

    async def listen(self) -> None:
        """List all, and watch until cancelled."""
        board = self.board
        nodes = Informer(
            self.api, "/api/v1/nodes", objects.Node, changed=board.nodes.changed, gone=board.nodes.gone
        )
        pods = self._pods = Informer(
            self.api,
            "/api/v1/pods",
            objects.Pod,
            changed=lambda pod: board.pod_changed(pod, self._now_ms()),
            gone=lambda pod: board.pod_gone(pod, self._now_ms()),
        )

        async def then_pods() -> None:
            await nodes.synced.wait()
            board.sync_nodes(self._now_ms())
            await pods.run()

        async def begin() -> None:
            await pods.synced.wait()
            board.begin(self._now_ms())

        await asyncio.gather(nodes.run(), then_pods(), begin(), self._renewal.follow(board.renew))

    def application(self) -> web.Application:
        """The three questions, each a path of its own."""
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post("/filter", self._answer_filter)
        app.router.add_post("/prioritize", self._answer_prioritize)
        app.router.add_post("/bind", self._answer_bind)
        app.router.add_get("/healthz", self._answer_health)
        return app

    # What is asked

    async def _answer_health(self, request: web.Request) -> web.Response:
        ready = self._pods is not None and self._pods.synced.is_set()
        return web.Response(status=200 if ready else 503, text="ok" if ready else "listing")

    async def _answer_filter(self, request: web.Request) -> web.Response:
        try:
            args = msgspec.json.decode(await request.read(), type=Args)
            names, fits, failed = _asked(args), [], {}
            job, ask = self._job(args.pod)
            for name in names:
                view, row = self.board.views.get(name), self.board.cluster.row_of(name)
                why = (
                    "not known to berth" if view is None else lacking(self.board, ask, job, view, row).message
                )
                if why:
                    failed[name] = f"berth: {why}"
                else:
                    fits.append(name)
        except (AskError, msgspec.DecodeError) as error:
            return _json({"Error": f"berth: {error}"})
        answer: dict[str, Any] = {"NodeNames": fits, "FailedNodes": failed, "Error": ""}
        if args.nodes is not None:
            answer = {**answer, "NodeNames": None, "Nodes": _only(args, set(fits))}
        return _json(answer)

    async def _answer_prioritize(self, request: web.Request) -> web.Response:
        """The node that the policy would take gets the highest priority, all others none."""
        try:
            args = msgspec.json.decode(await request.read(), type=Args)
            job, _ = self._job(args.pod)
            chosen = self._chosen(job, set(_asked(args)))
        except (AskError, msgspec.DecodeError) as error:
            log.warning("%s", error)
            return _json([])
        best = None if chosen is None else self.board.cluster.nodes[chosen.slots[0].node].name
        return _json([{"Host": name, "Score": BEST if name == best else 0} for name in _asked(args)])

    async def _answer_bind(self, request: web.Request) -> web.Response:
        try:
            args = msgspec.json.decode(await request.read(), type=BindArgs)
            async with self._binding:
                await self._bind(args)
        except (AskError, ApiError, writing.Taken, msgspec.DecodeError) as error:
            return _json({"Error": f"berth: {error}"})
        return _json({"Error": ""})

    async def _bind(self, args: BindArgs) -> None:
        path = f"/api/v1/namespaces/{args.pod_namespace}/pods/{args.pod_name}"
        pod = await self.api.get(path, objects.Pod, patience_s=2.0)
        job, _ = self._job(pod)
        placement = self._chosen(job, {args.node})
        if placement is None:
            raise AskError(
                f"node {args.node} no longer has room for pod {args.pod_namespace}/{args.pod_name}"
            )
        text = annotation_of(placement, self.board.views[args.node], self.board.settings.policy)
        step = Bind(args.pod_uid, args.pod_namespace, args.pod_name, args.node, text, frozenset())
        await writing.bind(self.api, step)
        # Its place is taken from here on, and not only when the watch says so.
        self.board.pod_changed(await self.api.get(path, objects.Pod, patience_s=2.0), self._now_ms())

    def _job(self, pod: objects.Pod | None) -> tuple[Job, Any]:
        if pod is None:
            raise AskError("the request names no pod")
        self.board.sync_nodes(self._now_ms())
        # What the other scheduler honours is its business: volumes, affinity between pods, spread.
        ask = ask_of(pod, self.board.settings.compat, places=False)
        # Its constraints are the other scheduler's business; GPUs, CPU and memory are counted here.
        return job_of("asked", pod.metadata.namespace, self._now_ms(), ask, (), self.board.nodes.cards), ask

    def _chosen(self, job: Job, names: set[str]) -> Placement | None:
        """What the policy decides for this job alone, if only these nodes were up."""
        board = self.board
        cluster, scheduler = board.cluster, board.scheduler
        wanted = {row for name in names if (row := cluster.row_of(name)) is not None and cluster.up[row]}
        others = [row for row in range(len(cluster.nodes)) if cluster.up[row] and row not in wanted]
        queue = Queue()
        queue.add(job)
        for row in others:
            cluster.lose(row)
        try:
            for decision in scheduler.policy(queue, cluster, self._now_ms()):
                return decision if isinstance(decision, Placement) else None
        finally:
            for row in others:
                cluster.restore(row)
        return None


def _asked(args: Args) -> list[str]:
    if args.node_names is not None:
        return args.node_names
    items = msgspec.json.decode((args.nodes or {}).get("items", msgspec.Raw(b"[]")), type=list[objects.Node])
    return [node.metadata.name for node in items]


def _only(args: Args, fits: set[str]) -> dict[str, Any]:
    assert args.nodes is not None
    items = msgspec.json.decode(args.nodes.get("items", msgspec.Raw(b"[]")))
    return {**args.nodes, "items": [item for item in items if item["metadata"]["name"] in fits]}


def _json(answer: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
