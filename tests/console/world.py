"""A console in the process of the test, asked through ASGI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from berth.console.identity import CSRF_HEADER
from berth.console.roles import Role
from berth.console.server import create_app
from berth.console.settings import Settings
from berth.console.source import Source


class World:
    """A console and clients of it."""

    def __init__(self, state: Path, *, sources: Sequence[Source] | None = None, **settings: Any) -> None:
        self.settings = Settings(state=state, **settings)
        self.app = create_app(self.settings, sources)

    def token(self, user: str = "ann", role: Role = Role.USER, days: float | None = None) -> str:
        text: str = self.app.state.doorkeeper.tokens.add(user, role, days)
        return text

    def stranger(self, host: str = "127.0.0.1") -> TestClient:
        """Somebody without a token."""
        return TestClient(self.app, client=(host, 50000), follow_redirects=False)

    def program(self, user: str = "ann", role: Role = Role.USER) -> TestClient:
        """A program with a token."""
        client = self.stranger()
        client.headers["Authorization"] = f"Bearer {self.token(user, role)}"
        return client

    def browser(self, user: str = "ann", role: Role = Role.USER) -> TestClient:
        """A browser that has logged in and sends what the pages' own script sends."""
        client = self.stranger()
        answer = client.get("/login", params={"token": self.token(user, role)})
        assert answer.status_code == 303
        client.headers["Accept"] = "text/html"
        page = client.get("/none").text
        client.headers[CSRF_HEADER] = page.partition('name="csrf" content="')[2].partition('"')[0]
        return client
