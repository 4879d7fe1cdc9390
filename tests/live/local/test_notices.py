"""Users are told what became of their jobs, and the queue waits for no telling."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from berth.errors import LiveError
from berth.live.local import notices
from berth.live.local.notices import Notices, Unsent, send, text_of
from berth.live.local.request import request_of
from tests.live.local.world import World, berth

NOTICE = {
    "event": "end", "job": "7", "name": "train", "user": "ann", "uid": 0, "state": "failed", "exit_code": 3,
    "reason": "", "attempt": 1, "start_ms": 1_000, "end_ms": 3_662_000, "machine": "m1", "output": "/out/7",
}  # fmt: skip


class Inbox(HTTPServer):
    """A web server that keeps what it is sent, and refuses the first `refusals` of it."""

    def __init__(self, refusals: int = 0) -> None:
        self.got: list[dict[str, Any]] = []
        self.refusals = refusals

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                inbox.refusals -= 1
                if inbox.refusals < 0:  # before the answer, after which the sender goes on
                    inbox.got.append(json.loads(body))
                self.send_response(503 if inbox.refusals >= 0 else 200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        super().__init__(("127.0.0.1", 0), Answer)
        inbox = self

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    server = Inbox()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def sent_from(
    folder: Path, log: Callable[..., None], keep: Callable[[Unsent], Awaitable[None]] | None = None
) -> Notices:
    """Send the notices of a folder until none is left."""

    async def run() -> Notices:
        notices = Notices(str(folder), log, None, keep)
        running = asyncio.create_task(notices.run())
        until = time.monotonic() + 300
        while list(folder.iterdir()):
            assert time.monotonic() < until
            assert not running.done()
            await asyncio.sleep(0.01)
        running.cancel()
        notices.close()
        return notices

    return asyncio.run(run())


def test_a_sender_that_starts_as_the_broker_ends_leaves_its_notice_to_the_next(tmp_path: Path) -> None:
    sender = Notices(str(tmp_path), lambda *_, **__: None)
    sender.close()
    notice = NOTICE | {"where": f"command:touch {tmp_path}/sent", "uid": os.getuid()}
    assert sender._deliver(notice) == "it was killed"
    assert not (tmp_path / "sent").exists()


def test_a_notice_is_one_sentence() -> None:
    assert text_of(NOTICE) == "job 7 (train) on m1: failed, exit code 3, after 1:01:01"
    assert text_of({**NOTICE, "event": "start"}) == "job 7 (train) on m1 has started"
    out = {**NOTICE, "event": "out-of-memory", "attempt": 2}
    assert text_of(out) == "job 7 (train) on m1 ran out of GPU memory in attempt 2, after 1:01:01"


def test_a_webhook_gets_all_of_it_and_slack_its_own_form(inbox: Inbox) -> None:
    send({**NOTICE, "where": inbox.address})
    send({**NOTICE, "where": f"slack:{inbox.address}"})
    whole, slack = inbox.got
    assert (whole["job"], whole["state"], whole["exit_code"]) == ("7", "failed", 3)
    assert "where" not in whole
    assert slack == {"text": text_of(NOTICE)}


def test_a_command_gets_the_notice_in_its_environment_and_as_json(tmp_path: Path) -> None:
    send(
        {
            **NOTICE,
            "where": f"command:cat > {tmp_path}/in; echo $BERTH_JOB $BERTH_JOB_STATE $BERTH_STATE > {tmp_path}/env",
        }
    )
    assert json.loads((tmp_path / "in").read_text())["job"] == "7"
    assert (tmp_path / "env").read_text() == f"7 failed {os.environ['BERTH_STATE']}\n"


def test_a_command_runs_in_the_jobs_folder_or_in_the_root_where_that_has_gone(tmp_path: Path) -> None:
    folder, posted = tmp_path / "work", tmp_path / "notices"
    folder.mkdir()
    posted.mkdir()
    notice = {**NOTICE, "folder": str(folder), "where": f"command:pwd >> {tmp_path}/in"}
    for _ in range(2):
        (posted / "1").write_text(json.dumps(notice))
        sent_from(posted, lambda *_, **fields: None)
        if folder.exists():
            folder.rmdir()
    assert (tmp_path / "in").read_text() == f"{folder}\n/\n"


@pytest.mark.slow
def test_what_fails_is_sent_again_told_in_the_log_and_then_forgotten(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "PAUSES_S", (0.0, 0.0))
    inbox.refusals = 2
    folder = tmp_path / "notices"
    folder.mkdir()
    (folder / "1").write_text(json.dumps({**NOTICE, "where": inbox.address}))
    (folder / "2").write_text(json.dumps({**NOTICE, "job": "8", "where": "command:exit 1"}))
    (folder / "3").write_text("no notice")
    told: list[tuple[str, dict[str, Any]]] = []
    sent_from(folder, lambda event, **fields: told.append((event, fields)))
    assert len(inbox.got) == 1
    assert [fields["job"] for event, fields in told if event == "notified"] == ["7"]
    assert sorted(fields["job"] for _, fields in told if fields.get("gives_up")) == ["3", "8"]


def test_what_a_command_leaves_behind_holds_up_nobody(tmp_path: Path) -> None:
    """It goes on until the notice is sent, and has what its parent writes errors to."""
    folder, sent = tmp_path / "notices", tmp_path / "sent"
    folder.mkdir()
    where = f"command:while [ ! -e {sent} ]; do sleep 0.02; done & echo no >&2"
    (folder / "1").write_text(json.dumps({**NOTICE, "where": where}))
    told: list[str] = []
    try:
        sent_from(folder, lambda event, **fields: told.append(event))
    finally:
        sent.touch()
    assert told == ["notified"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"notify": ["ftp://host/x"]}, "--notify 'ftp://host/x'; write https://"),
        (
            {"notify": ["desktop"], "notify_on": "end,never"},
            "--notify-on 'never'; there are start, end, fail",
        ),
    ],
)
def test_whom_and_when_are_checked_at_submission(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(LiveError, match=said):
        request_of(flags, argv=["true"], cwd="/", now_ms=0)


def test_a_job_of_the_queue_tells_of_its_start_and_its_failure(world: World) -> None:
    told = world.folder / "told"
    notify = [f"command:echo $BERTH_JOB $BERTH_EVENT $BERTH_EXIT_CODE >> {told}"]
    job = world.submit("exit 3", notify=notify, notify_on="start,fail")
    world.submit("true", notify=notify, notify_on="fail")
    assert world.wait(job) == {job: ("failed", 3)}
    world.until(lambda: told.exists() and len(told.read_text().splitlines()) == 2, "the user is told")
    assert sorted(told.read_text().splitlines()) == [f"{job} fail 3", f"{job} start"]
    world.until(lambda: not list((world.state / "notices").iterdir()), "no notice is left")


def test_a_notice_that_failed_is_shown_at_its_job_and_in_the_status(world: World) -> None:
    job = world.submit("true", notify=["command:exit 9"], notify_on="end")
    world.wait(job)
    said = "the notice of its end by command was not sent: it ended with exit status 9; berth tries again"
    world.until(lambda: world.job(job)["unsent"] == [said], "the job says so")
    assert f"notice:      {said}" in berth(world, "job", job).stdout
    assert said in berth(world, "why", job).stdout
    listed = f"1 job had notices that were not sent: {job}; berth job {job} says why"
    assert f"trouble: {listed}" in berth(world, "status").stdout


def test_only_the_last_word_on_a_notice_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "PAUSES_S", (0.0,))
    kept: list[Unsent] = []

    async def keep(unsent: Unsent) -> None:
        kept.append(unsent)

    folder = tmp_path / "notices"
    folder.mkdir()
    where = f"command:test -e {tmp_path}/again || {{ touch {tmp_path}/again; false; }}"
    (folder / "1").write_text(json.dumps({**NOTICE, "where": where}))
    (folder / "2").write_text(json.dumps({**NOTICE, "job": "8", "where": "command:exit 1"}))
    sender = sent_from(folder, lambda *_, **__: None, keep)
    assert sender.unsent_of("7") == [], "the second attempt succeeded"
    (said,) = sender.unsent_of("8")
    assert said == (
        "the notice of its end by command was not sent: it ended with exit status 1; berth gave up after 2 attempts"
    )
    assert Notices(str(folder), lambda *_, **__: None, json.loads(json.dumps(kept[-1]))).unsent_of("8") == [
        said
    ]


@contextmanager
def mail_server() -> Iterator[tuple[int, list[tuple[list[str], bytes]]]]:
    """A server of SMTP on a free port of this machine: its port, and the recipients and contents of its mails."""
    smtp = pytest.importorskip("aiosmtpd.smtp", reason="aiosmtpd is not installed")
    got: list[tuple[list[str], bytes]] = []

    class Keeps:
        async def handle_DATA(  # noqa: N802
            self, server: object, session: object, envelope: Any
        ) -> str:
            got.append((envelope.rcpt_tos, envelope.content))
            return "250 kept"

    listening = threading.Event()
    ports: list[int] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        stops.append((loop, stop := asyncio.Event()))
        server = await loop.create_server(lambda: smtp.SMTP(Keeps(), loop=loop), "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        listening.set()
        async with server:
            await stop.wait()
            while len(asyncio.all_tasks()) > 1:  # a client that has not been told goodbye yet
                await asyncio.sleep(0.01)

    stops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert listening.wait(300)
        yield ports[0], got
    finally:
        for loop, stop in stops:
            loop.call_soon_threadsafe(stop.set)
        thread.join()


def test_a_failed_job_is_told_by_mail_through_the_sites_server(world: World) -> None:
    with mail_server() as (port, got):
        (world.folder / "berth.toml").write_text(f'[notify]\nsmtp = "127.0.0.1:{port}"\n')
        job = world.submit("exit 3", name="train", notify=["ann@example.org"], notify_on="fail")
        world.until(lambda: bool(got), "the mail is there")
        world.until(lambda: not list((world.state / "notices").iterdir()), "no notice is left")
    ((recipients, content),) = got
    mail = message_from_bytes(content, EmailMessage, policy=policy.default)
    machine = os.uname().nodename
    assert (recipients, mail["To"]) == (["ann@example.org"], "ann@example.org")
    assert str(mail["Subject"]).startswith(f"job {job} (train) on {machine}: failed, exit code 3")
    assert f"output: {world.folder}" in mail.get_content()
