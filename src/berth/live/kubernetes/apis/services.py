"""The services of the kubelet's interfaces: which calls each has, served by an object's methods or called on a socket.

    server = serve(socket, {DEVICE_PLUGIN: plugin})       # plugin.Allocate(request, context) and so on
    answer = await call(channel, REGISTRATION, "Register", request)

Sockets are made with mode 0600, because any client may allocate GPUs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from berth.live.kubernetes.apis import (
    deviceplugin_v1beta1_pb2 as plugins,
)
from berth.live.kubernetes.apis import (
    dra_v1_pb2 as dra_v1,
)
from berth.live.kubernetes.apis import (
    dra_v1beta1_pb2 as dra_v1beta1,
)
from berth.live.kubernetes.apis import (
    pluginregistration_v1_pb2 as registration,
)
from berth.live.kubernetes.apis import (
    podresources_v1_pb2 as pod_resources,
)

Message = Any


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """One gRPC service."""

    name: str
    """With its package, as it goes over the wire."""
    unary: Mapping[str, tuple[Message, Message]]
    """By the call's name: the types of its request and its answer."""
    streams: Mapping[str, tuple[Message, Message]] = field(default_factory=dict)
    """Calls that answer more than once."""


def _dra(version: str, messages: Any) -> Service:
    return Service(
        f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin",
        {
            f"Node{verb}Resources": (
                getattr(messages, f"Node{verb}ResourcesRequest"),
                getattr(messages, f"Node{verb}ResourcesResponse"),
            )
            for verb in ("Prepare", "Unprepare")
        },
    )


DEVICE_REGISTRATION = Service("v1beta1.Registration", {"Register": (plugins.RegisterRequest, plugins.Empty)})
DEVICE_PLUGIN = Service(
    "v1beta1.DevicePlugin",
    {
        "GetDevicePluginOptions": (plugins.Empty, plugins.DevicePluginOptions),
        "GetPreferredAllocation": (plugins.PreferredAllocationRequest, plugins.PreferredAllocationResponse),
        "Allocate": (plugins.AllocateRequest, plugins.AllocateResponse),
        "PreStartContainer": (plugins.PreStartContainerRequest, plugins.PreStartContainerResponse),
    },
    {"ListAndWatch": (plugins.Empty, plugins.ListAndWatchResponse)},
)
PLUGIN_REGISTRATION = Service(
    "pluginregistration.Registration",
    {
        "GetInfo": (registration.InfoRequest, registration.PluginInfo),
        "NotifyRegistrationStatus": (
            registration.RegistrationStatus,
            registration.RegistrationStatusResponse,
        ),
    },
)
POD_RESOURCES = Service(
    "v1.PodResourcesLister",
    {"List": (pod_resources.ListPodResourcesRequest, pod_resources.ListPodResourcesResponse)},
)
DRA_V1 = _dra("v1", dra_v1)
DRA_V1BETA1 = _dra("v1beta1", dra_v1beta1)


async def serve(socket: Path, served: Mapping[Service, object]) -> Any:
    """A started server on a Unix socket, in place of any that was there; `stop(grace)` ends it."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([_handlers(service, methods) for service, methods in served.items()])
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    before = os.umask(0o177)  # a socket that is opened first and closed to others later was open
    try:
        server.add_insecure_port(f"unix:{socket}")
    finally:
        os.umask(before)
    await server.start()
    return server


def _handlers(service: Service, methods: object) -> Any:
    found = {}
    for kind, make in (
        (service.unary, grpc.unary_unary_rpc_method_handler),
        (service.streams, grpc.unary_stream_rpc_method_handler),
    ):
        for name, (request, answer) in kind.items():
            found[name] = make(
                getattr(methods, name),
                request_deserializer=request.FromString,
                response_serializer=answer.SerializeToString,
            )
    return grpc.method_handlers_generic_handler(service.name, found)


def open_channel(socket: Path) -> Any:
    """A channel to a Unix socket; an asynchronous context."""
    return grpc.aio.insecure_channel(
        f"unix:{socket}", options=[("grpc.max_receive_message_length", 64 << 20)]
    )


async def call(
    channel: Any, service: Service, name: str, request: Message, timeout_s: float = 10.0
) -> Message:
    """One call and its answer; raises `grpc.aio.AioRpcError`."""
    _, answer = service.unary[name]
    sender = channel.unary_unary(
        f"/{service.name}/{name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    return await sender(request, timeout=timeout_s)


def watch(channel: Any, service: Service, name: str, request: Message) -> AsyncIterator[Message]:
    """The answers of a call that answers more than once; raises `grpc.aio.AioRpcError` when the other side goes."""
    _, answer = service.streams[name]
    sender = channel.unary_stream(
        f"/{service.name}/{name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    stream: AsyncIterator[Message] = sender(request)
    return stream
