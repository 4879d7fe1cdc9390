"""A console that is served for real, and Debian's Chromium to look at it."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from berth.console.roles import Role
from tests.console.world import World

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
"""Its program, or None where there is none."""


@contextmanager
def served(world: World) -> Iterator[str]:
    """Serve a console on a free port; gives its address."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(world.app, log_level="warning", ws="none", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.02)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def chromium() -> Iterator[Browser]:
    """One browser for many tests."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def logged_in(
    browser: Browser,
    world: World,
    address: str,
    user: str = "ann",
    role: Role = Role.OPERATOR,
    **context: Any,
) -> BrowserContext:
    """A window of its own, logged in."""
    opened = browser.new_context(**context)
    opened.request.get(f"{address}/login", params={"token": world.token(user, role)}, max_redirects=0)
    return opened
