"""What Slurm's commands print, as values."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from berth.errors import LiveError
from berth.history.values.applications import read_rules
from berth.history.values.durations import slurm_s
from berth.history.values.tres import Gres, Resources, base_type, gres_list, indices, resources
from berth.live.slurm import node
from berth.live.slurm.candidates import Priorities
from berth.live.slurm.controller import Change, Controller, run_program
from berth.live.slurm.jobs import jobs_of, tasks_of
from berth.live.slurm.nodes import SlurmPartition, nodes_of, partitions_of
from berth.live.slurm.requests import Cards, LeftToSlurmError, Note, job_of, note_of
from berth.model import Share
from tests.live.slurm.fake_slurm import NODE, TYPED, FakeSlurm, row


def test_generic_resources_are_read_with_types_counts_and_indices() -> None:
    assert gres_list("gpu:v100:2(IDX:0-1),shard:v100:3(IDX:1)") == (
        Gres("gpu", "v100", 2, (0, 1)), Gres("shard", "v100", 3, (1,)),
    )  # fmt: skip
    assert gres_list("gres:gpu:a100_1:1,gres:shard:8") == (Gres("gpu", "a100_1", 1), Gres("shard", "", 8))
    assert gres_list("gpu") == (Gres("gpu", "", 1),)
    assert gres_list("gpu:4(S:0-1)") == (Gres("gpu", "", 4),)
    assert gres_list("(null)") == ()
    assert indices("0-2,5,10-16:3") == (0, 1, 2, 5, 10, 13, 16)
    assert (base_type("a100_3"), base_type("a100")) == ("a100", "a100")
    with pytest.raises(ValueError, match="no generic resource"):
        gres_list("gpu:v100:2,;")


def test_a_comment_may_hold_anything_and_an_array_of_10000_is_one_row() -> None:
    text = row(JobID="7", Comment="two\nlines | and ; é", Name="a|b") + row(
        JobID="8", JobArrayID="8_[1-9998,10001-10002%3]", Reason="Resources"
    )
    text += row(JobID="9", JobArrayID="8_4", State="RUNNING", StartTime="1500") + row(
        JobID="10", JobArrayID="10+1", HetJobID="10", OverSubscribe="NO", TimeLimit="2-03:04:05"
    )
    one, array, task, het = jobs_of(text)
    assert (one.id, one.comment, one.name, one.time_limit_ms) == (
        "7",
        "two\nlines | and ; é",
        "a|b",
        3_600_000,
    )
    assert (len(array.array_tasks), array.array_limit, array.id, array.array_id) == (10_000, 3, "8_", "8")
    assert (task.id, task.raw_id, task.runs, task.start_ms) == ("8_4", "9", True, 1_500_000)
    assert (het.het, het.exclusive, het.time_limit_ms) == (True, True, ((51 * 60 + 4) * 60 + 5) * 1000)
    # Of the tasks that wait no more are shown than may start beside the one that runs.
    assert [job.id for job in tasks_of([array, task], 200)] == ["8_1", "8_2", "8_4"]
    (released,) = jobs_of(row(JobID="11", JobArrayID="8_5"))
    assert [job.id for job in tasks_of([array, task, released], 200)] == ["8_1", "8_4", "8_5"]


def test_a_row_of_another_slurm_is_refused_whole() -> None:
    with pytest.raises(LiveError, match=r"a row of 2 fields, expected \d+.*before 22.05"):
        list(jobs_of("1\x1fPENDING\x1e\n"))


def test_nodes_tell_their_gpus_states_and_what_is_in_use() -> None:
    line = NODE.format(
        name="n1",
        features="a,b",
        gres=TYPED,
        state="MIXED+DRAIN",
        used="gpu:v100_0:1(IDX:0),shard:v100_1:2(IDX:1)",
    )
    (node,) = nodes_of(line)
    assert (node.gpu_kinds, node.shards, node.shards_a_gpu, node.typed) == (("v100_0", "v100_1"), 8, 4, True)
    assert (node.model, node.up, node.lost, node.features) == ("v100", False, False, ("a", "b"))
    assert node.used[1] == Gres("shard", "v100_1", 2, (1,))
    states = {
        "IDLE": True,
        "ALLOCATED": True,
        "MIXED+PLANNED": True,
        "DOWN*": False,
        "IDLE*": False,
        "MAINT": False,
    }
    states["IDLE+RESERVED"] = False
    for state, up in states.items():
        (node,) = nodes_of(NODE.format(name="n", features="(null)", gres="gpu:2", used="gpu:0", state=state))
        assert (state, node.up, node.typed) == (state, up, False)


def test_the_captured_output_of_a_real_slurm_is_read(real_data: Callable[[str], Path]) -> None:
    lines = real_data("../slurm/samples/scontrol_show_node_d_running_shards.txt").read_text().split("\n\n")
    nodes = {node.name: node for text in lines for node in nodes_of(" ".join(text.split()))}
    assert sorted(nodes) == ["cpu01", "gpu01", "gpu02", "gpu03", "gpu04", "gpu05"]
    assert (nodes["gpu05"].gpu_kinds, nodes["gpu05"].typed) == (
        ("a100_0", "a100_1", "a100_2", "a100_3"),
        True,
    )
    assert (nodes["gpu01"].shards_a_gpu, nodes["gpu01"].typed, nodes["cpu01"].gpus) == (4, False, 0)
    assert [each.where for each in nodes["gpu01"].used if each.name == "shard"] == [(0,)]
    lines = real_data("../slurm/samples/scontrol_show_partition.txt").read_text().split("\n\n")
    parts = [each for text in lines for each in partitions_of(" ".join(text.split()))]
    assert (parts[0].name, parts[0].nodes) == ("ivy_v100_2", ("gpu01", "gpu02"))


def test_a_note_is_what_was_noted_and_another_comment_is_none() -> None:
    note = Note("gres:gpu:1", "", "gres:gpu:2", Share(500, 8192), True, 2, 300)
    assert str(note) == "berth:1;node=gres:gpu:1;job=;task=gres:gpu:2;share=500:8192:1;retries=2;needs=300"
    assert note_of(str(note)) == note
    assert note_of("berth is fine") is None
    assert note_of("berth:1;node=gres:gpu:1;share=many") is None


@pytest.mark.parametrize(
    ("fields", "gpus", "share"),
    [
        ({"tres_per_node": "gres:gpu:2", "NumNodes": "3"}, 6, Share(1000, 0)),
        ({"tres_per_job": "gres:gpu:4", "NumNodes": "2"}, 4, Share(1000, 0)),
        ({"tres_per_task": "gres:gpu:1", "NumTasks": "3"}, 3, Share(1000, 0)),
        ({"tres_per_node": "gres:shard:v100:2"}, 1, Share(500, 500)),
        ({"tres_per_node": "gres:gpu:1", "Comment": "torch gpu_mem=2G,gpu_pct=30"}, 1, Share(300, 2048)),
        ({"tres_per_node": "gres:gpu:1", "Comment": "torch gpu_mem=lots"}, 1, Share(1000, 0)),
        ({}, 0, Share(1000, 0)),
    ],
)
def test_a_request_becomes_gpus_and_a_share(fields: dict[str, object], gpus: int, share: Share) -> None:
    cards = Cards({"v100": 1000})
    cards.update(nodes_of(NODE.format(name="n", features="(null)", gres=TYPED, used="gpu:0", state="IDLE")))
    (job,) = jobs_of(row(**fields))
    ours = job_of(job, cards, read_rules(), priority=5, retries=1)
    assert (ours.gpus, ours.share, ours.labels, ours.priority) == (gpus, share, ("partition:gpu",), 5)


def test_a_request_that_berth_cannot_tell_is_slurms() -> None:
    for fields in (
        {"tres_per_node": "gres:gpu:a:1,gres:gpu:b:1"}, {"tres_per_job": "gres:gpu:3", "NumNodes": "2"},
        {"tres_per_node": "gres:nic:1"}, {"tres_per_node": "gres:shard:99"}, {"Partition": "a,b"},
    ):  # fmt: skip
        (job,) = jobs_of(row(**fields))
        with pytest.raises(LeftToSlurmError):
            job_of(job, Cards(), read_rules(), priority=0, retries=0)


def test_held_jobs_have_slurms_priority_by_age_share_and_partition() -> None:
    told = {
        "PriorityType": "priority/multifactor",
        "PriorityWeightAge": "1000",
        "PriorityMaxAge": "0-00:10:00",
    }
    told |= {"PriorityWeightFairShare": "500", "PriorityWeightPartition": "200"}
    priorities = Priorities.of(
        told,
        {("ai", "ann"): 0.5},
        [SlurmPartition("gpu", True, ()), SlurmPartition("fast", True, (), priority_factor=4)],
    )
    held, other, runs = jobs_of(
        row(PriorityLong="0", Account="ai", EligibleTime="N/A", Nice="7")
        + row(PriorityLong="0", Partition="fast")
        + row(PriorityLong="321")
    )
    now_ms = 1_300_000  # five minutes after they were submitted
    assert [priorities.of_job(job, now_ms) for job in (held, other, runs)] == [
        500 + 250 + 50 - 7,
        500 + 200,
        321,
    ]


def test_each_line_of_scontrol_answers_for_its_job() -> None:
    def run(words: object, told: str) -> str:
        lines = told.splitlines()
        answers = ["Invalid node name specified" if "nowhere" in line else "" for line in lines]
        return "".join(f"scontrol: {line}\n{answer}\n" for line, answer in zip(lines, answers, strict=True))

    told: list[str] = []

    def noted(words: object, text: str) -> str:
        told.extend(text.splitlines())
        return run(words, text)

    changes = [Change("1", node_list="nowhere", hold=False), Change("2_3", gres="gres:gpu:1", hold=False)]
    assert Controller(noted).apply(changes) == {"1": "Invalid node name specified"}
    assert told == [
        "update JobId=1 ReqNodeList=nowhere",
        "update JobId=2_3 TresPerNode=gres:gpu:1",
        "release 2_3",
    ]
    with pytest.raises(LiveError, match="holds a line break"):
        Controller(noted).apply([Change("1", admin_comment="a\nrelease 2")])


def test_a_scontrol_that_dies_on_the_way_is_told_for_the_rest() -> None:
    controller = Controller(lambda words, told: "scontrol: hold 1\n")
    assert controller.apply([Change("1", hold=True), Change("2", hold=True)]) == {
        "2": "scontrol ended before it reached this change"
    }


def test_a_job_s_name_makes_no_fields_and_no_rows_of_its_own() -> None:
    slurm = FakeSlurm()
    slurm.jobs = {
        "1": {"JobID": "1", "Name": "a\x1fb"},
        "2": {"JobID": "2", "Name": "x\x1e2\x1fPENDING", "Comment": "\x1e\n"},
    }
    assert [(job.id, job.name) for job in Controller(slurm).jobs()] == [
        ("1", "a\x1fb"),
        ("2", "x\x1e2\x1fPENDING"),
    ]


def test_a_job_that_slurm_has_forgotten_is_no_row() -> None:
    assert Controller(FakeSlurm()).jobs(["7"]) == ()
    gone = FakeSlurm()
    gone.gone = True
    with pytest.raises(LiveError, match="does not answer"):
        Controller(gone).jobs(["7"])


def test_the_prolog_believes_no_field_of_a_job_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of an array's tasks only its own."""
    squeue = tmp_path / "squeue"
    squeue.write_text(
        "#!/usr/bin/env python3\nimport sys\n"
        "marks = [each.partition(':')[2] for each in sys.argv[-1].split(',')]\n"
        "for row in (('6', 'N/A', 'berth:1;share=9:9:0', '', '1', 'wrap'),\n"
        "            ('7', 'gres:shard:2', 'berth:1;share=300:5000:0', 'x gpu_mem=1G', '9', 'Priority=1')):\n"
        "    sys.stdout.write(''.join(map(''.join, zip(row, marks))) + '\\n')\n"
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = node._job({"SLURM_JOB_ID": "7"})
    assert found == {
        "TresPerNode": "gres:shard:2", "AdminComment": "berth:1;share=300:5000:0", "Comment": "x gpu_mem=1G",
        "Priority": "9", "Name": "Priority=1",
    }  # fmt: skip
    assert node._job({"SLURM_JOB_ID": "6"})["TresPerNode"] == ""
    with pytest.raises(LiveError, match="squeue has no job 8"):
        node._job({"SLURM_JOB_ID": "8"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93_784), ("7-0", 604_800), ("03:04", 184), ("4:00", 240), ("30", 1800), ("300 sec", 300),
        ("01:00:00", 3600), ("UNLIMITED", None), ("NOT_SET", None), ("", None), ("1:2:3:4", None), ("x-1", None),
    ],
)  # fmt: skip
def test_a_time_as_slurm_prints_it(text: str, seconds: int | None) -> None:
    assert slurm_s(text) == seconds


