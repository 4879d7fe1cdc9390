"""Debian's Chromium, to look at a console that is served."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, sync_playwright

from berth.console.roles import Role
from tests.console.world import World

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
"""Its program, or None where there is none."""
PATIENCE_MS = 600_000
"""How long a page may take on a machine that has other things to do."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """One browser for many tests."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS
        )
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
    opened.set_default_timeout(PATIENCE_MS)
    opened.request.get(f"{address}/login", params={"token": world.token(user, role)}, max_redirects=0)
    return opened
