"""`make demo` ends with the address of a console that is up, and hangs nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "local_queue" / "demo.sh"


@pytest.mark.slow
def test_the_demo_ends_with_an_address_that_answers_until_it_is_stopped() -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    try:
        done = subprocess.run(
            [DEMO], capture_output=True, text=True, timeout=400, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr
        address = done.stdout.splitlines()[-1]
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        page = browser.open(f"{address}&to=/what-if", timeout=300).read().decode()
        assert "operator" in page
        folder = Path((ROOT / "out" / "demo-console").read_text().strip())
        assert folder.is_dir()
    finally:
        subprocess.run([DEMO, "--stop"], check=True, timeout=150, env=environment)
    assert not folder.exists()
    with pytest.raises(OSError, match="refused"):
        browser.open(address, timeout=10)