def test_a_resource_may_have_any_name_and_type() -> None:
    assert gres_list("gpu:1g.5gb:7,bandwidth:lustre:no_consume:4G,NIC:2") == (
        Gres("gpu", "1g.5gb", 7), Gres("bandwidth", "lustre", 4 << 30), Gres("NIC", "", 2),
    )  # fmt: skip
    assert gres_list("gpu:a:b:1,gpu:2", odd=True) == (Gres("gpu", "", 2),)
    assert resources("gpu:v100:2(S:0-1),cpu=4") == Resources(gpu_model="v100", cpus=4, gpus_a_node=2)


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({"tres_per_node": "gres:shard:2"}, Share(500, 500)),
        ({"tres_per_node": "gres:gpu:1", "Comment": "torch gpu_pct=30"}, Share(300, 300)),
    ],
)
def test_a_part_of_a_gpu_of_any_type_has_that_part_of_its_memory(
    fields: dict[str, object], share: Share
) -> None:
    cards = Cards({"v100": 1000})
    cards.update(nodes_of(NODE.format(name="n", features="(null)", gres=TYPED, used="gpu:0", state="IDLE")))
    (job,) = jobs_of(row(**fields))
    assert job_of(job, cards, read_rules(), priority=5, retries=1).share == share


def test_one_row_that_cannot_be_read_hides_no_other_job() -> None:
    slurm = FakeSlurm(jobs={"1": {"JobID": "1", "SubmitTime": "yesterday"}, "2": {"JobID": "2"}})
    controller = Controller(slurm)
    assert [job.id for job in controller.jobs()] == ["2"]
    assert controller.unreadable == [
        "squeue printed of job 1 what cannot be read: invalid literal for int() with base 10: 'yesterday'"
    ]


