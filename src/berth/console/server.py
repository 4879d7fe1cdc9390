"""The console as an application: who is let in, what every answer carries, and the routes of its parts."""

from __future__ import annotations

import asyncio
import logging
import socket as sockets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from types import FrameType
from urllib.parse import parse_qs, quote

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException

from berth import __version__
from berth.console import actions, api, events, job, metrics, now, queue
from berth.console.audit import Audit
from berth.console.clock import now_ms
from berth.console.error_answers import DOCUMENT, IN_WORDS, only_known, words_of
from berth.console.history import api as history_api
from berth.console.history import page as history_page
from berth.console.hub import Hub
from berth.console.identity import COOKIE, SESSION_S, Doorkeeper, Who
from berth.console.pages import LANGUAGES, page
from berth.console.rate_limits import RateLimits
from berth.console.recent import HOUR, Recent
from berth.console.roles import Role, Viewer
from berth.console.settings import Listen, Settings
from berth.console.source import Source
from berth.console.sources import sources_of
from berth.console.what_if.routes import router as what_if
from berth.errors import AccessError, BerthError, LiveError, cause_of
from berth.history.store.cached_history import CachedHistory

Next = Callable[[Request], Awaitable[Response]]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Pages run the package's own scripts and open no other connection. Plotly sets styles, which need 'unsafe-inline'."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MOST_FORM = 4096
MOST_BODY = 64 << 10
"""Bytes that a request may carry; a body is read before it is known who sends it."""
NOT_TEXT = "the body cannot be read as JSON; expected JSON in UTF-8"
PAGES = ("/now", "/queue", "/then", "/what-if")
STRANGER = Viewer("", Role.VIEWER, "", "")
"""The viewer of the page that asks for a token."""


def create_app(settings: Settings, sources: Sequence[Source] | None = None) -> FastAPI:
    """The application over whatever the settings name, or over these sources; it opens nothing before it is served."""
    app = FastAPI(
        title="berth console",
        version=__version__,
        docs_url=None,  # FastAPI's pages load scripts of other sites
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        responses=IN_WORDS,
        lifespan=_sampled,
    )
    app.state.settings = settings
    app.state.doorkeeper = Doorkeeper(settings)
    app.state.too_many = RateLimits()
    app.state.hub = Hub(sources_of(settings) if sources is None else sources)
    app.state.recent = Recent(settings.state / "recent.sqlite3")
    app.state.audit = Audit(settings.state / "audit.jsonl")
    app.mount("/static", StaticFiles(directory=str(files("berth.console").joinpath("static"))), name="static")
    app.mount("/plotly", StaticFiles(packages=[("plotly", "package_data")]))
    app.add_middleware(GZipMiddleware, compresslevel=5)
    app.middleware("http")(_guard)
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(BerthError, _failed)
    app.state.history = None if settings.history is None else CachedHistory(settings.history)
    app.get("/login", include_in_schema=False)(_login)
    app.post("/login", include_in_schema=False)(_login_by_form)
    app.post("/logout", include_in_schema=False)(_logout)
    app.get("/", include_in_schema=False)(_first_page)
    app.get("/history", include_in_schema=False)(_history)
    app.get("/language/{language}", include_in_schema=False)(_language)
    parts = (history_api, history_page, events, now, queue, job, api, actions, metrics)
    for router in (*(part.router for part in parts), what_if):
        app.include_router(router, dependencies=[Depends(only_known)])
    return app


@asynccontextmanager
async def _sampled(app: FastAPI) -> AsyncIterator[None]:
    """Keep a sample in each step of the last hour while the console is served."""

    async def sample() -> None:
        while True:
            seen = await app.state.hub.fresh()
            snapshots = {name: each.look for name, each in seen.items() if each.look is not None}
            if snapshots:
                await asyncio.to_thread(app.state.recent.add, snapshots, now_ms())
            await asyncio.sleep((HOUR.step_ms - now_ms() % HOUR.step_ms) / 1000)

    task = asyncio.create_task(sample())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _guard(request: Request, call_next: Next) -> Response:
    """Refuse too many requests of one client, and give every answer its headers."""
    client = request.client.host if request.client else "?"
    settings: Settings = request.app.state.settings
    if client in settings.proxies:  # it speaks for many people
        client += f" {request.headers.get(settings.proxy_header, '')}"
    wait_s = request.app.state.too_many.wait_s(client, time.monotonic(), request.url.path == "/login")
    if wait_s:
        return JSONResponse(
            {"detail": f"too many requests; try again in {wait_s:.0f} s"},
            429,
            {"Retry-After": f"{wait_s:.0f}"},
        )
    answer = _too_large(request) or await call_next(request)
    if request.url.path == "/plotly/plotly.min.js":
        answer.headers["Cache-Control"] = "public, max-age=86400"
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    answer.headers.setdefault("Content-Security-Policy", POLICY)
    return answer


def _too_large(request: Request) -> Response | None:
    """The refusal of a request whose body is too long, or does not say how long it is; None for all others."""
    if "Transfer-Encoding" in request.headers:
        return JSONResponse({"detail": "the length of the body is unknown; send Content-Length"}, 411)
    length_text = request.headers.get("Content-Length", "0")
    if not (length_text.isascii() and length_text.isdecimal()):
        return JSONResponse(
            {"detail": f"Content-Length is {length_text[:40]!r}; expected a whole number of bytes"}, 400
        )
    if (length := int(length_text[:20])) > MOST_BODY:
        return JSONResponse({"detail": f"the body has {length:,} bytes; expected at most {MOST_BODY:,}"}, 413)
    return None


