"""`berth jupyter`: a server as a job, over a stand-in that keeps its address as Jupyter does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.live.local.world import World, berth

SERVER = f"""#!{sys.executable}
import http.server, json, os, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        good = self.path.endswith("token=" + os.environ["JUPYTER_TOKEN"])
        self.send_response(200 if good else 403)
        self.end_headers()
        self.wfile.write(json.dumps(sys.argv[1:]).encode())
server = http.server.HTTPServer(("127.0.0.1", 0), Page)
port = server.server_port
folder = os.environ["JUPYTER_RUNTIME_DIR"]
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, "jpserver-%d.json" % os.getpid()), "w") as file:
    json.dump({{"url": "http://127.0.0.1:%d/" % port, "port": port, "token": os.environ["JUPYTER_TOKEN"]}}, file)
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


def test_from_afar_it_names_the_tunnel(shared: World, jupyter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shared.environment, "SSH_CONNECTION", "10.0.0.9 5000 10.0.0.1 22")
    monkeypatch.setitem(shared.environment, "USER", "ann")
    done = berth(shared, "jupyter", "--gpus", "0", "--name", "afar")
    shared.ask("cancel", ids=["afar"])
    port = done.stdout.split(":")[2].split("/")[0]
    assert f"first run: ssh -N -L {port}:127.0.0.1:{port} ann@10.0.0.1" in done.stderr
    shared.wait("afar")


def test_a_server_that_ends_is_told_with_its_log(shared: World, jupyter: Path) -> None:
    jupyter.write_text("#!/bin/sh\nexit 5\n")
    done = berth(shared, "jupyter", "--gpus", "0")
    assert done.returncode == 2
    assert "failed before Jupyter answered: exit code 5; see: berth logs " in done.stderr


def test_without_jupyter_it_says_what_to_install(shared: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shared.environment, "PATH", str(shared.folder))
    done = berth(shared, "jupyter")
    assert (done.returncode, done.stdout) == (2, "")
    assert "install it where your notebooks run: pip install jupyterlab" in done.stderr
