"""What the client leaves behind when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from berth.console.certificate import own_certificate
from berth.errors import ApiError
from berth.live.kubernetes.access import Access
from berth.live.kubernetes.client import Api


class SilentServer:
    """Takes one connection on loopback, answers nothing on it and never says farewell."""

    def __init__(self, folder: Path) -> None:
        certificate = own_certificate(folder, "localhost")
        assert certificate is not None
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(*certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._taken = socket.socket()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"https://127.0.0.1:{self._listener.getsockname()[1]}"

    def accept(self) -> None:
        """Wait for the connection."""
        self._taken.close()
        self._taken, _ = self._listener.accept()

    def read(self) -> None:
        """Shake hands, and wait for the request or the end of the connection."""
        with contextlib.suppress(OSError):
            self._taken = self._tls.wrap_socket(self._taken, server_side=True)
            self._taken.recv(65_536)

    def close(self) -> None:
        """End the connection."""
        self._taken.close()
        self._listener.close()


async def get(api: Api) -> None:
    await api.request("GET", "/x")


async def watch(api: Api) -> None:
    async for _ in api.watch("/x", {}):
        pass


@pytest.mark.parametrize("ask", [get, watch])
@pytest.mark.parametrize(
    "ends", ["cancelled when asked", "cancelled as the handshake ends", "client closed before the handshake"]
)
def test_no_connection_of_a_request_that_is_given_up_outlives_the_client(
    ask: Callable[[Api], Coroutine[None, None, None]], ends: str, tmp_path: Path
) -> None:
    async def whole(server: SilentServer) -> None:
        class Handshake(ssl.SSLObject):
            def do_handshake(self) -> None:
                super().do_handshake()
                if ends == "cancelled as the handshake ends":
                    asked.cancel()

        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode, tls.sslobject_class = False, ssl.CERT_NONE, Handshake
        async with Api(Access(server.url, tls, str)) as api:
            asked = asyncio.create_task(ask(api))
            await asyncio.to_thread(server.accept)
            if ends != "client closed before the handshake":
                await asyncio.to_thread(server.read)
                asked.cancel()
                await asyncio.wait([asked])
        if not asked.done():
            await asyncio.to_thread(server.read)
        with pytest.raises((asyncio.CancelledError, ApiError)):
            await asked

    with contextlib.closing(SilentServer(tmp_path)) as server, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(asyncio.wait_for(whole(server), 300))
        gc.collect()
    assert [str(each.message) for each in warned] == []
