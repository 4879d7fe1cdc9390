"""Who is asking: by a token, or by a trusted proxy's header."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Annotated

from fastapi import Depends, HTTPException, Request

from berth.console.roles import Role, Viewer
from berth.console.settings import Settings
from berth.console.tokens import Tokens
from berth.errors import SettingError
from berth.files import write_whole

COOKIE = "berth-session"
CSRF_HEADER = "X-Berth-CSRF"
SESSION_S = 12 * 3600
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Doorkeeper:
    """Recognises people, and refuses changes that another site's page has asked their browser for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.tokens = Tokens(settings.state / "tokens.json")
        self._key = _key(settings.state / "key")
        self._ended_file = settings.state / "ended-sessions.json"
        self._ended = _ended(self._ended_file)
        """The sessions that were logged out of, until they would have ended by themselves."""

    def recognise(self, request: Request) -> Viewer:
        """Who asks, or 401; 403 where a change lacks the page's own mark."""
        viewer = self._by_proxy(request) or self._by_token(request)
        if viewer is None:
            raise HTTPException(401, "no valid token: open the address that `berth console` printed")
        if request.method not in SAFE and viewer.csrf:
            given = request.headers.get(CSRF_HEADER, "")
            if not hmac.compare_digest(given.encode(), viewer.csrf.encode()):
                raise HTTPException(
                    403, "this change does not come from a page of this console; reload the page"
                )
        return viewer

    def session_of(self, token: str, now_s: float | None = None) -> str | None:
        """The cookie for a token's owner, or None where the token is none or has expired."""
        now_s = time.time() if now_s is None else now_s
        found = self.tokens.of(token, now_s)
        if found is None:
            return None
        ends_s = min(now_s + SESSION_S, found.ends_s or now_s + SESSION_S)
        body = urlsafe_b64encode(
            json.dumps([found.sha256, int(ends_s), secrets.token_hex(8)]).encode()
        ).decode()
        return f"{body}.{self._sign(body)}"

    def end_session(self, request: Request) -> None:
        """Let no request with this one's cookie in any more, wherever it was copied to, nor after a restart."""
        now_s = time.time()
        self._ended = {body: ends_s for body, ends_s in self._ended.items() if ends_s > now_s}
        self._ended[request.cookies.get(COOKIE, "").partition(".")[0]] = now_s + SESSION_S
        write_whole(self._ended_file, json.dumps(self._ended), private=True)

    def _by_proxy(self, request: Request) -> Viewer | None:
        host = request.client.host if request.client else ""
        if host not in self._settings.proxies:
            return None  # the header means nothing from any other sender
        names = request.headers.getlist(self._settings.proxy_header)
        if len(names) > 1:
            raise HTTPException(
                401,
                f"{len(names)} headers {self._settings.proxy_header} came; expected one: let the proxy replace what a"
                " browser sent",
            )
        name = "".join(names).strip()
        role = Role.OPERATOR if name in self._settings.operators else Role.USER
        return Viewer(name, role, "proxy", self._sign(f"csrf:proxy:{name}")) if name else None

    def _by_token(self, request: Request) -> Viewer | None:
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":  # a program's: no other site can make a browser send it
            token = self.tokens.of(text.strip(), time.time())
            return None if token is None else Viewer(token.user, Role(token.role), "token", "")
        cookie = request.cookies.get(COOKIE, "")
        body, _, signature = cookie.partition(".")
        if not body or not hmac.compare_digest(signature.encode(), self._sign(body).encode()):
            return None
        digest, ends_s, _ = json.loads(urlsafe_b64decode(body))
        now_s = time.time()
        token = self.tokens.by_digest(digest, now_s)
        if token is None or now_s >= ends_s or body in self._ended:
            return None
        return Viewer(token.user, Role(token.role), "token", self._sign(f"csrf:{cookie}"))

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def viewer(request: Request) -> Viewer:
    """Return any caller that was let in; for FastAPI's Depends."""
    doorkeeper: Doorkeeper = request.app.state.doorkeeper
    return doorkeeper.recognise(request)


def user(request: Request) -> Viewer:
    """Return the caller, who needs at least the role `user`."""
    found = viewer(request)
    if not found.role.includes(Role.USER):
        raise HTTPException(403, f"this needs the role user; {found.user} has the role {found.role.value}")
    return found


Who = Annotated[Viewer, Depends(viewer)]
"""The caller of a route that only shows. 401 without a valid token or session."""
User = Annotated[Viewer, Depends(user)]
"""The caller of a route that changes something. 403 below the role `user`."""


def _ended(path: Path) -> dict[str, float]:
    """The sessions that were logged out of, as they were kept."""
    try:
        return {str(body): float(ends_s) for body, ends_s in json.loads(path.read_text("utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingError(
            f"{path}: not a file of ended sessions ({error}); remove it and the file 'key' next to it, which ends all"
            " sessions"
        ) from error


def _key(path: Path) -> bytes:
    """The key that sessions are signed with; it is made once, so that a restart ends no session."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = b""
    if len(key) != 32:
        key = secrets.token_bytes(32)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, key, private=True)
    return key
