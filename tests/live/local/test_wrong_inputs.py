"""Wrong words to a queue that is up: each is answered in one line, and no job is queued or changed."""

from __future__ import annotations

import shlex

import pytest

from tests.live.local.world import World, berth

WRONG = [
    ("submit --mem lots true", "--mem 'lots'", "such as 512M or 8G"),
    ("submit --mem 400G true", "on each GPU", "ask for less"),
    ("submit --mem 20G..8G true", "--mem 20G", "write the smaller size first"),
    ("submit --mem 20G --mem-max 8G true", "to, 8G", "write the smaller size first"),
    ("submit --time soon true", "--time 'soon'", "write 2:00:00"),
    ("submit --gpus -1 true", "--gpus '-1'", "such as 0.5"),
    ("submit --gpus 1.5 true", "--gpus '1.5'", "such as 0.5"),
    ("submit --gpus 9 true", "--gpus 9", "ask for less"),
    ("submit --gpu 7 true", "--gpu 7", "this machine's GPUs: 0, 1"),
    ("submit --gpus 0 --mem 4G true", "--gpus 0", "leave --mem"),
    ("submit --gpus 0 --mem-max 4G true", "--gpus 0", "leave --mem, --mem-max"),
    ("submit --cpus some true", "--cpus 'some'", "expected a number"),
    ("submit --core-pct 150 true", "--core-pct '150'", "from 0 to 100"),
    ("submit --array 5-1 true", "--array '5-1'", "write the smaller one first"),
    ("submit --param lr true", "--param 'lr'", "write NAME=VALUE,VALUE"),
    ("submit --after 99 true", "--after names job 99", "`berth queue --ended` lists them"),
    ("submit --begin whenever true", "--begin 'whenever'", "now+2h"),
    ("submit --notify nowhere true", "--notify 'nowhere'", "write https://"),
    ("submit --gang x true", "--gang 'x'", "write NAME/N"),
    ("submit --image '' true", "--image ''", "expected a name such as docker.io/library/python:3.12"),
    ("submit --priority high true", "--priority 'high'", "expected a whole number"),
    ("submit --output nothere/x true", "nothere", "make it first"),
    ("queue --state sleeping", "--state sleeping", "running, starting"),
    ("why 99", "'99'", "`berth queue --ended` lists them"),
    ("cancel 99", "'99'", "`berth queue --ended` lists them"),
    ("drain 9", "no GPU 9", "this machine's GPUs: 0, 1"),
    ("up --cpus 3", "--cpus 3", "First: berth down"),
]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("queue", "no job waits or runs; `berth queue --ended` lists those that have ended"),
        ("queue --ended", "the queue has had no job yet"),
        ("queue --user nobody", "no job matches; `berth queue` lists all"),
        ("queue --ended --state failed", "no job matches; `berth queue` lists all"),
    ],
)
def test_a_list_without_jobs_is_one_sentence(words: str, said: str, shared: World) -> None:
    done = berth(shared, *shlex.split(words))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{said}\n", "")


@pytest.mark.parametrize(("words", "came", "wanted"), WRONG, ids=[words for words, _, _ in WRONG])
def test_wrong_words_change_nothing_and_say_what_to_do(
    words: str, came: str, wanted: str, shared: World
) -> None:
    done = berth(shared, *shlex.split(words))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("berth: ")
    assert done.stderr.count("\n") == 1
    assert came in done.stderr
    assert wanted in done.stderr
    assert shared.ask("queue", ended=True)["rows"] == []
