import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plotly import graph_objects as go
from plotly.offline import get_plotlyjs

from berth.plots.style import dress
from berth.report import Chapter, render, write
from berth.report.report import render_picture
from berth.statistics import METRICS
from berth.statistics.comparison import Cell, table_rows
from tests.experiments.compare.runs import NODES, made_runs
from tests.report.reports import load_chapter, report

EVIL = "<script>alert('x')</script>"


class Page(HTMLParser):
    """What a browser would make of a page: its elements, their texts, and the headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "br"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)


def packed_plotly(page: str) -> str:
    """Plotly's script as it lies in a page, gzip in base64."""
    found = re.findall(r'<script type="text/plain" id="plotly">([^<]+)</script>', page)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture(scope="module")
def page() -> str:
    return render(report())


def test_a_page_says_what_was_asked_and_has_every_section(page: str) -> None:
    read = Page(page)
    assert read.texts["h2"] == [
        "Comparison",
        "Policies at a glance",
        "Over time",
        "How long jobs took",
        "What the numbers mean",
        "Load",
    ]
    told = " ".join(text for texts in read.texts.values() for text in texts if len(text) < 1000)
    for part in ("Two policies", "trace.csv: 60 jobs", "4 nodes, 10 GPUs", "berth 1.2.3 · 2026-11-21"):
        assert part in told
    assert "fifo+first-fit, sjf+best-fit, fgd, random" in told
    assert all(metric.definition in told for metric in METRICS)


def test_what_is_not_there_has_no_section() -> None:
    bare = Page(render(report(runs=(), load=False, nodes=())))
    assert "h2" not in bare.texts
    assert Page(render(report(runs=(), nodes=()))).texts["h2"] == ["Load"]


def test_a_chapter_shows_what_it_has_and_nothing_else() -> None:
    words = Chapter("Words", definitions=[("load", "what is asked for")])
    table = Chapter("Table", "How to read it.", headings=["policy", "jobs"], rows=[["fifo", "3"]])
    figure = load_chapter()
    text = render(replace(report(), chapters=[words, table, replace(figure, names=(), headings=(), rows=())]))
    read = Page(text)
    assert read.texts["h2"] == ["Words", "Table", "Load"]
    assert read.texts["dt"][-1:] + read.texts["dd"][-1:] == ["load", "what is asked for"]
    assert (read.texts["th"], read.texts["td"]) == (["policy", "jobs", "fifo"], ["3"])
    assert [named["id"] for _, named in read.elements if "data-plot" in named] == [
        "chapter-2-0",
        "chapter-2-1",
    ]
    assert [kind for kind, _ in read.elements].count("table") == 1


def test_a_page_stands_alone(page: str) -> None:
    assert gzip.decompress(base64.b64decode(packed_plotly(page))).decode() == get_plotlyjs()
    addresses = [
        value
        for _, attributes in Page(page).elements
        for name, value in attributes.items()
        if name in {"src", "href", "action", "data", "srcset"} and value != "data:,"
    ]
    assert addresses == []
    assert not re.search(r"https?://|@import|url\(", page)


def test_a_page_may_run_its_own_two_scripts_and_plotly_and_no_other(page: str) -> None:
    policy = next(
        attributes["content"]
        for tag, attributes in Page(page).elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("sha256-") == 3
    assert "unsafe-inline" not in policy.split("style-src")[0]


def test_data_cannot_become_markup() -> None:
    runs = [replace(run, policy=EVIL) for run in made_runs(seeds=(1,))[:1]]
    told = {name: f"{EVIL}{name}" for name in ("title", "command", "trace", "cluster", "created", "version")}
    nodes = [replace(node, name=f"{EVIL}{at}") for at, node in enumerate(NODES)]
    text = render(report(runs=runs, nodes=nodes, load=False, **told))
    read = Page(text)
    assert EVIL not in text
    assert f"{EVIL}trace" in "".join(read.texts["dd"])
    kinds = [attributes.get("type") for tag, attributes in read.elements if tag == "script"]
    assert kinds.count(None) == 2
    assert set(kinds) == {None, "application/json", "text/plain"}


def test_a_phone_has_the_name_of_each_number_and_the_keyboard_reaches_each_table(page: str) -> None:
    read = Page(page)
    cells = [attributes for tag, attributes in read.elements if tag == "td"]
    assert cells
    assert all(cell.get("data-label") for cell in cells)
    tables = [attributes for _, attributes in read.elements if attributes.get("class") == "scroll"]
    assert tables
    assert all(each["tabindex"] == "0" and each["aria-label"] for each in tables)


def test_every_plot_has_its_data_as_json_and_a_label(page: str) -> None:
    read = Page(page)
    plots = [attributes for _, attributes in read.elements if "data-plot" in attributes]
    data = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', page)
    assert [plot["data-plot"] for plot in plots] == [name for name, _ in data]
    assert all(plot["role"] == "group" and plot["aria-label"] for plot in plots)
    for _, text in data:
        assert set(json.loads(text)) >= {"data", "layout"}


def test_the_same_report_is_the_same_page(page: str) -> None:
    assert render(report()) == page


def test_the_table_marks_the_best_and_shows_intervals() -> None:
    rows = {row.metric: row for row in table_rows(made_runs())}
    assert list(rows) == [metric.name for metric in METRICS]
    wait = rows["Mean wait"]
    assert [cell.mark for cell in wait.cells].count("best") == 1
    assert all(cell.half for cell in wait.cells)
    assert rows["Evictions"].cells == (Cell("0", "0", ""), Cell("0", "0", ""))
    assert rows["GPUs busy"].unit == "%"
    assert {cell.mark for cell in rows["GPUs busy"].cells} == {""}


def test_one_seed_has_no_intervals() -> None:
    rows = table_rows(made_runs(seeds=(1,)))
    assert {cell.half for row in rows for cell in row.cells} == {""}
    assert "±" not in render(report(runs=made_runs(seeds=(1,))))


@pytest.mark.slow
def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, page: str) -> None:
    path = tmp_path / "report.html"
    write(report(), path)
    assert path.read_text(encoding="utf-8") == page
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        write(report(), tmp_path / "missing" / "report.html")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_a_large_report_is_of_moderate_size() -> None:
    policies = ("fifo+first-fit", "fifo+best-fit", "sjf+first-fit", "sjf+best-fit", "fifo+random")
    text = render(report(runs=made_runs(policies, range(5), jobs=300)))
    assert len(text.encode()) < 5_000_000
    assert len(packed_plotly(text)) < 2_200_000


def test_a_single_picture_runs_no_other_script_and_contacts_nobody() -> None:
    figure = go.Figure(go.Scatter(y=[1, 2]))
    dress(figure, "a &lt;b&gt;")
    text = render_picture(figure, ["It has <two> points."])
    assert Page(text).texts["h1"] == ["a <b>"]
    assert "It has &lt;two&gt; points." in text
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert found is not None
    policy = unescape(found[1])
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert "showSendToCloud: false" in text
    assert "<title>a &lt;b&gt;</title>" in text
    sums = re.findall(r"'sha256-([^']+)'", policy)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert {base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts} <= set(
        sums
    )
