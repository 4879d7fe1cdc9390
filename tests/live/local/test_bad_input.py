"""What is wrong is said, and harms nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import LiveError, StoreError
from berth.live.local.cards import fake_gpus
from berth.live.local.keeping import Commits
from berth.live.local.places import SYSTEM_STATE, Places, find_socket, queue_folder, state_folder
from berth.live.local.request import duration_ms, moment_ms, request_of
from berth.live.local.store import Store, of_meta
from tests.live.local.world import BERTH, World, berth


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch"], "there is no command 'nosuch'"),
        (["--chdir", "/no/such/folder", "true"], "--chdir /no/such/folder: there is no such folder"),
        (["--gpus", "9", "true"], "--gpus 9, but this machine has 2 GPUs"),
        (["--gpus", "1.5", "true"], "--gpus '1.5'; expected a whole number, or a part of one GPU"),
        (
            ["--mem", "8", "true"],
            "--mem '8'; write a size with M, G or T, such as 512M or 8G; see: berth submit --help",
        ),
        (
            ["--mem", "100G", "true"],
            "--mem 100G on each GPU, but the largest that the job may use: 80G; ask for less",
        ),
        (["--time", "soon", "true"], "--time 'soon'; write 2:00:00"),
        (["--time", "²", "true"], "--time '²'; write 2:00:00"),
        (["--array", "5-1", "true"], "--array '5-1': 5-1 selects no numbers"),
        (["--after", "ok:99", "true"], "--after names job 99, which does not exist"),
        (["--param", "lr", "true"], "--param 'lr'; write NAME=VALUE,VALUE"),
        (["--gang", "a/b/2", "true"], "--gang 'a/b/2'; write NAME/N, such as train/4: a name without '/'"),
        (["--gang", "a", "true"], "--gang 'a'; write NAME/N"),
        (["--gang", "a/0", "true"], "--gang 'a/0': 0 tasks start together; expected 1 to"),
        (["--gang", "a/two", "true"], "--gang 'a/two': two tasks start together; expected 1 to"),
        (["--gang", "a/2", "--gpu", "0", "true"], "--gang and --gpu exclude each other"),
        (["--gang", "a/3", "--array", "1-9%2", "true"], "--gang a/3, but --array lets only 2 run at a time"),
        ([], "no command to run"),
    ],
)
def test_a_submission_that_cannot_be_says_why(
    shared: World, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LiveError, match=re.escape(said)):
        _in_this_process(shared, monkeypatch, "submit", *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--bogus", "true"], "No such option: --bogus"), (["--mem"], "Option '--mem' requires an argument")],
)
def test_an_option_that_is_none_is_refused_in_a_line_and_in_a_script_with_its_place(
    shared: World, words: list[str], said: str
) -> None:
    done = berth(shared, "submit", *words)
    assert (done.returncode, said in " ".join(done.stderr.split())) == (2, True)
    done = berth(shared, "submit", "-", stdin=f"true\n{' '.join(words)}\n")
    assert done.returncode == 2
    assert done.stderr.startswith(f"berth: line 2 of standard input: {said}")
    script = shared.folder / "wrong.sh"
    script.write_text(f"#!/bin/sh\n#BERTH {words[0]}\ntrue\n")
    done = berth(shared, "submit", str(script))
    assert done.returncode == 2
    assert done.stderr.startswith(f"berth: {script}, line 2: {said}")


def _in_this_process(world: World, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """The client without a process of its own, which costs as much as forty requests."""
    monkeypatch.setenv("BERTH_STATE", world.environment["BERTH_STATE"])
    monkeypatch.chdir(world.folder)
    CliRunner().invoke(app, words, catch_exceptions=False)


def test_a_command_that_is_refused_ends_with_2(shared: World) -> None:
    done = berth(shared, "submit", "nosuch")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("berth: there is no command 'nosuch'")


def test_of_many_lines_the_wrong_one_is_named_and_none_is_queued(shared: World) -> None:
    done = berth(shared, "submit", "-", stdin="--gpus 0 true\n--gpus 0 nosuch\n")
    assert done.returncode == 2
    assert "line 2 of standard input: there is no command 'nosuch'" in done.stderr
    assert not shared.ask("queue")["rows"]


def test_flags_may_stand_behind_the_dash_but_no_command(shared: World) -> None:
    done = berth(shared, "submit", "-", "--gpus", "0", "--json", stdin="true\n")
    assert (done.returncode, json.loads(done.stdout)["count"]) == (0, 1)
    shared.wait(*json.loads(done.stdout)["ids"])
    done = berth(shared, "submit", "-", "true", stdin="")
    assert done.stderr == (
        "berth: berth submit - 'true': each line of standard input is a job, and no command follows\n"
    )


def test_of_many_lines_one_that_the_queue_refuses_is_named(shared: World) -> None:
    done = berth(shared, "submit", "-", stdin="# a comment\n--gpus 0 true\n--mem banana true\n")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "berth: no job is queued: line 3 of standard input: --mem 'banana'; write a size"
    )


def test_a_refused_submission_takes_no_number(shared: World) -> None:
    before = int(shared.submit("true", gpus=0))
    done = berth(shared, "submit", "-", stdin="--gpus 0 true\n--gpus 9 true\n")
    assert "line 2 of standard input: --gpus 9" in done.stderr
    assert int(shared.submit("true", gpus=0)) == before + 1


def test_a_client_says_what_to_do_about_a_socket_path_that_is_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BERTH_SOCKET", f"/tmp/{'x' * 120}")
    with pytest.raises(LiveError, match=r"has 125 bytes, .* name a shorter one with BERTH_SOCKET"):
        find_socket()


@pytest.mark.slow
def test_a_queue_whose_history_is_still_to_come_says_so(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "queue.db").touch()
    environment = {name: value for name, value in os.environ.items() if name != "BERTH_HISTORY"}
    done = subprocess.run(
        [BERTH, "stats"], env={**environment, "BERTH_STATE": str(state)}, cwd=tmp_path, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "come into it within half a minute of their end" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_job_of_which_nobody_knows_is_said_by_berth_job(shared: World, tmp_path: Path) -> None:
    done = berth(shared, "job", "777")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no job '777'" in done.stderr  # of the queue, or of its history, if that is there by now
    environment = {**shared.environment, "BERTH_STATE": str(tmp_path), "PATH": str(tmp_path)}
    words = [BERTH, "job", "1"]

    def asked() -> str:
        down = subprocess.run(
            words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (down.returncode, down.stdout) == (2, "")
        return down.stderr

    assert "no queue is up" in asked()
    assert "there is no history either" in asked()
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "index.json").write_text("{}")
    assert "no queue is up" not in asked()  # there never was one here
    (tmp_path / "queue.db").touch()
    assert "no queue is up" in asked()


def test_top_without_a_terminal_says_what_to_use(shared: World) -> None:
    done = berth(shared, "top")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "berth: berth top needs a terminal; berth status and berth queue print it once\n"


@pytest.mark.parametrize("command", ["cancel", "hold", "why", "logs", "wait"])
def test_a_job_that_there_is_not_is_said(
    shared: World, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LiveError, match="there is no job '777'"):
        _in_this_process(shared, monkeypatch, command, "777")


def test_no_queue_is_said_with_what_to_do(tmp_path: Path) -> None:
    environment = {**os.environ, "BERTH_STATE": str(tmp_path)}
    done = subprocess.run([BERTH, "queue"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "start one with: berth up" in done.stderr


@pytest.mark.parametrize("words", [("--policy", "nothere"), ("--knowledge", "zzz")])
def test_a_start_that_is_refused_leaves_no_folder(tmp_path: Path, words: tuple[str, str]) -> None:
    environment = {**os.environ, "BERTH_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        [BERTH, "up", "--no-gpus", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"berth: no {words[0][2:]} '{words[1]}'; there are ")
    assert not (tmp_path / "state").exists()


def test_a_message_that_is_none_is_refused_and_the_next_is_answered(shared: World) -> None:
    from berth.live.local.protocol import Connection

    connection = Connection(shared.places.socket)
    for message in ({"do": "nonsense"}, {"do": "submit"}, {"do": "cancel", "ids": 5}):
        with pytest.raises(LiveError):
            connection.ask(message)  # type: ignore[arg-type]
    assert connection.ask({"do": "status"})["jobs"]
    connection.close()


def test_a_socket_path_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTH_SOCKET", raising=False)
    places = Places(str(tmp_path / ("x" * 120)))
    with pytest.raises(LiveError, match="at most 107; name a shorter one with BERTH_SOCKET"):
        places.check()


def test_a_second_broker_on_one_store_is_refused(shared: World) -> None:
    assert shared.broker is not None
    done = subprocess.run(
        [sys.executable, "-m", "berth.live.local", "--no-gpus"], env=shared.environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"another broker (process {shared.broker.pid}) has the store" in done.stderr
    assert shared.status() is not None


@pytest.mark.parametrize("text", ["A100", "0xA100-80G", "65xA100-80G", "2xA100", "2xA100-80"])
def test_fake_gpus_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(LiveError, match="write NxMODEL-SIZE"):
        fake_gpus(text)


def test_a_broken_store_is_put_aside_for_its_last_good_copy(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    store = Store(str(path))
    store.write([of_meta("kept", 1)])
    store.keep_copy()
    store.close()
    path.write_bytes(b"not a database, and long enough to be read as one" * 100)
    told: list[str] = []
    store = Store(str(path), report=told.append)
    assert store.meta("kept") == 1
    assert "is broken" in told[0]
    assert "the last good copy" in told[0]
    assert len(list(tmp_path.glob("queue.db.broken-*"))) == 1
    store.close()


@pytest.mark.slow
def test_jobs_that_were_started_after_the_last_good_copy_are_not_started_again(world: World) -> None:
    job = world.submit("echo once >> ran; while [ ! -e go ]; do sleep 0.02; done")
    world.until(lambda: world.state_of(job) == "running", "it runs")
    world.kill_broker()
    path = Path(world.places.store)
    old = sqlite3.connect(path)  # as the copy was before it was started
    body = old.execute("SELECT body FROM jobs WHERE id = ?", (job,)).fetchone()[0]
    values = {
        key: value
        for key, value in json.loads(body).items()
        if key not in ("state", "start", "slots", "share", "boot")
    }
    old.execute("UPDATE jobs SET state = 'waiting', body = ? WHERE id = ?", (json.dumps(values), job))
    old.commit()
    old.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    old.close()
    Path(world.places.copy).write_bytes(path.read_bytes())
    for end in ("-wal", "-shm"):
        Path(str(path) + end).unlink(missing_ok=True)
    path.write_bytes(b"\0" * 8192)
    world.up()
    (world.folder / "go").touch()
    assert world.wait(job) == {job: ("completed", 0)}
    assert (world.folder / "ran").read_text() == "once\n"


@pytest.mark.slow
def test_a_policy_that_crashes_three_times_gives_way_and_the_queue_says_so(world: World) -> None:
    bad = world.submit("true", name="crash")
    good = world.submit("true")
    world.until(lambda: (world.status() or {}).get("brain_restarts", 0) >= 3, "it has crashed three times")
    status = world.status()
    assert status is not None
    assert "fifo+best-fit decides until another is chosen" in status["trouble"][0]
    world.until(lambda: (world.status() or {}).get("deciding") == "fifo+best-fit", "it decides")
    told = berth(world, "policy").stdout
    assert told == f"{status['policy']} is chosen, and fifo+best-fit decides (knowledge: history)\n"
    world.ask("cancel", ids=[bad])
    assert world.wait(good) == {good: ("completed", 0)}


@pytest.mark.slow
def test_a_policy_that_hangs_is_killed_and_no_job_stops() -> None:
    world = World(options=["--decide-s", "2"])
    try:
        world.up()
        running = world.submit("while [ ! -e go ]; do sleep 0.02; done; exit 3")
        world.until(lambda: world.state_of(running) == "running", "it runs")
        hanging = world.submit("true", name="hang")
        world.until(lambda: "it has not decided within 2 s" in world.log(), "it was killed")
        world.until(lambda: (world.status() or {}).get("brain_restarts", 0) >= 1, "it was started again")
        world.ask("cancel", ids=[hanging])
        (world.folder / "go").touch()
        assert world.wait(running) == {running: ("failed", 3)}
    finally:
        world.close()


def test_a_policy_that_cannot_be_made_leaves_the_old_one(shared: World) -> None:
    before = (shared.status() or {})["policy"]
    with pytest.raises(
        LiveError, match=re.escape(f"'no-such' cannot decide: no policy 'no-such'; '{before}'")
    ):
        shared.ask("policy", name="no-such")
    shared.until(lambda: (shared.status() or {}).get("brain") == "ready", "the old one decides")
    assert (shared.status() or {})["policy"] == before


@pytest.mark.parametrize(
    ("text", "ms"),
    [("90s", 90_000), ("30", 1_800_000), ("2:00:00", 7_200_000), ("1-12:00:00", 129_600_000), ("1.5h", 5_400_000),
     ("5:30", 330_000), ("1-0", 86_400_000)],
)  # fmt: skip
def test_times_are_slurms(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "0", "-5", "1:2:3:4", "x-1", "1.5"])
def test_times_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(LiveError):
        duration_ms(text)


def test_a_moment_is_later_than_now() -> None:
    assert moment_ms("now+2h", 1000) == 7_201_000
    assert 0 < moment_ms("12:34", 1_700_000_000_000) - 1_700_000_000_000 <= 86_400_000


def test_an_interruption_of_wait_ends_the_client_alone(shared: World) -> None:
    gate = shared.folder / "interrupted"
    job = shared.submit(f"while [ ! -e {gate} ]; do sleep 0.02; done", gpus=0)
    with subprocess.Popen(
        [BERTH, "wait", "--all"], env=shared.environment, stderr=subprocess.PIPE
    ) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline().startswith(b"berth: waiting for job")
        # A signal in the instant before `recv` is heard by Python only after it: a user presses Ctrl-C again.
        while waiting.poll() is None:
            waiting.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                waiting.wait(10)
        assert (waiting.stderr.read(), waiting.returncode) == (b"berth: interrupted\n", 130)
    gate.touch()
    assert shared.wait(job) == {job: ("completed", 0)}


def test_a_folder_is_taken_from_where_the_user_is() -> None:
    def folder(chdir: str) -> str:
        return request_of({"chdir": chdir}, argv=["true"], cwd="/home/ann", now_ms=0).cwd

    assert [folder(each) for each in ("sub", "/tmp", "")] == ["/home/ann/sub", "/tmp", "/home/ann"]


def test_a_script_that_is_not_utf_8_runs_as_it_is_and_what_cannot_be_kept_is_said(shared: World) -> None:
    path = shared.folder / "latin.sh"
    path.write_bytes(b"#!/bin/sh\n#BERTH --gpus 0\nprintf 'caf\xe9'\n")
    done = berth(shared, "submit", "./latin.sh")
    assert (done.returncode, done.stderr) == (0, "")
    job = done.stdout.split()[1]
    assert shared.wait(job) == {job: ("completed", 0)}
    assert (shared.state / "output" / f"{job}.1.out").read_bytes() == b"caf\xe9"
    bad = {"argv": ["x"], "flags": {"gpus": "0"}, "script": "#!/bin/sh\n\ud800"}
    with pytest.raises(LiveError, match=r"the script contains characters that cannot be stored \(at 10\)"):
        shared.ask("submit", cwd="/", env={}, jobs=[bad])


def test_one_request_that_cannot_be_written_refuses_no_other(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "queue.db"))

    async def run() -> tuple[object, object]:
        commits = Commits(store, lambda: ([], lambda: None))
        task = asyncio.create_task(commits.run())
        bad = commits.ask([("INSERT INTO requests VALUES (?, ?)", (1 << 80, "ann's secret"))])
        told = await asyncio.gather(commits.ask([of_meta("good", 1)]), bad, return_exceptions=True)
        task.cancel()
        await commits.close()
        return told

    good, bad = asyncio.run(run())
    assert (good, store.meta("good")) == (None, 1)
    assert isinstance(bad, StoreError)
    assert str(bad) == "the changes cannot be written: Python int too large to convert to SQLite INTEGER"
    store.close()


def test_a_name_is_shown_without_what_a_terminal_would_obey(shared: World) -> None:
    job = shared.submit("true", name="a\x1b[31m[b]\udce9", begin="now+1h", gpus=0, comment="one\ntwo")
    for words in (["queue"], ["job", job], ["why", job], ["wait", "--all", "--timeout", "0"]):
        done = berth(shared, *words)
        assert "Traceback" not in done.stderr, words
        assert "\x1b" not in done.stdout + done.stderr, words
    assert "a?[31m[b]?" in berth(shared, "queue").stdout
    assert "one?two" in berth(shared, "job", job).stdout
    shared.ask("cancel", ids=[job])


def test_what_a_script_and_a_line_say_is_checked_and_the_place_named(shared: World) -> None:
    folder = shared.folder / "runs-here"
    (folder / "logs").mkdir(parents=True)
    script = shared.folder / "where.sh"
    script.write_text("#!/bin/sh\n#BERTH --gpus 0 --chdir runs-here\n#BERTH --output logs/%j\npwd\n")
    done = berth(shared, "submit", "./where.sh")
    assert (done.returncode, done.stderr) == (0, "")
    job = done.stdout.split()[1]
    assert shared.wait(job) == {job: ("completed", 0)}
    assert (folder / "logs" / job).read_text() == f"{folder}\n"
    script.write_text("#!/bin/sh\n#BERTH --gpus 0\n#BERTH --chdir none\ntrue\n")
    done = berth(shared, "submit", "./where.sh")
    assert done.stderr == "berth: ./where.sh, line 3: --chdir none: there is no such folder\n"
    for flag in ("--after ok:99", "--array 5-1", "--param x"):
        done = berth(shared, "submit", "-", stdin=f"--gpus 0 true\n# none\n{flag} --gpus 0 true\n")
        assert f"no job is queued: line 3 of standard input: {flag.split()[0]} " in done.stderr
    done = berth(shared, "submit", "-", stdin="# one\n--after ok:99 --gpus 0 true\n")
    assert "line 2 of standard input: --after names job 99" in done.stderr


def test_a_file_where_metrics_are_to_be_served_stays(tmp_path: Path) -> None:
    from berth.live.local import exporter, starting

    kept = tmp_path / "results.csv"
    kept.write_text("1,2\n")
    with pytest.raises(LiveError, match="this is not a socket and is left alone"):
        starting.check({"metrics": str(kept)})
    with pytest.raises(LiveError, match="this is not a socket and is left alone"):
        asyncio.run(exporter.serve_metrics(str(kept), dict))
    assert kept.read_text() == "1,2\n"


def test_the_history_is_that_of_the_queue_that_a_user_talks_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BERTH_STATE", raising=False)
    monkeypatch.delenv("BERTH_SOCKET", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("berth.live.local.places.SYSTEM_SOCKET", str(tmp_path / "machine"))
    assert queue_folder() == state_folder() == str(tmp_path / "berth")
    (tmp_path / "machine").touch()
    assert queue_folder() == SYSTEM_STATE
    (tmp_path / "berth").mkdir()
    (tmp_path / "berth" / "socket").touch()
    assert queue_folder() == state_folder()


def test_a_grace_is_in_seconds_or_says_its_unit() -> None:
    for text, ms in (("2", 2000), ("2s", 2000), ("1.5m", 90_000), ("0", 0)):
        assert request_of({"grace": text}, argv=["true"], cwd="/", now_ms=0).grace_ms == ms
    with pytest.raises(LiveError, match="--grace 'x'"):
        request_of({"grace": "x"}, argv=["true"], cwd="/", now_ms=0)
