"""Who gets in, as whom, and what another site's page cannot do."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi import Depends
from typer.testing import CliRunner

from berth.cli.app import app
from berth.console.certificate import fingerprint, is_loopback, own_certificate
from berth.console.identity import COOKIE, CSRF_HEADER, Doorkeeper, user, viewer
from berth.console.roles import Role, Viewer
from berth.console.server import HEADERS, MOST_BODY, listening
from berth.console.settings import Listen, Settings
from berth.errors import LiveError, SettingError
from tests.console.world import World

WHO = Depends(viewer)
USER = Depends(user)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "state", proxies=frozenset({"10.0.0.9"}), operators=frozenset({"olga"}))

    @world.app.get("/who")
    def who(viewer: Viewer = WHO) -> list[str]:
        return [viewer.user, viewer.role, viewer.via]

    @world.app.post("/change")
    def change(viewer: Viewer = WHO) -> str:
        return viewer.user

    @world.app.post("/ask")
    def ask(viewer: Viewer = USER) -> str:
        return viewer.user

    return world


def test_without_a_token_nothing_is_shown(world: World) -> None:
    answer = world.stranger().get("/who")
    assert (answer.status_code, "valid token" in answer.json()["detail"]) == (401, True)


def test_a_page_asks_for_the_token_and_the_form_lets_in(world: World) -> None:
    client = world.stranger()
    client.headers["Accept"] = "text/html"
    assert "Token needed" in client.get("/who").text
    form = {"token": world.token("ann"), "to": "/who"}
    answer = client.post("/login", content="&".join(f"{key}={value}" for key, value in form.items()))
    assert (answer.status_code, answer.headers["location"]) == (303, "/who")
    assert client.get("/who").json() == ["ann", "user", "token"]


def test_the_token_is_in_no_address_after_login_and_the_cookie_is_not_for_scripts(world: World) -> None:
    answer = world.stranger().get("/login", params={"token": world.token()})
    cookie = answer.headers["set-cookie"]
    assert (answer.headers["location"], "HttpOnly" in cookie, "SameSite=lax" in cookie) == (
        "/",
        True,
        True,
    )


@pytest.mark.parametrize(
    "to", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_login_leads_nowhere_else(world: World, to: str) -> None:
    answer = world.stranger().get("/login", params={"token": world.token(), "to": to})
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize("token", ["", "x", "ä", "Bearer"])
def test_a_wrong_token_is_refused(world: World, token: str) -> None:
    assert world.stranger().get("/login", params={"token": token}).status_code == 401


def test_an_expired_token_ends_its_session(world: World) -> None:
    client = world.stranger()
    client.get("/login", params={"token": world.token("ann", days=1e-9)})
    assert client.get("/who").status_code == 401


def test_a_token_that_is_taken_back_ends_its_session(world: World) -> None:
    client = world.browser("ann")
    assert client.get("/who").status_code == 200
    world.app.state.doorkeeper.tokens.remove("ann")
    assert client.get("/who").status_code == 401


def test_a_changed_cookie_is_refused(world: World) -> None:
    client = world.browser("ann")
    cookie = client.cookies[COOKIE]
    client.cookies.clear()
    client.cookies.set(COOKIE, ("A" if cookie[0] != "A" else "B") + cookie[1:])
    assert client.get("/who").status_code == 401


def test_a_change_needs_the_pages_own_mark(world: World) -> None:
    client = world.browser("ann")
    assert client.post("/change").json() == "ann"
    del client.headers[CSRF_HEADER]
    assert client.post("/change").status_code == 403


def test_a_programs_change_needs_its_token_alone(world: World) -> None:
    assert world.program("ann").post("/change").json() == "ann"


def test_the_header_of_a_trusted_proxy_names_the_user(world: World) -> None:
    client = world.stranger("10.0.0.9")
    assert client.get("/who", headers={"X-Forwarded-User": "olga"}).json() == ["olga", "operator", "proxy"]
    assert client.get("/who", headers={"X-Forwarded-User": "bob"}).json() == ["bob", "user", "proxy"]


def test_two_headers_of_a_trusted_proxy_name_nobody(world: World) -> None:
    client = world.stranger("10.0.0.9")
    answer = client.get("/who", headers=[("X-Forwarded-User", "olga"), ("X-Forwarded-User", "bob")])
    assert (answer.status_code, "2 headers X-Forwarded-User came" in answer.json()["detail"]) == (401, True)


def test_the_header_of_anybody_else_is_forged(world: World) -> None:
    answer = world.stranger("10.0.0.8").get("/who", headers={"X-Forwarded-User": "olga"})
    assert answer.status_code == 401


def test_what_needs_the_role_of_a_user_is_refused_to_a_viewer(world: World) -> None:
    assert world.program("ann", Role.VIEWER).post("/ask").status_code == 403
    assert world.program("olga", Role.OPERATOR).post("/ask").json() == "olga"


def test_every_answer_carries_the_headers_and_a_strict_policy(world: World) -> None:
    for answer in (
        world.stranger().get("/who"),
        world.browser().get("/who"),
        world.stranger().get("/static/console.js"),
    ):
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "default-src 'none'; script-src 'self';" in answer.headers["Content-Security-Policy"]


def test_many_attempts_to_log_in_have_to_wait(world: World) -> None:
    client = world.stranger()
    answers = [client.get("/login", params={"token": str(each)}).status_code for each in range(30)]
    assert (answers[0], answers[-1]) == (401, 429)


def test_the_file_of_tokens_is_for_its_owner_and_holds_none(world: World) -> None:
    text = world.token()
    path = world.settings.state / "tokens.json"
    assert (path.stat().st_mode & 0o777, text in path.read_text()) == (0o600, False)


def test_people_behind_one_proxy_do_not_use_up_each_others_requests(world: World) -> None:
    client = world.stranger("10.0.0.9")

    def attempt(user: str) -> int:
        headers = {"X-Forwarded-User": user}
        return client.get("/login", params={"token": "x"}, headers=headers).status_code

    assert [attempt("ann") for _ in range(30)][-1] == 429
    assert attempt("bob") == 401


def test_a_long_body_is_refused_before_it_is_read(world: World) -> None:
    client = world.stranger()
    for path in ("/login", "/change", "/api/v1/actions"):
        assert client.post(path, content=b"x" * (MOST_BODY + 1)).status_code == 413
        assert client.post(path, content=iter([b"x"])).status_code == 411
        for length in ("many", "-5", "٣"):
            answer = client.post(path, content=b"x", headers={"Content-Length": length.encode()})
            assert (answer.status_code, "expected a whole number" in answer.json()["detail"]) == (400, True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([""], "USER ''; expected a printable name"),
        ([" "], "USER ' '; expected a printable name"),
        (["a\nb"], "USER 'a\\nb'; expected a printable name"),
        (["ann", "--days", "inf"], "--days inf; expected more than 0 and at most 3,650"),
        (["ann", "--days", "nan"], "--days nan; expected more than 0 and at most 3,650"),
        (["ann", "--days", "0"], "--days 0; expected more than 0 and at most 3,650"),
    ],
)
def test_no_token_is_made_for_a_nameless_user_or_without_an_end(
    tmp_path: Path, arguments: list[str], expected: str
) -> None:
    answer = CliRunner().invoke(app, ["console", "token", *arguments, "--state", str(tmp_path)])
    assert isinstance(answer.exception, SettingError)
    assert (str(answer.exception), list(tmp_path.iterdir())) == (expected, [])


@pytest.mark.parametrize("proxies", ["localhost", "127.0.0.1,10.0.0.0/8"])
def test_a_proxy_that_is_no_address_is_refused_at_the_start(tmp_path: Path, proxies: str) -> None:
    answer = CliRunner().invoke(app, ["console", "--proxies", proxies, "--state", str(tmp_path)])
    assert isinstance(answer.exception, SettingError)
    assert str(answer.exception).startswith(
        f"--proxies {proxies}: '{proxies.rpartition(',')[2]}' does not appear to"
    )


def test_after_log_out_no_copy_of_the_cookie_lets_in(world: World) -> None:
    client = world.stranger()
    client.get("/login", params={"token": world.token()})
    copied = client.cookies[COOKIE]
    assert client.post("/logout").status_code == 403, "another site's page cannot log anybody out"
    page = client.get("/queue", headers={"Accept": "text/html"}).text
    mark = re.search(r'name="csrf" content="([^"]+)"', page)
    assert mark is not None
    assert 'id="log-out"' in page
    assert client.post("/logout", headers={CSRF_HEADER: mark[1]}).status_code == 200
    assert COOKIE not in client.cookies
    assert world.stranger().get("/who", headers={"Cookie": f"{COOKIE}={copied}"}).status_code == 401
    world.app.state.doorkeeper = Doorkeeper(world.settings)  # as after a restart
    assert world.stranger().get("/who", headers={"Cookie": f"{COOKIE}={copied}"}).status_code == 401


def test_a_file_of_ended_sessions_that_is_broken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ended-sessions.json").write_text("[")
    with pytest.raises(SettingError, match="not a file of ended sessions"):
        Doorkeeper(Settings(state=tmp_path))


@pytest.mark.parametrize("state", ["suspending", "suspended", "resuming"])
def test_the_queue_can_be_filtered_by_suspended_jobs(world: World, state: str) -> None:
    client = world.stranger()
    client.get("/login", params={"token": world.token()})
    page = client.get("/queue", params={"state": state}, headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert f'<option value="{state}" selected>' in page.text


def test_a_certificate_is_made_once_for_each_name_and_kept_private(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    first = own_certificate(tmp_path, "0.0.0.0")
    assert first is not None
    assert own_certificate(tmp_path, "0.0.0.0") == first
    assert own_certificate(tmp_path, "10.1.2.3") != first
    assert stat.S_IMODE(first[1].stat().st_mode) == 0o600
    assert len(fingerprint(first[0])) == 95
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*first)


@pytest.mark.parametrize(
    ("host", "only_here"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("gpu1", False)],
)
def test_what_other_machines_reach_is_told_from_loopback(host: str, only_here: bool) -> None:
    assert is_loopback(host) is only_here


def test_a_browser_that_opens_the_address_before_the_server_runs_waits_rather_than_being_refused() -> None:
    with listening(Listen("127.0.0.1", 0)) as bound, socket.create_connection(bound.getsockname()):
        bound.accept()[0].close()


def test_a_socket_that_cannot_listen_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[socket.socket] = []

    def refuse(self: socket.socket, backlog: int) -> None:
        bound.append(self)
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    monkeypatch.setattr(socket.socket, "listen", refuse)
    with pytest.raises(LiveError, match=r"cannot listen on 127\.0\.0\.1:0: .*already in use"):
        listening(Listen("127.0.0.1", 0))
    assert [each.fileno() for each in bound] == [-1]


@pytest.mark.slow
def test_an_address_that_is_taken_is_named_with_the_cause(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        state = tmp_path / "state"
        console = "from berth.cli import main; main()", "console", "--state", state, "--listen", address
        done = subprocess.run(
            [sys.executable, "-c", *console], capture_output=True, text=True, timeout=300, check=False
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"berth: cannot listen on {address}: address already in use; name another address with --listen\n"
    )
    assert not state.exists()
