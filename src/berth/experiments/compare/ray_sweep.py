"""The runs of a sweep on a Ray cluster; Ray is the optional extra `ray`.

The jobs go to the cluster with the tasks, so that the trace need not lie there; berth must be installed there.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from berth.errors import SettingError
from berth.experiments.compare.sweep import Loader, Result, Task, run_task
from berth.model import Job

__all__ = ["check_address", "run_on_ray"]

ANSWERS_WITHIN_S = 5
_HERE = ("local", "auto")
"""Addresses that name no other machine: a Ray of one's own, and the one that runs here."""

_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of gRPC, which Ray speaks, begins: HTTP/2's preface and an empty SETTINGS frame (RFC 9113, 3.4)."""
_SETTINGS = b"\x04"
"""The kind, the fourth byte, of the frame that a server begins with."""
_HEAD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_CLIENT = "/ray.rpc.RayletDriver/ClusterInfo"
"""Calls that the head of a cluster knows, and its server for clients (ray://)."""


def run_on_ray(tasks: Sequence[Task], address: str) -> Iterator[Result]:
    """Every task's result, as they are done on the cluster at this address.

    `local` starts a Ray for these runs alone. SettingError where nobody answers at the address.
    """
    check_address(address)
    # So many tries, a second each, for what speaks Ray's protocol and is no head of a cluster; read on import.
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", str(ANSWERS_WITHIN_S))
    import ray

    alone: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **alone)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SettingError(f"no Ray cluster at '{address}': {_first_line(error)}") from error
    try:
        yield from _results(ray, tasks)
    finally:
        ray.shutdown()


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


def _results(ray: Any, tasks: Sequence[Task]) -> Iterator[Result]:
    run = ray.remote(_run)
    loader = Loader()
    left = deque(tasks)
    at_once = 2 + int(ray.cluster_resources().get("CPU", 1))  # a few wait there, so that no CPU does
    sent: tuple[Any, Any] = (None, None)
    pending: dict[Any, tuple[Any, ...]] = {}
    try:
        while left or pending:
            while left and len(pending) < at_once:
                task = left.popleft()
                jobs, errors = loader.load(task)
                if sent[0] is not jobs:
                    sent = (jobs, ray.put(jobs))
                pending[run.remote(replace(task, source=()), sent[1])] = errors
            done, _ = ray.wait(list(pending), num_returns=1)
            for reference in done:
                yield replace(ray.get(reference), skipped=pending.pop(reference))
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)


def _run(task: Task, jobs: tuple[Job, ...]) -> Any:
    return run_task(task, jobs)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