async def _refused(request: Request, error: Exception) -> Response:
    """A refusal as a page for people and as JSON for programs."""
    assert isinstance(error, StarletteHTTPException)
    detail = NOT_TEXT if error.detail == "There was an error parsing the body" else str(error.detail)
    of_programs = request.url.path.startswith("/api/")
    if (error.status_code, detail) == (404, "Not Found"):  # as Starlette says of an address without a route
        known = DOCUMENT if of_programs else ", ".join(PAGES)
        detail = f"there is nothing at {request.url.path[:80]}; what there is: {known}"
    if of_programs or "text/html" not in request.headers.get("Accept", ""):
        return JSONResponse({"detail": detail}, error.status_code, error.headers)
    try:
        viewer = request.app.state.doorkeeper.recognise(request)
    except HTTPException:
        viewer = STRANGER
    template = "token.html" if error.status_code == 401 else "problem.html"
    answer = page(request, template, viewer, status=error.status_code, detail=detail)
    answer.status_code = error.status_code
    return answer


async def _invalid(request: Request, error: Exception) -> Response:
    """Refuse a request of the wrong form: 422 in words."""
    assert isinstance(error, RequestValidationError)
    return await _refused(request, HTTPException(422, words_of(error.errors())))


async def _failed(request: Request, error: Exception) -> Response:
    """Answer what berth's parts refuse: 400 for a wrong request, 403 for a role that does not allow it, 503 if the
    source does not answer."""
    status = 403 if isinstance(error, AccessError) else 503 if isinstance(error, LiveError) else 400
    return await _refused(request, HTTPException(status, str(error)))


async def _first_page(request: Request, who: Who) -> Response:
    return RedirectResponse("/now", 303)


async def _history(request: Request) -> Response:
    """Lead to the page of the history from where people look for it."""
    return RedirectResponse(f"/then?{request.url.query}".rstrip("?"), 303)


async def _login_by_form(request: Request) -> Response:
    """Exchange a token that comes in the body of a form."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_FORM:
            raise HTTPException(413, "a token is shorter than this")
    values = parse_qs(body.decode("utf-8", "replace"))
    return await _login(request, values.get("token", [""])[0], values.get("to", ["/"])[0])


async def _login(request: Request, token: str = "", to: str = "/") -> Response:
    """Exchange a token for a session, so that it stays in no address."""
    cookie = request.app.state.doorkeeper.session_of(token)
    if cookie is None:
        raise HTTPException(401, "this token is unknown, was taken back or has expired")
    answer = RedirectResponse(_inside(to), 303)
    secure = request.app.state.settings.certificate is not None
    answer.set_cookie(COOKIE, cookie, max_age=SESSION_S, httponly=True, samesite="lax", secure=secure)
    return answer


async def _logout(request: Request, who: Who) -> Response:
    """End the session, here and wherever its cookie was copied to."""
    request.app.state.doorkeeper.end_session(request)
    answer = JSONResponse({})
    answer.delete_cookie(COOKIE)
    return answer


async def _language(request: Request, language: str, to: str = "/") -> Response:
    """Remember the language of the pages."""
    if language not in LANGUAGES:
        raise HTTPException(404, f"no texts in '{language}'; there are {', '.join(LANGUAGES)}")
    answer = RedirectResponse(_inside(to), 303)
    answer.set_cookie("berth-language", language, max_age=365 * 86_400, samesite="lax")
    return answer


def _inside(address: str) -> str:
    """An address of the console itself, whatever was asked for."""
    return (
        quote(address, safe="/?&=%")
        if address.startswith("/") and not address.startswith(("//", "/\\"))
        else "/"
    )


class _Server(uvicorn.Server):
    """A server that lets the pages go at once when it is told to end."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.hub.close()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def listening(listen: Listen) -> sockets.socket:
    """A socket that listens on an address: from now on callers wait for the server rather than being refused. Raises
    LiveError if it cannot listen."""
    config = uvicorn.Config("", log_level="warning", host=listen.host, port=listen.port)
    logging.disable()  # uvicorn logs why it cannot listen, and exits
    try:
        bound = config.bind_socket()
        try:
            bound.listen(config.backlog)
        except OSError:
            bound.close()
            raise
        return bound
    except (OSError, SystemExit) as error:
        why = error.__context__ if isinstance(error, SystemExit) else error
        cause = cause_of(why) if isinstance(why, OSError) else str(why)
        raise LiveError(
            f"cannot listen on {listen.host}:{listen.port}: {cause}; name another address with --listen"
        ) from error
    finally:
        logging.disable(logging.NOTSET)


def serve(settings: Settings, bound: sockets.socket, say: Callable[[str], None]) -> None:
    """Serve on a socket of `listening` until it is interrupted."""
    config = uvicorn.Config(
        create_app(settings),
        http="h11",
        ws="none",
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        host=settings.listen.host,
        port=settings.listen.port,
    )
    scheme = "https" if settings.certificate else "http"
    host, port = bound.getsockname()[:2]
    say(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
    _Server(config).run(sockets=[bound])
