"""What all figures share, and those that are of no experiment; no files are read or written.

A policy has one colour through all figures (Okabe and Ito, Color Universal Design, 2008), for eyes of every
kind, on a light page and on a dark one. Texts that come from data are escaped: Plotly reads markup in them.
"""

from berth.plots.style import Style, policy_styles
