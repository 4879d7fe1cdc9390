"""What an application uses of its GPU from start to end (Oh 2019, figures 1 and 2)."""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from berth.model import Profile
from berth.plots.style import COLOURS, INK, dress
from berth.profiles import company

LINES = (("GPU", 0, "solid"), ("GPU cores", 2, "dash"), ("PCIe", 3, "dot"))
HEIGHT_PX = 520


def profile_figure(profile: Profile) -> go.Figure:
    """GPU, cores and PCIe in per cent of the card above, GPU memory in MiB below, over the run.

    A step a row of the profile; the thin line below is the memory that the card has, and says so.
    """
    interval_s = profile.interval_ms / 1000
    steps = len(profile.usage)
    seconds = [step * interval_s for step in range(steps + 1)]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.09)
    for at, (name, column, dash) in enumerate(LINES):
        values = (profile.usage[:, column] * 100).tolist()
        figure.add_trace(
            go.Scatter(
                x=seconds,
                y=[*values, values[-1]],
                mode="lines",
                name=name,
                line={"color": COLOURS[at], "dash": dash, "width": 2, "shape": "hv"},
                hovertemplate="%{y:.0f} %",
            ),
            row=1,
            col=1,
        )
    mem_mib = (profile.usage[:, 1] * profile.hardware.mem_mib).tolist()
    figure.add_trace(
        go.Scatter(
            x=seconds,
            y=[*mem_mib, mem_mib[-1]],
            mode="lines",
            name="GPU memory",
            line={"color": COLOURS[3], "width": 2, "shape": "hv"},
            fill="tozeroy",
            hovertemplate="%{y:,.0f} MiB",
        ),
        row=2,
        col=1,
    )
    dress(
        figure,
        f"{escape(profile.application)} {company(profile)} on {escape(profile.hardware.name)}",
        HEIGHT_PX,
    )
    figure.add_hline(
        profile.hardware.mem_mib,
        line={"color": INK, "width": 1},
        row=2,
        col=1,
        annotation={"text": f"the card's memory: {profile.hardware.mem_mib:,} MiB", "font": {"size": 12}},
        annotation_position="bottom right",
    )
    figure.update_yaxes(title={"text": "of the card"}, ticksuffix=" %", range=[0, 105], row=1, col=1)
    figure.update_yaxes(
        title={"text": "GPU memory, MiB"}, range=[0, 1.05 * profile.hardware.mem_mib], row=2, col=1
    )
    figure.update_yaxes(title={"font": {"size": 13}})
    figure.update_yaxes(tickformat=",d", row=2, col=1)
    figure.update_xaxes(title={"text": "Seconds from its start"}, row=2, col=1)
    return figure
