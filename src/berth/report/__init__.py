"""One self-contained HTML page about some runs: what was asked, a table, and plots.

The page needs no network: Plotly's script is inside it, and nothing in it names another address.
"""

from berth.report.report import Chapter, Report, render, write
