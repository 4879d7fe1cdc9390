"""HEAD wherever GET is: the same answer without its body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_WITHOUT_BODY: Message = {"type": "http.response.body", "body": b"", "more_body": False}


class Heads:
    """Ask the application as by GET, and send no more than the head of what it answers.

    The application is told that the client has gone once the head is sent, so that a stream without an end ends.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        sent = False

        async def send_head(message: Message) -> None:
            nonlocal sent
            if message["type"] == "http.response.start":
                await send(message)
            elif not sent:
                sent = True
                await send(_WITHOUT_BODY)

        async def receive_until_sent() -> Message:
            return {"type": "http.disconnect"} if sent else await receive()

        await self._app({**scope, "method": "GET"}, receive_until_sent, send_head)
