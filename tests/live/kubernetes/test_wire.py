"""The connections for small requests, against a server that answers as it may, and as it may not."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest

from berth.errors import ApiError
from berth.live.kubernetes.access import Access
from berth.live.kubernetes.client import Api


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("wire")
    made = folder / "tls.crt", folder / "tls.key"
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=berth -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        ["openssl", *words.split(), "-out", made[0], "-keyout", made[1]], check=True, capture_output=True
    )
    return made


def asked(
    certificate: tuple[Path, Path], answers: list[list[bytes]], *, at_once: bool = False
) -> tuple[list[bytes | str], list[bytes], int]:
    """What a client makes of these answers, each sent in parts; what it had sent; over how many connections."""
    sent: list[bytes] = []
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while answers:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            sent.append(head + await reader.readexactly(length))
            for part in answers.pop(0):
                if not part:
                    writer.close()
                    return
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()

    async def whole() -> list[bytes | str]:
        there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        there.load_cert_chain(*certificate)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=there)
        port = server.sockets[0].getsockname()[1]
        tls = ssl.create_default_context(cafile=str(certificate[0]))
        access = Access(
            server=f"https://127.0.0.1:{port}", tls=tls, token=lambda: "s3cret", namespace="default"
        )
        found: list[bytes | str] = []
        async with Api(access) as api:
            for _ in range(len(answers)):
                try:
                    found.append(
                        await api.request("POST", "/x", {"a": 1}, params={"timeout": "4s"}, limit_s=2)
                    )
                except ApiError as error:
                    found.append(f"{error.status} {error.reason}: {error.message} {error.retry_after_s}")
        server.close()
        return found

    return asyncio.run(whole()), sent, connections


def test_answers_of_a_length_and_in_chunks_come_over_one_connection(certificate: tuple[Path, Path]) -> None:
    found, sent, connections = asked(
        certificate,
        [
            [b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"],
            [
                b"HTTP/1.1 200 OK\r\nTransfer-Enc",
                b"oding: chunked\r\n\r\n3\r\nabc\r",
                b"\n1;x=y\r\nd\r\n0\r\n\r\n",
            ],
            [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab", b"cd"],
        ],
    )
    assert found == [b"{}", b"abcd", b"abcd"]
    assert connections == 1
    assert sent[0].startswith(b"POST /x?timeout=4s HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Authorization: Bearer s3cret\r\n" in sent[0]
    assert sent[0].endswith(b'\r\n\r\n{"a":1}')


def test_refusals_are_told_with_the_servers_words(certificate: tuple[Path, Path]) -> None:
    text = b'{"reason":"Conflict","message":"already bound"}'
    found, _, _ = asked(
        certificate,
        [
            [b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)],
            [b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nslow"],
        ],
    )
    assert found == ["409 Conflict: already bound None", "429 Too Many Requests: slow 7.0"]


def test_what_breaks_or_is_no_http_may_be_attempted_again(certificate: tuple[Path, Path]) -> None:
    found, _, connections = asked(
        certificate,
        [
            [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", b""],
            [b"SSH-2.0-OpenSSH\r\n\r\n\r\n"],
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
            [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"],
            [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"],
        ],
    )
    assert [str(each).split(":")[0] for each in found[:3]] == ["0 Unreachable"] * 3
    assert all(str(each).endswith(" 0.0") for each in found[:3])
    assert found[3:] == [b"ok", b"ok"]
    assert connections == 5


def test_a_burst_of_requests_shares_a_few_connections(certificate: tuple[Path, Path]) -> None:
    found, _, connections = asked(
        certificate, [[b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"] for _ in range(40)], at_once=True
    )
    assert found == [b"ok"] * 40
    assert connections <= 8
