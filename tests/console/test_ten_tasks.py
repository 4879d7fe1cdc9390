"""Eleven things that people come for, done in a real Chromium on a phone and on a desktop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("playwright")
from berth.console.clock import now_ms
from tests.console.browser import CHROMIUM, chromium, logged_in
from tests.console.histories import made
from tests.console.serving import served
from tests.console.values import ValuesSource, look_of
from tests.console.world import World

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium"),
    # Playwright's event loop and uvicorn's thread each keep a socket until the end of the session.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.parametrize("width", [390, 1280])
def test_eleven_tasks_are_done_on_a_phone_and_on_a_desktop(tmp_path: Path, width: int) -> None:
    made(tmp_path)
    look = look_of(gpus=8, waiting=12, at_ms=now_ms())
    jobs = [replace(job, starts_from_ms=look.at_ms, starts_to_ms=look.at_ms + 9_000_000) for job in look.jobs]
    source = ValuesSource(replace(look, jobs=tuple(jobs)), written={"1": "epoch 1\n"})
    world = World(tmp_path / "state", history=tmp_path / "history", sources=[source], actions=True)
    with served(world) as address, chromium() as browser:
        context = logged_in(browser, world, address, viewport={"width": width, "height": 800})
        page = context.new_page()

        page.goto(f"{address}/now")  # 1: who holds a GPU
        page.locator("#tiles button").first.click()
        page.locator("#detail", has_text="ann").wait_for()

        page.goto(f"{address}/then/lines")  # the picture with most axes is not wider than the window
        page.locator("#lines .axis").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        right = page.locator("#lines .axis-title").evaluate_all(
            "each => each.map(one => one.getBoundingClientRect().right)"
        )
        assert (len(right), max(right) <= width) == (5 if width == 390 else 6, True)
        page.goto(f"{address}/now")

        page.locator(".spans a", has_text="Day").click()  # 2: what the last day was like
        page.locator("#recent[data-span=day]").wait_for()

        page.goto(f"{address}/queue?state=waiting&user=ann")  # 3: why a job waits
        page.get_by_role("link", name="100000", exact=True).click()
        page.locator("h1", has_text="waiting").wait_for()
        assert "waits for room" in page.inner_text("#live")

        page.get_by_role("button", name="Hold", exact=True).click()  # 4: hold it
        page.get_by_role("button", name="Yes").click()
        page.locator("#told", has_text="hold: 100000").wait_for()

        page.goto(f"{address}/job/1")  # 5: follow an output
        page.locator("#output", has_text="epoch 1").wait_for()
        source.written["1"] += "epoch 2\n"
        page.locator("#output", has_text="epoch 2").wait_for()

        page.get_by_role("button", name="Run it again").click()  # 6: run it again
        page.get_by_role("button", name="Yes").click()
        page.locator("#told", has_text="requeue: 1").wait_for()

        page.goto(f"{address}/queue")  # 7: submit a job
        assert (
            page.evaluate(
                "document.querySelector('.scroll').scrollWidth - document.querySelector('.scroll').clientWidth"
            )
            == 0
        )
        page.locator("#submit summary").click()
        page.get_by_label("Command").fill("python train.py")
        page.get_by_role("button", name="Submit", exact=True).click()
        page.locator("#told", has_text="is queued").wait_for()

        page.goto(f"{address}/queue")  # 8: cancel all that the page shows
        page.locator("#choose-all").click()
        page.locator("#choice button[data-action=cancel]").click()
        page.get_by_role("button", name="Yes").click()
        page.locator("#told", has_text="jobs changed").wait_for()

        page.goto(f"{address}/then?pick=bob")  # 9: the jobs behind a figure
        page.locator("#jobs-rows a").first.wait_for()

        page.goto(f"{address}/job/annpytorch28")  # 10: what could be asked for instead
        page.locator("p.answer", has_text="would be enough").wait_for()

        page.locator("#log-out").click()  # 11: log out
        page.locator("input[name=token]").wait_for()
        context.close()
    assert {action for action, _, _ in source.done} == {"hold", "requeue", "submit", "cancel"}
    assert sum(action == "cancel" for action, _, _ in source.done) == len(source.value.jobs)


def test_a_chosen_job_is_not_its_namesake_of_another_source(tmp_path: Path) -> None:
    sources = [ValuesSource(look_of(gpus=2, waiting=2, at_ms=now_ms()), name=name) for name in ("a", "b")]
    world = World(tmp_path, sources=sources, actions=True)
    with served(world) as address, chromium() as browser:
        context = logged_in(browser, world, address)
        page = context.new_page()
        page.goto(f"{address}/queue")
        page.locator('input[value="100000"][data-source=a]').check()
        look = sources[0].value
        sources[0].value = replace(look, jobs=look.jobs[:-1])  # the page draws its rows anew
        page.locator('input[value="100001"][data-source=a]').wait_for(state="detached")
        chosen = page.evaluate("berth.ticked(document).map((each) => [each.dataset.source, each.value])")
        context.close()
    assert chosen == [["a", "100000"]]
