"""Every text of the console is there in every language, and none that nobody uses any more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from string import Formatter

import pytest
from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po
from jinja2 import Environment, nodes

import berth
import berth.console
from berth.console.formats import decimal, gpu_time, hours_cell, span
from berth.console.history.page import AXES
from berth.console.pages import LANGUAGES, Texts, composed_pairs, filled
from berth.console.roles import Role
from berth.policies import ORDERS, PLACEMENTS, SCHEMES, describe, policies_found
from berth.report.digest import main_figures
from berth.statistics.accounting import NOTHING_USED

CONSOLE = Path(berth.console.__file__).parent
OTHERS = sorted(LANGUAGES.keys() - {"en"})


def catalogue(language: str) -> Catalog:
    with (CONSOLE / "locale" / language / "LC_MESSAGES" / "console.po").open("rb") as file:
        return read_po(file)


def texts(language: str) -> dict[str, str]:
    return {str(message.id): str(message.string) for message in catalogue(language) if message.id}


def composed_by(language: str) -> set[str]:
    """The templates of what other parts of berth compose."""
    return {str(message.id) for message in catalogue(language) if "composed" in message.auto_comments}


COMPOSED = sorted({text for language in OTHERS for text in composed_by(language)})
SUMMARIES = {describe(name) for group in (ORDERS, PLACEMENTS, SCHEMES, policies_found()) for name in group}
FIGURES = {
    each.name.replace(" idle", " held but idle")
    for each in main_figures(NOTHING_USED, None, NOTHING_USED, None)
}
ASKED_BY_NAME = frozenset(
    {*Role, "seconds", "minutes", "hours", "days", *SUMMARIES, *FIGURES, *chain(*AXES.values()), *COMPOSED}
)
"""Texts that pages ask for by a variable: roles, the units of `berth.statistics.readable_unit`, what policies say of
themselves, the history's figures and axes, and what other parts of berth compose."""


def extracted() -> Iterator[str]:
    """The texts of `t("…")` in all templates and modules, as Babel finds them."""
    methods = [("**.html", "jinja2"), ("**.py", "python")]
    for _, _, text, _, _ in extract_from_dir(CONSOLE, methods, keywords={"t": None}):
        yield text if isinstance(text, str) else text[0]


def constants() -> Iterator[str]:
    """All texts that templates have anywhere, such as in lists that `t` is asked with."""
    environment = Environment()
    for path in CONSOLE.rglob("*.html"):
        for each in environment.parse(path.read_text(encoding="utf-8")).find_all(nodes.Const):
            if isinstance(each.value, str):
                yield each.value
    for path in CONSOLE.rglob("*.py"):
        for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(found, ast.Constant) and isinstance(found.value, str):
                yield found.value


def parts(text: str) -> set[str | None]:
    """The names in braces, which are filled in."""
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_is_there_in_every_language(language: str) -> None:
    asked = {*extracted(), *ASKED_BY_NAME}
    assert len(asked) > 50
    assert sorted(asked - texts(language).keys()) == []


@pytest.mark.parametrize("language", OTHERS)
def test_no_text_is_left_over(language: str) -> None:
    assert sorted(texts(language).keys() - {*constants(), *ASKED_BY_NAME}) == []


@pytest.mark.parametrize("language", OTHERS)
def test_a_translation_has_the_same_parts_to_fill_in(language: str) -> None:
    assert [text for text, other in texts(language).items() if parts(text) != parts(other)] == []


@pytest.mark.parametrize("language", OTHERS)
def test_no_translation_is_empty_or_fuzzy_and_no_text_is_twice(language: str) -> None:
    source = (CONSOLE / "locale" / language / "LC_MESSAGES" / "console.po").read_text(encoding="utf-8")
    assert source.count("\nmsgid ") == len(texts(language)) + 1
    assert [text for text, other in texts(language).items() if not other.strip()] == []
    assert "fuzzy" not in source


def words_of(text: str) -> set[str]:
    return set(re.findall("[A-Za-z]{2,}", text))


