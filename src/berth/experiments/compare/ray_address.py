"""Whether a Ray cluster answers at an address, found out within seconds; Ray itself tries for minutes."""

from __future__ import annotations

import os
import socket
from typing import Any

from berth.errors import SettingError

ANSWERS_WITHIN_S = 5
_HERE = ("local", "auto")
"""Addresses that name no other machine: a Ray of one's own, and the one that runs here."""

_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of gRPC, which Ray speaks, begins: HTTP/2's preface and an empty SETTINGS frame (RFC 9113, 3.4)."""
_SETTINGS = b"\x04"
"""The kind, the fourth byte, of the frame that a server begins with."""
_HEAD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_NODES = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
_CLIENT = "/ray.rpc.RayletDriver/ClusterInfo"
"""Calls that the head of a cluster knows, and its server for clients (ray://)."""


def check_address(address: str) -> None:
    """Raise SettingError where the address is none, or what answers there does not speak as Ray does."""
    if address in _HERE:
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise SettingError(
            f"'{address}' is no address of a Ray cluster; expected HOST:PORT, ray://HOST:PORT or local"
        )
    try:
        with socket.create_connection((host, int(port)), timeout=ANSWERS_WITHIN_S) as connection:
            connection.settimeout(ANSWERS_WITHIN_S - 1)
            connection.sendall(_GREETING)
            answer = connection.recv(64)
    except (OSError, OverflowError) as error:
        raise SettingError(
            f"no Ray cluster answers at '{address}' ({error}); start one with: ray start --head --port {port}"
        ) from error
    if answer[3:4] != _SETTINGS:
        raise SettingError(
            f"no Ray cluster answers at '{address}': what listens there says {answer[:20]!r}, which is not gRPC"
        )
    _check_service(address, f"{host}:{port}")


def _check_service(address: str, target: str) -> None:
    """Raise SettingError where what speaks gRPC is no Ray, or one that wants a token that is not given."""
    try:
        import grpc
    except ImportError:
        return  # the import of Ray, of whose extra it is, says so

    with grpc.insecure_channel(target) as channel:
        try:
            channel.unary_unary(_CLIENT if address.startswith("ray://") else _HEAD)(
                b"", timeout=ANSWERS_WITHIN_S - 1
            )
        except grpc.RpcError as error:
            code = error.code()
            if code is grpc.StatusCode.UNAUTHENTICATED:
                if os.environ.get("RAY_AUTH_MODE") != "token":
                    raise SettingError(
                        f"the Ray cluster at '{address}' wants a token; set RAY_AUTH_MODE=token, and the token in"
                        " RAY_AUTH_TOKEN or ~/.ray/auth_token"
                    ) from error
            elif code in (
                grpc.StatusCode.UNIMPLEMENTED,
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            ):
                raise SettingError(
                    f"no Ray cluster answers at '{address}': what listens there speaks gRPC, but not as Ray does"
                    f" ({code.name})"
                ) from error
            return
        if not address.startswith("ray://"):
            _check_node_here(address, channel)


def _check_node_here(address: str, channel: Any) -> None:
    """Raise SettingError if no living node of the cluster is on this machine: a driver talks to one by its socket."""
    import grpc

    try:
        from ray.core.generated import gcs_service_pb2
    except ImportError:
        return
    try:
        answer = channel.unary_unary(_NODES)(b"", timeout=ANSWERS_WITHIN_S - 1)
    except grpc.RpcError:
        return  # a Ray that tells otherwise: let it be tried
    reply: Any = gcs_service_pb2
    nodes = reply.GetAllNodeInfoReply.FromString(answer).node_info_list
    alive = [node for node in nodes if node.state == node.ALIVE]
    if any(_listens(node.raylet_socket_name) for node in alive):
        return
    dead = len(nodes) - len(alive)
    raise SettingError(
        f"the Ray cluster at '{address}' has no living node on this machine ({len(alive)} elsewhere or not answering,"
        f" {dead} dead); start one here with: ray start --address {address}, or use ray://HOST:10001"
    )


def _listens(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(path)
    except OSError:
        return False
    return True
