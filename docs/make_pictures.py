"""Draw the pictures of the README, of docs/growth.md and of docs/gallery.md.

The README's is of what `make demo` compares. That of growth is of two jobs that run here (`make native` first). The
gallery's are of the examples that PICTURES names, and need a Chromium or Chrome. Run it as
`python docs/make_pictures.py`, or with `filling` or `growth` for one of the first two alone.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from growth_picture import growth_picture, watched
from make_reference import EXAMPLES, PICTURES, picture

from berth.experiments.compare import compare, plots
from berth.experiments.compare.filling import filling, two_to_show
from berth.plots import policy_styles

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from drawing import write_image

DEMO = ("fifo+whole-gpus", "easy+fifo+best-fit")
"""The policies of the README's picture, which `make demo` compares."""


def draw_filling() -> str:
    """The README's picture, an SVG."""
    pair = two_to_show(compare("synthetic:demo", DEMO, knowledge="user").runs)
    assert pair is not None
    return filling(pair)


if __name__ == "__main__":
    own = {"filling": draw_filling, "growth": lambda: growth_picture(watched())}
    for name in sys.argv[1:] or own:
        out = picture(name)
        out.write_text(own[name]() + "\n")
        print(f"wrote {out}")
    for example, (drawn, _) in {} if sys.argv[1:] else PICTURES.items():
        result = runpy.run_path(str(EXAMPLES / f"{example}.py"))["result"]
        out = picture(example)
        out.parent.mkdir(exist_ok=True)
        write_image(getattr(plots, drawn)(result.runs, policy_styles(result.policies)), out)
        print(f"wrote {out}")
