"""Downloads from a server of our own that cuts off, ignores ranges, changes files and denies them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from berth.errors import FetchError
from berth.traces.fetch import PUBLIC_TRACES, RemoteFile, fetch_file, public_trace

DATA = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(DATA).hexdigest()


class Publisher(ThreadingHTTPServer):
    """Serves DATA at every address but /missing, and notes the ranges that it was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.data = DATA
        self.cut_after: int | None = None
        self.knows_ranges = True
        self.asked: list[str | None] = []

    def file(
        self, name: str = "trace.csv", *, size: int | None = None, sha256: str | None = None
    ) -> RemoteFile:
        return RemoteFile(name, f"http://127.0.0.1:{self.server_port}/{name}", size, sha256)


class _Handler(BaseHTTPRequestHandler):
    server: Publisher

    def do_GET(self) -> None:
        server = self.server
        wanted = self.headers.get("Range")
        server.asked.append(wanted)
        if self.path == "/missing":
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.knows_ranges else 0
        if start and start >= len(server.data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.data) - 1}/{len(server.data)}")
        self.send_header("Content-Length", str(len(server.data) - start))
        self.end_headers()
        self.wfile.write(server.data[start : server.cut_after])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with Publisher() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_file_comes_whole_and_is_not_loaded_twice(publisher: Publisher, tmp_path: Path) -> None:
    file = publisher.file(size=len(DATA), sha256=SHA256)
    told: list[tuple[int, int | None]] = []
    path = fetch_file(file, tmp_path / "new", progress=lambda done, total: told.append((done, total)))
    assert path.read_bytes() == DATA
    assert (told[0], told[-1]) == ((0, len(DATA)), (len(DATA), len(DATA)))
    assert fetch_file(file, tmp_path / "new") == path
    assert publisher.asked == [None]
    assert [entry.name for entry in path.parent.iterdir()] == ["trace.csv"]


def test_a_cut_connection_is_told_and_gone_on_from(publisher: Publisher, tmp_path: Path) -> None:
    file = publisher.file(sha256=SHA256)
    publisher.cut_after = 300_000
    with pytest.raises(FetchError, match=r"cut off .*; run it again to go on from"):
        fetch_file(file, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.csv.part"]
    publisher.cut_after = None
    assert fetch_file(file, tmp_path).read_bytes() == DATA
    assert publisher.asked == [None, "bytes=300000-"]


def test_a_server_that_ignores_ranges_begins_anew(publisher: Publisher, tmp_path: Path) -> None:
    publisher.knows_ranges = False
    (tmp_path / "trace.csv.part").write_bytes(b"something else" * 100_000)
    assert fetch_file(publisher.file(sha256=SHA256), tmp_path).read_bytes() == DATA


def test_what_is_all_there_but_not_renamed_needs_only_its_checksum(
    publisher: Publisher, tmp_path: Path
) -> None:
    (tmp_path / "trace.csv.part").write_bytes(DATA)
    assert fetch_file(publisher.file(sha256=SHA256), tmp_path).read_bytes() == DATA
    (tmp_path / "trace.csv").rename(tmp_path / "trace.csv.part")
    assert fetch_file(publisher.file(size=len(DATA), sha256=SHA256), tmp_path).read_bytes() == DATA
    assert publisher.asked == [f"bytes={len(DATA)}-"]


def test_a_wrong_checksum_is_refused_and_deleted(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=f"the checksum is {SHA256}, expected {'0' * 64}"):
        fetch_file(publisher.file(sha256="0" * 64), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_errors_say_what_the_server_or_the_network_said(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="the server answers 404"):
        fetch_file(publisher.file("missing"), tmp_path / "new")
    with pytest.raises(FetchError, match=r"the server offers 1024000 bytes, expected 5"):
        fetch_file(publisher.file(size=5), tmp_path)
    nobody = RemoteFile("trace.csv", "http://127.0.0.1:9/trace.csv")
    with pytest.raises(FetchError, match=r"no connection .* is there a network"):
        fetch_file(nobody, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [], "no folder is left behind"
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FetchError, match="cannot be written"):
        fetch_file(publisher.file(), tmp_path / "file")


def test_the_catalogue_states_licence_and_checksums_of_the_right_form() -> None:
    with pytest.raises(FetchError, match=r"no public trace 'nothing'; there are openb, philly, pai, helios"):
        public_trace("nothing")
    for trace in PUBLIC_TRACES.values():
        assert trace.licence
        assert trace.cite
        for file in trace.files:
            assert file.url.startswith("https://")
            assert file.url.endswith(file.name)
            assert file.sha256 is None or (len(file.sha256) == 64 and int(file.sha256, 16))
