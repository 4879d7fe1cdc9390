"""The kubelet's gRPC interfaces: their messages, and which calls each service has.

    server = serve(socket, DEVICE_PLUGIN, plugin)     # plugin.Allocate(request, context) and so on
    answer = await call(channel, DEVICE_REGISTRATION, "Register", request)

Sockets are made with mode 0600, because any client may allocate GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import grpc
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

Message = Any
_KINDS = {"string": 9, "bool": 8, "int32": 5, "int64": 3}
"""The numbers of a field's types, as `descriptor.proto` has them; every other word is a message."""
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3


def _messages(package: str, definitions: str) -> SimpleNamespace:
    """The message classes of a package. Each line is a message with its fields, which are numbered from 1 on:
    `[T]` is repeated, `{T}` a map from strings, and `T?` optional."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for line in definitions.strip().splitlines():
        name, _, fields = line.strip().partition(":")
        made = file.message_type.add(name=name)
        for number, (kind, called) in enumerate(
            (each.split() for each in fields.split(",") if each.strip()), 1
        ):
            _add_field(made, package, called, kind, number)
    pool = DescriptorPool()
    pool.Add(file)
    classes = message_factory.GetMessageClassesForFiles([file.name], pool)
    return SimpleNamespace(**{name.rpartition(".")[2]: each for name, each in classes.items()})


def _add_field(message: Any, package: str, name: str, kind: str, number: int) -> None:
    of, path = kind.strip("[]{}?"), f".{package}.{message.name}"
    if kind[0] == "{":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add_field(entry, package, "key", "string", 1)
        _add_field(entry, package, "value", of, 2)
        of_type = f"{path}.{entry.name}"
    else:
        of_type = "" if of in _KINDS else f".{package}.{of}"
    label = _REPEATED if kind[0] in "[{" else _OPTIONAL
    made = message.field.add(name=name, number=number, label=label, type=_MESSAGE if of_type else _KINDS[of])
    if of_type:
        made.type_name = of_type
    if kind.endswith("?"):
        made.proto3_optional, made.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


plugins = _messages(
    "v1beta1",
    """
    Empty:
    DevicePluginOptions: bool pre_start_required, bool get_preferred_allocation_available
    RegisterRequest: string version, string endpoint, string resource_name, DevicePluginOptions options
    ListAndWatchResponse: [Device] devices
    Device: string ID, string health, TopologyInfo topology
    TopologyInfo: [NUMANode] nodes
    NUMANode: int64 ID
    AllocateRequest: [ContainerAllocateRequest] container_requests
    ContainerAllocateRequest: [string] devices_ids
    AllocateResponse: [ContainerAllocateResponse] container_responses
    ContainerAllocateResponse: {string} envs, [Mount] mounts, [DeviceSpec] devices, {string} annotations, [CDIDevice] cdi_devices
    Mount: string container_path, string host_path, bool read_only
    DeviceSpec: string container_path, string host_path, string permissions
    CDIDevice: string name
    PreStartContainerRequest: [string] devices_ids
    PreStartContainerResponse:
    """,  # noqa: E501
)
registration = _messages(
    "pluginregistration",
    """
    InfoRequest:
    PluginInfo: string type, string name, string endpoint, [string] supported_versions
    RegistrationStatus: bool plugin_registered, string error
    RegistrationStatusResponse:
    """,
)
pod_resources = _messages(
    "v1",
    """
    ListPodResourcesRequest:
    ListPodResourcesResponse: [PodResources] pod_resources
    PodResources: string name, string namespace, [ContainerResources] containers
    ContainerResources: string name, [ContainerDevices] devices
    ContainerDevices: string resource_name, [string] device_ids
    """,
)
dra = _messages(
    "k8s.io.kubelet.pkg.apis.dra.v1",
    """
    Claim: string namespace, string uid, string name
    NodePrepareResourcesRequest: [Claim] claims
    NodePrepareResourcesResponse: {NodePrepareResourceResponse} claims
    NodePrepareResourceResponse: [Device] devices, string error
    Device: [string] request_names, string pool_name, string device_name, [string] cdi_device_ids, string? share_id
    NodeUnprepareResourcesRequest: [Claim] claims
    NodeUnprepareResourcesResponse: {NodeUnprepareResourceResponse} claims
    NodeUnprepareResourceResponse: string error
    """,
)


class Call(NamedTuple):
    request: Message
    answer: Message
    streams: bool
    """Whether it answers more than once."""


class Service(NamedTuple):
    name: str
    """With its package, as it goes over the wire."""
    calls: Mapping[str, Call]


def _service(name: str, messages: SimpleNamespace, definitions: str) -> Service:
    """Each line is a call, its request and its answer; `*` is before an answer that comes more than once."""
    calls = {}
    for line in definitions.strip().splitlines():
        call, request, answer = line.split()
        asked, answered = (getattr(messages, each.lstrip("*")) for each in (request, answer))
        calls[call] = Call(asked, answered, answer.startswith("*"))
    return Service(name, calls)


DEVICE_REGISTRATION = _service("v1beta1.Registration", plugins, "Register RegisterRequest Empty")
DEVICE_PLUGIN = _service(
    "v1beta1.DevicePlugin",
    plugins,
    """
    GetDevicePluginOptions Empty DevicePluginOptions
    ListAndWatch Empty *ListAndWatchResponse
    Allocate AllocateRequest AllocateResponse
    PreStartContainer PreStartContainerRequest PreStartContainerResponse
    """,
)
PLUGIN_REGISTRATION = _service(
    "pluginregistration.Registration",
    registration,
    """
    GetInfo InfoRequest PluginInfo
    NotifyRegistrationStatus RegistrationStatus RegistrationStatusResponse
    """,
)
POD_RESOURCES = _service(
    "v1.PodResourcesLister", pod_resources, "List ListPodResourcesRequest ListPodResourcesResponse"
)
DRA = _service(
    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    dra,
    """
    NodePrepareResources NodePrepareResourcesRequest NodePrepareResourcesResponse
    NodeUnprepareResources NodeUnprepareResourcesRequest NodeUnprepareResourcesResponse
    """,
)


async def serve(socket: Path, service: Service, methods: object) -> Any:
    """A started server on a Unix socket, in place of any that was there; `stop(grace)` ends it."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([_handlers(service, methods)])
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
    for name, each in service.calls.items():
        make = grpc.unary_stream_rpc_method_handler if each.streams else grpc.unary_unary_rpc_method_handler
        found[name] = make(
            getattr(methods, name),
            request_deserializer=each.request.FromString,
            response_serializer=each.answer.SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service.name, found)


def open_channel(socket: Path) -> Any:
    return grpc.aio.insecure_channel(
        f"unix:{socket}", options=[("grpc.max_receive_message_length", 64 << 20)]
    )


async def call(
    channel: Any, service: Service, name: str, request: Message, timeout_s: float = 10.0
) -> Message:
    """One call and its answer; raises `grpc.aio.AioRpcError`."""
    sender = channel.unary_unary(
        f"/{service.name}/{name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=service.calls[name].answer.FromString,
    )
    return await sender(request, timeout=timeout_s)
