"""Plotly's script from the installed package, packed once and kept by browsers for a day."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache

from fastapi import APIRouter, Request, Response
from plotly.offline import get_plotlyjs

router = APIRouter(include_in_schema=False)


@router.get("/static-plotly.js")
def plotly_script(request: Request) -> Response:
    """The script; like everything in /static/ it is public, because it tells nothing of this cluster."""
    packed, tag = _packed()
    headers = {"Cache-Control": "public, max-age=86400", "ETag": tag, "Vary": "Accept-Encoding"}
    known = request.headers.get("If-None-Match", "")
    if tag in {each.strip().removeprefix("W/") for each in known.split(",")}:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        return Response(packed, media_type="text/javascript", headers={**headers, "Content-Encoding": "gzip"})
    return Response(get_plotlyjs().encode(), media_type="text/javascript", headers=headers)


@cache
def _packed() -> tuple[bytes, str]:
    """The script packed, and its ETag."""
    script = get_plotlyjs().encode()
    return gzip.compress(script, 6, mtime=0), f'"{hashlib.sha256(script).hexdigest()[:32]}"'
