"""Pushing spools to a collector: once whatever is cut off, by those alone that know the token."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.errors import SamplingError
from berth.sampling.collector import LARGEST_BODY, Collector, read_token
from berth.sampling.push import REST_S, Pusher, push
from berth.sampling.spool import Slice, SpoolWriter, segments
from tests.sampling.segments import read_segment

TOKEN = "a-token-of-many-letters"


def a_slice(at_s: int) -> Slice:
    return Slice("1", at_s * 1000, at_s * 1000 + 10_000, 10, 1e4, 1e4, 5e3, 2e3, None, None, None, 0.5, 0.2)


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    with Collector(tmp_path / "all", TOKEN, "127.0.0.1", 0) as made:
        thread = threading.Thread(target=made.serve)
        thread.start()
        yield made
        made.stop()
        thread.join()


def url(collector: Collector) -> str:
    return f"http://127.0.0.1:{collector.port}"


def asked(
    collector: Collector, method: str, target: str, body: bytes = b"", token: str = TOKEN
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", collector.port, timeout=30)
    try:
        connection.request(method, target, body or None, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip()
    finally:
        connection.close()


def test_a_collector_has_what_was_appended_once_and_the_node_drops_what_is_over(
    tmp_path: Path, collector: Collector
) -> None:
    spool, now = tmp_path / "spool", time.time()
    with SpoolWriter(spool, "n1", "c", 1000) as writer, SpoolWriter(spool, "n1-b", "c", 1000):
        writer.write([a_slice(0)])
        assert push(spool, "n1", url(collector), TOKEN, now_s=now) > 0
        assert push(spool, "n1", url(collector), TOKEN, now_s=now) == 0
        writer.write([a_slice(10), a_slice(20)])
        push(spool, "n1", url(collector), TOKEN, now_s=now)
    (mine,) = [path for path in segments(spool) if "n1-b" not in path.name]
    (there,) = segments(tmp_path / "all")
    assert there.read_bytes() == mine.read_bytes()
    assert read_segment(there)[1] == [a_slice(0), a_slice(10), a_slice(20)]
    assert there.stat().st_mode & 0o777 == 0o640
    push(spool, "n1", url(collector), TOKEN, now_s=now + 2 * REST_S)
    assert [path.name[:4] for path in segments(spool)] == ["n1-b"]  # another node's stays


def test_a_body_that_was_sent_twice_or_begins_elsewhere_changes_nothing(
    collector: Collector, tmp_path: Path
) -> None:
    name = "/segments/n1-20260101T000000-0123abcd.spool"
    assert asked(collector, "GET", name) == (200, "0")
    assert asked(collector, "POST", f"{name}?at=0", b"abc") == (200, "3")
    assert asked(collector, "POST", f"{name}?at=0", b"abc") == (409, "3")
    assert asked(collector, "POST", f"{name}?at=9", b"abc") == (409, "3")
    assert asked(collector, "POST", f"{name}?at=3", b"d") == (200, "4")
    assert (tmp_path / "all" / name[10:]).read_bytes() == b"abcd"


@pytest.mark.parametrize(
    ("method", "target", "token", "status"),
    [
        ("GET", "/segments/a.spool", "wrong", 401),
        ("POST", "/segments/a.spool?at=0", "", 401),
        ("GET", "/segments/../../etc/passwd", TOKEN, 404),
        ("GET", "/segments/..%2fa.spool", TOKEN, 404),
        ("GET", "/segments/.spool", TOKEN, 404),
        ("GET", "/segments/a.txt", TOKEN, 404),
        ("GET", "/", TOKEN, 404),
        ("POST", "/segments/a.spool", TOKEN, 400),
        ("POST", "/segments/a.spool?at=-1", TOKEN, 400),
        ("PUT", "/segments/a.spool?at=0", TOKEN, 501),
    ],
)
def test_what_is_none_of_its_requests_is_refused(
    collector: Collector, tmp_path: Path, method: str, target: str, token: str, status: int
) -> None:
    assert asked(collector, method, target, b"x" if method != "GET" else b"", token)[0] == status
    assert list((tmp_path / "all").iterdir()) == []


def test_a_body_that_is_too_long_or_cut_off_leaves_nothing(collector: Collector, tmp_path: Path) -> None:
    for length, sent in ((LARGEST_BODY + 1, b""), (100, b"half of it")):
        connection = http.client.HTTPConnection("127.0.0.1", collector.port, timeout=30)
        connection.putrequest("POST", "/segments/a.spool?at=0")
        connection.putheader("Authorization", f"Bearer {TOKEN}")
        connection.putheader("Content-Length", str(length))
        connection.endheaders()
        connection.send(sent)
        if length > LARGEST_BODY:
            assert connection.getresponse().status == 413
        connection.close()
    assert asked(collector, "GET", "/segments/a.spool") == (200, "0")
    assert list((tmp_path / "all").iterdir()) == []


def test_a_collector_that_is_away_or_refuses_is_told_once_and_the_spool_stays(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    spool = tmp_path / "spool"
    with SpoolWriter(spool, "n1", "c", 1000):
        pass
    with pytest.raises(SamplingError, match="401 Unauthorized: expected 'Authorization"):
        push(spool, "n1", url(collector), "another-token-altogether", now_s=0)
    with pytest.raises(SamplingError, match=r"expected http://HOST:PORT"):
        push(spool, "n1", "ftp://x", TOKEN, now_s=0)
    with Pusher(spool, "n1", "http://127.0.0.1:1", TOKEN, 0.05):
        time.sleep(0.3)
    assert len(caplog.records) == 1
    assert "keeps what is not sent" in caplog.text
    assert len(segments(spool)) == 1
    with Pusher(spool, "n1", url(collector), TOKEN, 60.0):
        pass
    assert len(segments(tmp_path / "all")) == 1  # the end sends the rest


def test_a_token_is_long_and_not_for_everybody(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o640)
    assert read_token(path) == TOKEN
    path.chmod(0o644)
    with pytest.raises(SamplingError, match="can be read by everybody; `chmod o="):
        read_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(SamplingError, match="has 5 characters; expected at least 16"):
        read_token(path)
    with pytest.raises(SamplingError, match="cannot be read"):
        read_token(tmp_path / "none")
