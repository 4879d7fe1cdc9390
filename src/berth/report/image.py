"""A figure as a file: a page, or PNG or SVG as the browser that is on this machine draws it."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Final

from plotly import graph_objects as go

from berth.errors import SettingError
from berth.files import whole_file
from berth.report.page import render_for_image, render_picture

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TIMEOUT_S: Final = 120


def write_image(figure: go.Figure, out: Path, answers: Sequence[str] = ()) -> None:
    """Write .html, .png or .svg; SettingError for another ending, or where there is no browser to draw.

    A page begins with `answers`, sentences on what the figure shows.
    """
    kind = image_kind(out)
    if kind == "html":
        _write(render_picture(figure, answers).encode(), out)
        return
    figure.update_layout(paper_bgcolor="#FFFFFF", plot_bgcolor="#FFFFFF", title={"pad": {"l": 12, "t": 8}})
    url = _drawn(render_for_image(figure, kind))
    head, _, body = url.partition(",")
    if "base64" in head:
        _write(base64.b64decode(body), out)
    else:
        from urllib.parse import unquote

        _write(unquote(body).encode(), out)


def _write(content: bytes, out: Path) -> None:
    with whole_file(out) as temporary:
        temporary.write_bytes(content)


def image_kind(out: Path) -> str:
    """`html`, `png` or `svg`, as the file's name ends; SettingError, as when it is written, where it cannot be."""
    kind = out.suffix.lower().removeprefix(".")
    if kind not in ("html", "png", "svg"):
        raise SettingError(f"{out}: a picture's file ends in .png, .svg or .html")
    if kind != "html":
        _browser()
    return kind


def _browser() -> str:
    found = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if found is None:
        raise SettingError(
            f"a PNG or SVG is drawn by a browser, and there is none of {', '.join(BROWSERS)}; write .html"
        )
    return found


def _drawn(page: str) -> str:
    """The picture as a data URL."""
    browser = _browser()
    with tempfile.TemporaryDirectory(prefix="berth-plot-") as folder:
        path = Path(folder) / "page.html"
        path.write_text(page, encoding="utf-8")
        words = [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--enable-unsafe-swiftshader",
        ]
        words += [
            f"--user-data-dir={folder}/profile",
            "--virtual-time-budget=30000",
            "--dump-dom",
            path.as_uri(),
        ]
        try:
            done = subprocess.run(words, capture_output=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise SettingError(f"{browser} did not draw the picture within {TIMEOUT_S} s") from error
    drawn = re.search(r'<pre id="image">(.*?)</pre>', done.stdout.decode(errors="replace"), re.DOTALL)
    if drawn is None:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        raise SettingError(f"{browser} drew nothing: {told[-1] if told else 'it told no reason'}")
    return unescape(drawn[1])