def test_many_jobs_are_asked_for_in_several_queries() -> None:
    asked: list[int] = []

    def run(words: Sequence[str], told: str) -> str:
        asked.append(len(words[words.index("-j") + 1].split(",")))
        return ""

    assert Controller(run).jobs([str(at) for at in range(2500)]) == ()
    assert asked == [1000, 1000, 500]


def test_a_program_that_cannot_be_run_is_an_answer_that_is_missing() -> None:
    with pytest.raises(LiveError, match="cannot be run"):
        run_program(["true", "x" * 3_000_000])


def test_what_a_program_says_before_it_gives_up_is_one_line_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(
        "#!/bin/sh\necho 'squeue: error: DNS SRV lookup failed' >&2\n"
        "echo 'squeue: fatal: Could not establish a configuration source' >&2\nexit 1\n"
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    said = (
        "squeue: fatal: Could not establish a configuration source; run berth where `scontrol ping` answers"
    )
    with pytest.raises(LiveError) as refused:
        run_program(["squeue"])
    assert str(refused.value) == said
    with pytest.raises(LiveError, match="there is no /none here"):
        run_program(["/none"])
    with pytest.raises(LiveError, match="sleep has not answered for 0 s; see whether slurmctld lives"):
        run_program(["sleep", "60"], timeout_s=0.3)