@cache
def written() -> list[set[str]]:
    """The words of the texts in each function, and in each statement outside of functions; docstrings say nothing."""
    found = []
    for path in Path(berth.__file__).parent.rglob("*.py"):
        units: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
        while units:
            unit = units.pop()
            if isinstance(unit, ast.Module | ast.ClassDef):
                units += unit.body
                continue
            docs = {id(each.value) for each in ast.walk(unit) if isinstance(each, ast.Expr)}
            constants_in = (each for each in ast.walk(unit) if isinstance(each, ast.Constant))
            held = (each.value for each in constants_in if id(each) not in docs)
            found.append({word for value in held if isinstance(value, str) for word in words_of(value)})
    return found


def is_written(template: str) -> bool:
    """Whether the words of a template stand together somewhere."""
    words = words_of(re.sub("{.*?}", "", template))
    return any(words <= there for there in written())


@pytest.mark.slow
@pytest.mark.parametrize("text", COMPOSED)
def test_what_other_parts_compose_is_still_said_so(text: str) -> None:
    """A sentence that is worded anew in the broker needs its template here worded anew."""
    assert is_written(text)


@pytest.mark.slow
def test_a_sentence_that_nobody_composes_any_more_is_noticed() -> None:
    assert not is_written("its time to begin has not come")


def test_scripts_are_given_no_template_that_fits_any_sentence() -> None:
    """Scripts take a part for any text: `{number} s` would make a sentence of seconds of `it stopped after two s`."""
    assert [text for text, _ in composed_pairs("ko") if text.startswith("{number}")] == []
    assert composed_pairs("en") == []


@pytest.mark.parametrize(
    ("sentence", "korean"),
    [
        ("waits for room", "자리가 나기를 기다립니다"),
        (
            "waits for CPUs: 2 of 8 CPUs are free, 4 wanted",
            "CPU를 기다립니다: CPU 8개 중 2개가 비어 있고 4개가 필요합니다",
        ),
        ("process 4711 (python)", "프로세스 4711(python)"),
        ("process 4711 ({why} (x))", "프로세스 4711({why} (x))"),
        ("2.5 h", "2.5시간"),
        (
            "Job 28 has been waiting for 2:06: it waits for job 27 (ok)",
            "작업 28: 2:06 동안 대기 중 상태입니다: 작업 27(ok)을 기다립니다",
        ),
        (
            "  GPU 1: 5 % of its compute is free, 100 % wanted; held by job 3 4G",
            "  GPU 1: 연산량 5 %가 비어 있고 100 %가 필요합니다; 점유: job 3 4G",
        ),
        (
            "Job 2 has been waiting for 0:30: waits for CPUs: 0 of 2 CPUs are free, 1 wanted; 1 job before it",
            "작업 2: 0:30 동안 대기 중 상태입니다: CPU를 기다립니다: CPU 2개 중 0개가 비어 있고 1개가 필요합니다."
            " 앞에 작업 1개",
        ),
        (
            "  it waits for CPUs: 0 of 2 CPUs are free, 1 wanted",
            "  CPU를 기다립니다: CPU 2개 중 0개가 비어 있고 1개가 필요합니다",
        ),
        (
            "  GPU 0: 90 % of its compute is free, 100 % wanted; 0M is free, 80G wanted",
            "  GPU 0: 연산량 90 %가 비어 있고 100 %가 필요합니다; 여유 0M, 필요 80G",
        ),
        ("  expected to start at 2026-11-24 08:00:00", "  시작 예정 시각: 2026-11-24 08:00:00"),
        ("  expected to run 1-00:00:00 (by user)", "  예상 실행 시간 1-00:00:00(근거: 사용자)"),
        (
            "waits for room; start unknown: a running job has no time limit, and no job like it has ended yet",
            "자리가 나기를 기다립니다; 시작 시각을 알 수 없습니다: 실행 중인 작업에 시간 제한이 없고, 비슷한 작업이"
            " 아직 끝난 적이 없습니다",
        ),
        ("room is kept for job 7; 1 job before it", "작업 7을(를) 위해 자리를 남겨 둡니다. 앞에 작업 1개"),
        (
            "some news: 0 of 2 CPUs are free, 1 wanted",
            "some news: 0 of 2 CPUs are free, 1 wanted",
        ),
        (
            "the quota of 'default' is 2 GPUs, of which 2 are taken; 1 job before it",
            "'default'의 할당량 GPU 2개 중 2개가 쓰이고 있습니다. 앞에 작업 1개",
        ),
        (
            "No node can be returned: with fifo+first-fit on 3 A100 80GB nodes the mean wait is 2.5 h, above 90 s.",
            "반납할 수 있는 노드가 없습니다: fifo+first-fit 정책에서 A100 80GB 노드 3개이면 평균 대기 시간이(가)"
            " 2.5시간(으)로 90초보다 큽니다.",
        ),
        (
            "When weeks are resampled, 80 % of the smallest sizes lie between 3 or fewer and 5 nodes.",
            "주 단위로 다시 표집하면, 가장 작은 크기의 80 %는 노드 수 3 이하와(과) 5 사이에 있습니다.",
        ),
        (
            "Caution: this rests on 8 jobs in 1 week; a size is reliable only from 100 jobs in 3 weeks on.",
            "주의: 1주 동안의 작업 8개에 근거한 답입니다. 3주 동안 작업 100개는 있어야 믿을 수 있습니다.",
        ),
        ("+3.0 points", "+3.0%p"),
        ("a name of 3 h", "a name of 3 h"),
        ("whatever else", "whatever else"),
        ("", ""),
    ],
)
def test_composed_sentences_are_korean_where_a_template_fits(sentence: str, korean: str) -> None:
    assert (Texts("ko").sentence(sentence), Texts("en").sentence(sentence)) == (korean, sentence)


