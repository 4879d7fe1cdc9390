"""A figure as PNG or SVG, drawn by the Chromium or Chrome that is on this machine."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tempfile
from html import unescape
from pathlib import Path
from urllib.parse import unquote

from plotly import graph_objects as go
from plotly.offline import get_plotlyjs

from berth.report.report import write_picture

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PAGE = """<!doctype html><meta charset="utf-8"><div id="plot"></div>
<script>PLOTLY</script>
<script>
const figure = FIGURE;
const kind = {format: "KIND", width: 1100, height: figure.layout.height, scale: 2};
Plotly.newPlot("plot", figure.data, figure.layout).then(plot => Plotly.toImage(plot, kind)).then(url => {
  const text = document.createElement("pre");
  text.id = "image";
  text.textContent = url;
  document.body.replaceChildren(text);
});
</script>
"""


def write_image(figure: go.Figure, out: Path) -> None:
    """Write a figure to a file whose name ends in .html, .png or .svg."""
    if out.suffix == ".html":
        write_picture(figure, out)
        return
    browser = next(found for name in BROWSERS if (found := shutil.which(name)))
    figure.update_layout(paper_bgcolor="#FFFFFF", plot_bgcolor="#FFFFFF", title={"pad": {"l": 12, "t": 8}})
    page = PAGE.replace("KIND", out.suffix[1:]).replace("FIGURE", figure.to_json().replace("<", "\\u003c"))
    with tempfile.TemporaryDirectory(prefix="berth-plot-") as folder:
        path = Path(folder) / "page.html"
        path.write_text(page.replace("PLOTLY", get_plotlyjs()), encoding="utf-8")
        words = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--enable-unsafe-swiftshader"]
        words += [f"--user-data-dir={folder}/profile", "--virtual-time-budget=30000", "--dump-dom"]
        done = subprocess.run([browser, *words, path.as_uri()], capture_output=True, timeout=120, check=True)
    drawn = re.search(r'<pre id="image">(.*?)</pre>', done.stdout.decode(), re.DOTALL)
    assert drawn is not None, done.stderr.decode(errors="replace")
    head, _, body = unescape(drawn[1]).partition(",")
    out.write_bytes(base64.b64decode(body) if "base64" in head else unquote(body).encode())
