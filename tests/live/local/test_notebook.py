"""`berth jupyter`: a server as a job, over a stand-in that keeps its address as Jupyter does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.live.local.world import World, berth

SERVER = f"""#!{sys.executable}
import http.server, json, os, sys, time
token = os.environ.get("FAKE_CONFIGURED_TOKEN", os.environ["JUPYTER_TOKEN"])
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        good = not token or self.path.endswith("token=" + token)
        self.send_response(200 if good else 403)
        self.end_headers()
        self.wfile.write(json.dumps(sys.argv[1:]).encode())
server = http.server.HTTPServer(("127.0.0.1", 0), Page, False)
server.server_bind()
port = server.server_port
folder = os.environ["JUPYTER_RUNTIME_DIR"]
os.makedirs(folder, exist_ok=True)
written = {{"url": "http://127.0.0.1:%d/" % port, "port": port, "token": token, "password": False}}
with open(os.path.join(folder, "jpserver-1.json"), "w") as file:  # of a server that was killed; its pid is another's
    json.dump({{**written, "pid": 1, "port": 1}}, file)
with open(os.path.join(folder, "jpserver-2.json"), "w") as file:
    file.write("{{")
with open(os.path.join(folder, "jpserver-%d.json" % os.getpid()), "w") as file:
    json.dump({{**written, "pid": os.getpid()}}, file)
time.sleep(0.5)  # Jupyter, too, listens only after it has written its address down
server.server_activate()
server.serve_forever()
"""
AS_ROOT = ["--allow-root"] if os.geteuid() == 0 else []


@pytest.fixture
def jupyter(shared: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in's file, on the PATH."""
    program = shared.folder / "bin" / "jupyter-lab"
    program.parent.mkdir(exist_ok=True)
    program.write_text(SERVER)
    program.chmod(0o755)
    monkeypatch.setitem(shared.environment, "PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setitem(shared.environment, "JUPYTER_RUNTIME_DIR", str(shared.folder / "runtime"))
    return program


def test_the_address_opens_and_no_command_line_has_the_token(shared: World, jupyter: Path) -> None:
    done = berth(shared, "jupyter", "--gpus", "0", "--name", "mine", "--json", "--", "--debug")
    assert done.returncode == 0, done.stderr  # on a busy machine it says there why the job waits
    said = json.loads(done.stdout)
    try:
        with urlopen(said["address"], timeout=300) as answer:
            words = json.load(answer)
        assert words == ["--no-browser", "--ServerApp.ip=127.0.0.1", *AS_ROOT, "--debug"]
        token = said["address"].partition("token=")[2]
        shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        assert token not in shown
        assert token not in json.dumps(shared.ask("job", id=said["id"]))
        assert shared.job(said["id"])["name"] == "mine"
    finally:
        shared.ask("cancel", ids=[said["id"]])
    assert shared.wait(said["id"]) == {said["id"]: ("cancelled", 143)}


@pytest.mark.parametrize(("token", "asked"), [("own", "?token=own"), ("", "")])
def test_a_configured_token_is_the_one_in_the_address(
    shared: World, jupyter: Path, monkeypatch: pytest.MonkeyPatch, token: str, asked: str
) -> None:
    monkeypatch.setitem(shared.environment, "FAKE_CONFIGURED_TOKEN", token)
    done = berth(shared, "jupyter", "--gpus", "0", "--name", "own", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    try:
        assert said["address"] == f"http://127.0.0.1:{said['port']}/{asked}"
        with urlopen(said["address"], timeout=300) as answer:
            assert answer.status == 200
        assert ("every user of this machine can open the server" in done.stderr) == (not token)
    finally:
        shared.ask("cancel", ids=[said["id"]])
    shared.wait(said["id"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("jupyter-lab") is None, reason="no JupyterLab on the PATH")
@pytest.mark.parametrize("setting", ["", "c.IdentityProvider.token = 'own'"])
def test_the_real_one_opens_at_its_address_and_ends_when_cancelled(
    shared: World, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    (shared.folder / "jupyter_server_config.py").write_text(setting)
    monkeypatch.setitem(shared.environment, "JUPYTER_CONFIG_DIR", str(shared.folder))
    monkeypatch.setitem(shared.environment, "JUPYTER_RUNTIME_DIR", str(shared.folder / "real"))
    done = berth(shared, "jupyter", "--gpus", "0", "--name", "real", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    try:
        with urlopen(said["address"], timeout=300) as answer:
            assert b"JupyterLab" in answer.read()
        with pytest.raises(HTTPError, match="403"):
            urlopen(f"http://127.0.0.1:{said['port']}/api/sessions", timeout=300)
    finally:
        shared.ask("cancel", ids=[said["id"]])
    ((state, _),) = shared.wait(said["id"]).values()
    assert state == "cancelled"


def test_from_afar_it_names_the_tunnel(shared: World, jupyter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shared.environment, "SSH_CONNECTION", "10.0.0.9 5000 10.0.0.1 22")
    monkeypatch.setitem(shared.environment, "USER", "ann")
    done = berth(shared, "jupyter", "--gpus", "0", "--name", "afar")
    shared.ask("cancel", ids=["afar"])
    port = done.stdout.split(":")[2].split("/")[0]
    assert f"first run: ssh -N -L {port}:127.0.0.1:{port} ann@10.0.0.1" in done.stderr
    shared.wait("afar")


def test_a_server_that_ends_is_told_with_its_log(shared: World, jupyter: Path) -> None:
    jupyter.write_text("#!/bin/sh\necho no such folder: lab >&2\nexit 5\n")
    done = berth(shared, "jupyter", "--gpus", "0", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such folder: lab\n" in done.stderr
    assert "failed before Jupyter answered: exit code 5; see: berth logs " in done.stderr


def test_without_jupyter_it_says_what_to_install(shared: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shared.environment, "PATH", str(shared.folder))
    done = berth(shared, "jupyter")
    assert (done.returncode, done.stdout) == (2, "")
    assert "install it where your notebooks run: pip install jupyterlab" in done.stderr