def test_numbers_have_the_right_form_of_their_noun() -> None:
    text = "{jobs:# job waits|# jobs wait}, {left:one|# more}"
    assert [filled(text, jobs=jobs, left=jobs) for jobs in (0, 1, 2, 1234, 1.0, 1.5)] == [
        "0 jobs wait, 0 more",
        "1 job waits, one",
        "2 jobs wait, 2 more",
        "1,234 jobs wait, 1,234 more",
        "1 job waits, one",
        "1.5 jobs wait, 1.5 more",
    ]


def test_no_count_stands_before_a_noun_that_is_plural_in_any_case() -> None:
    nouns = "jobs|users|GPUs|GPU-hours|nodes|attempts|groups|lines|days"
    said = texts("ko").keys() - {*COMPOSED}  # those are recognised, in both forms
    found = {name for text in said for name in re.findall(rf"\{{(\w+)\}} (?:\w+ )?(?:{nouns})\b", text)}
    assert found == {
        "policy",  # a name
        "count",  # of the jobs that are replayed: thousands
    }  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "english", "korean"),
    [
        (0, "0 s", "0초"),
        (-5, "0 s", "0초"),
        (119, "119 s", "119초"),
        (120, "2.0 min", "2.0분"),
        (7199, "120.0 min", "120.0분"),
        (7200, "2.0 h", "2.0시간"),
        (400_000, "4.6 d", "4.6일"),
    ],
)
def test_a_length_of_time_is_written_in_one_way(seconds: float, english: str, korean: str) -> None:
    assert [span(seconds, Texts(language)) for language in ("en", "ko")] == [english, korean]


def test_hints_of_all_pages_are_of_one_template() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in CONSOLE.rglob("*.html")}
    assert [name for name, text in found.items() if "data-hint" in text] == ["hints.html"]
    assert {
        text.split("t(")[-1] for page in found.values() for text in page.splitlines() if "hints.hint(" in text
    } == {'"Got it")) }}'}


@pytest.mark.parametrize(
    ("hours", "said", "cell"),
    [
        (0, "0 GPU-hours", "0"),
        (1e-9, "0.000004 GPU-seconds", "< 0.1 s"),
        (1 / 3600, "1 GPU-second", "1.0 s"),
        (0.0021, "7.6 GPU-seconds", "7.6 s"),
        (1 / 60, "1 GPU-minute", "1.0 min"),
        (0.09, "5.4 GPU-minutes", "5.4 min"),
        (0.44, "0.4 GPU-hours", "0.4"),
        (1.02, "1 GPU-hour", "1.0"),
        (9.96, "10 GPU-hours", "10.0"),
        (999, "999 GPU-hours", "999.0"),
        (1234.5, "1,234 GPU-hours", "1,234"),
    ],
)
def test_few_hours_are_told_in_the_unit_that_fits(hours: float, said: str, cell: str) -> None:
    english = Texts("en")
    assert (gpu_time(hours, english), hours_cell(hours, english)) == (said, cell)


def test_no_small_number_is_written_with_an_exponent() -> None:
    assert [decimal(value) for value in (6e-5, -6e-5, 0.0, 0.05)] == ["0.00006", "-0.00006", "0.0", "0.05"]
