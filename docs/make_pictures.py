"""Draw the pictures of docs/gallery.md: of each example that PICTURES names, what it compared.

It needs a Chromium or Chrome. Run it as `python docs/make_pictures.py`.
"""

from __future__ import annotations

import runpy

from make_reference import EXAMPLES, PICTURES, picture

from berth.experiments.compare import plots
from berth.plots import policy_styles
from berth.report.image import write_image

if __name__ == "__main__":
    for example, (drawn, _) in PICTURES.items():
        result = runpy.run_path(str(EXAMPLES / f"{example}.py"))["result"]
        out = picture(example)
        out.parent.mkdir(exist_ok=True)
        write_image(getattr(plots, drawn)(result.runs, policy_styles(result.policies)), out)
        print(f"wrote {out}")
