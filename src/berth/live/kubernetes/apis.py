"""The kubelet's gRPC interfaces, as `apis.toml` has them.

    server = serve(socket, DEVICE_PLUGIN, plugin)     # plugin.Allocate(request, context) and so on
    answer = await call(channel, DEVICE_REGISTRATION, "Register", request)

Sockets are made with mode 0600, because any client may allocate GPUs.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import grpc
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

Message = Any
_DEFINITIONS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_KINDS = {"string": 9, "bool": 8, "int32": 5, "int64": 3}
"""The numbers of a field's types, as `descriptor.proto` has them; every other word is a message."""
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3


def _messages(package: str) -> SimpleNamespace:
    """The message classes of a package."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in _DEFINITIONS[package]["messages"].items():
        made = file.message_type.add(name=name)
        for number, field in enumerate(filter(None, fields.strip().split(", ")), 1):
            kind, called = field.split()
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


_DRA = "k8s.io.kubelet.pkg.apis.dra.v1"
plugins, registration, pod_resources, dra = map(_messages, ("v1beta1", "pluginregistration", "v1", _DRA))


class Call(NamedTuple):
    request: Message
    answer: Message
    streams: bool
    """Whether it answers more than once."""


class Service(NamedTuple):
    name: str
    """With its package, as it goes over the wire."""
    calls: Mapping[str, Call]


def _service(package: str, name: str, messages: SimpleNamespace) -> Service:
    calls = {}
    for call, types in _DEFINITIONS[package][name].items():
        request, answer = types.split()
        asked, answered = (getattr(messages, each.lstrip("*")) for each in (request, answer))
        calls[call] = Call(asked, answered, answer.startswith("*"))
    return Service(f"{package}.{name}", calls)


DEVICE_REGISTRATION = _service("v1beta1", "Registration", plugins)
DEVICE_PLUGIN = _service("v1beta1", "DevicePlugin", plugins)
PLUGIN_REGISTRATION = _service("pluginregistration", "Registration", registration)
POD_RESOURCES = _service("v1", "PodResourcesLister", pod_resources)
DRA = _service(_DRA, "DRAPlugin", dra)


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
