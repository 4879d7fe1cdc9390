"""A figure as a file: a page, or PNG or SVG as the browser that is on this machine draws it."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tempfile
from html import unescape
from pathlib import Path
from typing import Final

from plotly import graph_objects as go
from plotly.offline import get_plotlyjs

from berth.errors import SettingError
from berth.files import whole_file

__all__ = ["BROWSERS", "image_kind", "write_image"]

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TIMEOUT_S: Final = 120

_PAGE: Final = """<!doctype html><meta charset="utf-8"><body style="margin:0;background:#fff"><div id="plot"></div>
<script>%s</script><script type="application/json" id="data">%s</script><script>
const figure = JSON.parse(document.getElementById("data").textContent), wanted = %s;
Plotly.newPlot("plot", figure.data, figure.layout, {displaylogo: false}).then(async (place) => {
  if (!wanted) return;
  const url = await Plotly.toImage(place, {format: wanted, width: 1100, height: figure.layout.height, scale: 2});
  document.body.replaceChildren();
  const text = document.createElement("pre");
  text.id = "image"; text.textContent = url; document.body.append(text);
});
</script>"""


def write_image(figure: go.Figure, out: Path) -> None:
    """Write .html, .png or .svg; SettingError for another ending, or where there is no browser to draw."""
    kind = image_kind(out)
    figure.update_layout(paper_bgcolor="#FFFFFF", plot_bgcolor="#FFFFFF", title={"pad": {"l": 12, "t": 8}})
    data = figure.to_json()
    for character in "<>&":  # in JSON they stand only inside strings
        data = data.replace(character, f"\\u{ord(character):04x}")
    page = _PAGE % (get_plotlyjs(), data, "null" if kind == "html" else f'"{kind}"')
    if kind == "html":
        _write(page.encode(), out)
        return
    url = _drawn(page)
    head, _, body = url.partition(",")
    if "base64" in head:
        _write(base64.b64decode(body), out)
    else:
        from urllib.parse import unquote

        _write(unquote(body).encode(), out)


def _write(content: bytes, out: Path) -> None:
    with whole_file(out) as aside:
        aside.write_bytes(content)


def image_kind(out: Path) -> str:
    """`html`, `png` or `svg`, as the file's name ends; SettingError, as when it is written, where it cannot be."""
    kind = out.suffix.lower().removeprefix(".")
    if kind not in ("html", "png", "svg"):
        raise SettingError(f"{out}: a picture's file ends on .png, .svg or .html")
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
