"""Advice: it follows from the history, holds what was simulated against what was recorded, and changes nothing."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from typer.testing import CliRunner

from berth.advice import Proposal, advise, workload_of
from berth.advice.advise import better
from berth.advice.commands import commands_of
from berth.advice.replay import Outcome, mean_use, replay
from berth.cli.app import app
from berth.errors import SettingError
from berth.history.store.capacity import Capacity
from berth.interference import Outlook, Tenant
from berth.model import Job, Record, RecordState, Share
from berth.policies import make_policy
from berth.policies.schemes.limit_settings import Limit
from berth.policies.schemes.limits import Limits
from tests.history.histories import NODES, even, history_of, hog


def test_the_cluster_is_what_the_history_shows_and_the_replay_is_what_was_recorded(tmp_path: Path) -> None:
    history = history_of(hog(), tmp_path)
    workload = workload_of(history.records())
    assert [(node.name, node.gpus) for node in workload.nodes] == [(node.name, node.gpus) for node in NODES]
    assert len(workload.measured) == len(workload.jobs) == len(hog())
    advice = advise(workload, "fifo+best-fit")
    assert (advice.now.wait_median_s, advice.now.wait_p90_s) == (
        advice.recorded_median_s,
        advice.recorded_p90_s,
    )


def test_a_history_of_one_hog_advises_a_limit_and_an_even_one_does_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    unfair = advise(workload_of(history_of(hog(), tmp_path / "a").records()))
    fair = advise(workload_of(history_of(even(), tmp_path / "b").records()))
    chosen = unfair.limit
    assert chosen is not None
    assert chosen.proposal.limit is not None
    assert chosen.proposal.limit.scope == "user"
    assert chosen.less >= 5
    assert chosen.outcome.typical_user_wait_s < 0.9 * unfair.now.typical_user_wait_s
    assert chosen.outcome.utilisation_pct >= unfair.now.utilisation_pct - 1
    assert chosen.outcome.never == 0
    assert fair.limit is None


def test_another_hog_gets_another_limit(tmp_path: Path) -> None:
    advised = []
    for name, many, gpus in (("small", 40, 1), ("large", 20, 2)):
        (tmp_path / name).mkdir()
        jobs = [
            replace(job, gpus=gpus) if job.user == "hog" else job
            for job in hog()
            if job.user != "hog" or int(job.id.split("-")[1]) < many
        ]
        advice = advise(workload_of(history_of(jobs, tmp_path / name).records()))
        assert advice.limit is not None
        advised.append(advice.limit.proposal.words)
    assert advised[0] != advised[1]


def test_what_counts_as_a_user_affected_is_told_and_held_to(tmp_path: Path) -> None:
    history = history_of(hog(), tmp_path)
    words = ["advise", "--history", str(history.folder), "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    answer = json.loads(done.stdout)
    least = answer["users_counted_from"]
    assert least == {"change_s": 60.0, "change_share": 0.01}
    advice = advise(workload_of(history.records()))
    now = advice.now.user_wait_s
    for told in answer["proposals"]:
        (each,) = (each for each in advice.tried if each.proposal.words == told["proposal"])
        changes = {user: each.outcome.user_wait_s[user] - wait for user, wait in now.items()}
        counted = [c for u, c in changes.items() if abs(c) > max(60.0, 0.01 * now[u])]
        assert (told["users_waiting_less"], told["users_waiting_more"]) == (
            sum(c < 0 for c in counted),
            sum(c > 0 for c in counted),
        )


def test_every_proposal_says_what_it_does_to_waits_use_and_users(tmp_path: Path) -> None:
    advice = advise(workload_of(history_of(hog(), tmp_path).records()))
    kinds = {
        amount
        for each in advice.tried
        for amount in ("submitted", "running", "gpus")
        if getattr(each.proposal.limit, amount)
    }
    assert kinds == {"running", "gpus"}
    for each in advice.tried:
        waits = each.outcome.user_wait_s
        changes = [waits[user] - wait for user, wait in advice.now.user_wait_s.items()]
        least, _, middle, _, most = each.change_s
        assert (least, middle, most) == pytest.approx((min(changes), median(changes), max(changes)))
        assert each.less + each.more <= advice.users == 8
        name = each.proposal.policy("easy+fifo+best-fit")
        assert isinstance(make_policy(name), Limits)
        assert replay(workload_of_again(tmp_path), name) == each.outcome


def workload_of_again(folder: Path):  # type: ignore[no-untyped-def]
    from berth.history.store.folder import open_history

    return workload_of(open_history(folder / "history").records())


def test_the_last_jobs_find_those_that_ran_before_them(tmp_path: Path) -> None:
    records = list(history_of(hog(), tmp_path).records())
    whole, part = workload_of(records), workload_of(records, most_jobs=30)
    assert len(part.measured) == 30
    begun = [job for job in part.jobs if job.id not in part.measured]
    assert begun
    assert {job.submit_ms for job in begun} == {0}
    work = {job.id: job.work_ms for job in whole.jobs}
    assert all(job.work_ms <= work[job.id] for job in begun)


def test_jobs_measured_to_need_half_a_gpu_are_let_share_and_others_not(tmp_path: Path) -> None:
    jobs = [replace(job, application="python") for job in hog()]
    history = history_of(jobs, tmp_path, gpu_use_mean=0.2, gpu_mem_mean=0.3)
    light = advise(workload_of(history.records()))
    assert {
        (each.proposal.application, each.proposal.sharers) for each in light.tried if not each.proposal.limit
    } == {("python", 2)}
    assert light.sharing is not None
    assert light.sharing.outcome.wait_p90_s < light.now.wait_p90_s
    assert light.sharing.outcome.slowed_pct == 0.0
    (tmp_path / "b").mkdir()
    busy = advise(workload_of(history_of(jobs, tmp_path / "b", gpu_use_mean=0.9, gpu_mem_mean=0.3).records()))
    assert not [each for each in busy.tried if not each.proposal.limit]
    # Asked for all the same, two busy jobs on one GPU slow each other down.
    forced = advise(
        workload_of(history_of(jobs, tmp_path / "b", gpu_use_mean=0.9, gpu_mem_mean=0.3).records()),
        share={"python": 2},
    )
    assert all(each.outcome.slowed_pct > 10 for each in forced.tried if not each.proposal.limit)
    with pytest.raises(SettingError, match="no job of 'caffe'"):
        advise(workload_of(history.records()), share={"caffe": 2})


def test_neighbours_run_at_full_speed_until_their_use_adds_up_to_more_than_a_gpu() -> None:
    tenants = [Tenant(Job(name, 0, 1), Share(500), 0) for name in "ab"]
    assert mean_use({"a": (0.4, None), "b": (0.5, None)})(tenants, None) == Outlook((1000, 1000))
    assert mean_use({"a": (0.8, None), "b": (0.8, None)})(tenants, None) == Outlook((625, 625))
    assert mean_use({})(tenants, None) == Outlook((1000, 1000))


def test_commands_are_those_of_sacctmgr_with_names_as_data() -> None:
    each = Proposal(Limit("user", gpus=8, running=4, nodes=2))
    (line,) = commands_of(each, ["normal"], ["bob", "odd; rm -rf /"])
    assert shlex.split(line) == [
        *("sacctmgr", "-i", "modify", "user", "where", "name=bob,odd; rm -rf /", "set", "MaxJobs=4"),
        "GrpTRES=gres/gpu=8,node=2",
    ]
    assert commands_of(Proposal(Limit("virtual-cluster", gpus=8)), ["b", "a"]) == (
        "sacctmgr -i modify qos a set GrpTRES=gres/gpu=8",
        "sacctmgr -i modify qos b set GrpTRES=gres/gpu=8",
    )
    assert all(line.startswith("#") for line in commands_of(Proposal(application="x", sharers=2), ["a"]))


def test_a_history_without_gpu_jobs_and_one_without_nodes_are_refused() -> None:
    record = Record(
        *("7", 1, "ann", "", "", 0, 0, 5, 105, RecordState.COMPLETED, 1, Share(), 0, 0, (), "V100", None)
    )
    with pytest.raises(SettingError, match="nothing to replay"):
        workload_of([replace(record, gpus=0)])
    with pytest.raises(SettingError, match="--cluster"):
        workload_of([record])
    assert workload_of([record], NODES).gpus == 8
    with pytest.raises(SettingError, match=r"none of the 1 attempts.*no node has more than 4 GPUs"):
        workload_of([replace(record, gpus=8, node_count=1)], NODES)


def test_the_table_names_the_best_and_its_commands(tmp_path: Path) -> None:
    history = history_of(hog(), tmp_path)
    done = CliRunner().invoke(app, ["advise", "--history", str(history.folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "as things are" in done.stdout
    assert "Advised: at most" in done.stdout
    legend = " ".join(done.stdout.split())
    assert "waited less, and more (−/+), by over 60 s and 1 % of their mean wait." in legend
    assert "sacctmgr -i modify user where name=hog,u0,u1,u2,u3,u4,u5,u6 set" in done.stdout


def test_the_nodes_may_be_a_list_with_columns_of_its_own(tmp_path: Path) -> None:
    history, nodes = history_of(hog(), tmp_path), tmp_path / "nodes.csv"
    nodes.write_text("host,cards\n" + "".join(f"{node.name},{node.gpus}\n" for node in NODES))
    words = ["advise", "--history", str(history.folder), "--jobs", "10", "--json"]
    named = [*words, "--cluster", str(nodes), "--map-nodes", "name=host,gpus=cards"]
    done = CliRunner().invoke(app, named, catch_exceptions=False)
    assert json.loads(done.stdout)["gpus"] == sum(node.gpus for node in NODES)
    with pytest.raises(SettingError, match="name the list with --cluster FILE"):
        CliRunner().invoke(app, [*words, "--map-nodes", "name=host"], catch_exceptions=False)


def outcome(waits: dict[str, float], median_s: float = 0.0) -> Outcome:
    return Outcome(median_s, median_s, median_s, 50.0, 0, waits, 0.0, 0.0, {})


def test_what_nobody_notices_is_not_worth_having() -> None:
    assert not better(outcome({"ann": 13.0, "bob": 13.0}), outcome({"ann": 11.0, "bob": 11.0}))
    assert better(outcome({"ann": 1300.0, "bob": 13.0}), outcome({"ann": 1100.0, "bob": 11.0}))


def test_a_replay_far_from_the_record_says_so_first(tmp_path: Path) -> None:
    history = history_of(hog(), tmp_path)
    near = advise(workload_of(history.records()), "fifo+best-fit")
    assert not near.far
    assert replace(near, recorded_median_s=3 * near.recorded_median_s).far
    assert not replace(near, now=replace(near.now, wait_median_s=0.0), recorded_median_s=50.0).far
    words = ["advise", "--history", str(history.folder), "--cluster", "40x4:V100"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.stdout.startswith("The replay of what happened is far from the record")
    told = json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)
    assert told["far_from_the_record"] is True
    assert told["missing_in_the_replay"]


def test_a_job_that_ran_0_s_has_started(tmp_path: Path) -> None:
    records = list(history_of(hog(1), tmp_path).records())
    quick = replace(records[5], end_ms=records[5].start_ms or 0)
    workload = workload_of([*records[:5], quick, *records[6:]])
    assert (workload.never_started, len(workload.measured)) == (0, len(records))
    assert replay(workload, "fifo+best-fit").never == 0


def test_the_cluster_has_no_more_gpus_than_its_accounting_says(tmp_path: Path) -> None:
    records = list(history_of(hog(1), tmp_path).records())
    # Five GPUs for one short job on a node of four: its second node's were counted here.
    odd = replace(records[-1], gpus=4, end_ms=(records[-1].start_ms or 0) + 1)
    history = [
        *records[:-1],
        replace(odd, nodes=("n0",), job_id="odd"),
        replace(odd, nodes=("gone",), job_id="odd2"),
    ]
    assert workload_of(history).gpus > 8
    told = {"made": (Capacity(0, None, ("n0", "n1"), 8, 0, 0),)}
    workload = workload_of(history, capacities=told)
    assert [(node.name, node.gpus) for node in workload.nodes] == [("n0", 4), ("n1", 4)]
    smaller = {"made": (Capacity(0, 5, ("n0", "n1"), 8, 0, 0), Capacity(5, None, ("n0", "n1"), 7, 0, 0))}
    assert workload_of(history, capacities=smaller).gpus == 7


@pytest.mark.parametrize(("cpus", "mem_mib"), [(4, 0), (0, 1000), (4, 1000)])
def test_a_job_waits_for_cpu_and_memory_where_the_accounting_says_how_much_there_is(
    tmp_path: Path, cpus: int, mem_mib: int
) -> None:
    hour = 3_600_000
    one = replace(
        next(iter(history_of(hog(1), tmp_path).records())), nodes=("n0",), queued_ms=0, eligible_ms=0,
        start_ms=0, gpus=1, cpu_milli=4000, mem_mib=1000, end_ms=10 * hour, job_id="first",
    )  # fmt: skip
    history = [
        one,
        replace(one, job_id="wide", gpus=3, cpu_milli=0, mem_mib=0, end_ms=hour),
        replace(one, job_id="second", queued_ms=1, eligible_ms=1, start_ms=10 * hour, end_ms=11 * hour),
    ]
    bare = workload_of(history)
    assert [(node.gpus, node.cpu_milli, node.mem_mib) for node in bare.nodes] == [(4, None, None)]
    assert replay(bare, "fifo+best-fit").wait_p90_s < 2 * 3600
    told = {"made": (Capacity(0, None, ("n0",), 4, cpus, mem_mib),)}
    workload = workload_of(history, capacities=told)
    assert [(node.gpus, node.cpu_milli, node.mem_mib) for node in workload.nodes] == [
        (4, cpus * 1000 or None, mem_mib or None)
    ]
    assert replay(workload, "fifo+best-fit").wait_mean_s == pytest.approx(10 * 3600 / 3, abs=1)


def test_jobs_without_a_gpu_take_the_cpus_of_their_nodes_and_are_not_judged(tmp_path: Path) -> None:
    hour = 3_600_000
    one = replace(
        next(iter(history_of(hog(1), tmp_path).records())), nodes=("n0",), queued_ms=1, eligible_ms=1,
        start_ms=10 * hour, gpus=4, cpu_milli=4000, mem_mib=0, end_ms=11 * hour, job_id="waits",
    )  # fmt: skip
    first = replace(one, job_id="first", cpu_milli=1000, queued_ms=0, eligible_ms=0, start_ms=0, end_ms=hour)
    bare = replace(first, job_id="bare", user="cpu", gpus=0, cpu_milli=3000, end_ms=10 * hour)
    elsewhere = replace(bare, job_id="elsewhere", nodes=("c0",))
    history = [first, one, bare, elsewhere]
    alone = workload_of(history)
    assert (alone.replayed_cpu_jobs, alone.without_gpu) == (0, 2)
    assert replay(alone, "fifo+best-fit").wait_p90_s < hour
    told = {"made": (Capacity(0, None, ("n0",), 4, 4, 0),)}
    workload = workload_of(history, capacities=told)
    assert (workload.replayed_cpu_jobs, workload.without_gpu, len(workload.jobs), len(workload.measured)) == (
        1,
        1,
        3,
        2,
    )
    outcome = replay(workload, "fifo+best-fit")
    assert outcome.wait_mean_s == pytest.approx(10 * 3600 / 2, abs=1)
    assert set(outcome.user_wait_s) == {one.user}
    assert outcome.others_wait_s == 0.0
    # A limit that lets the job start at once, and delays the one without a GPU, is not worth having.
    then = replace(outcome, user_wait_s={one.user: 0.0}, others_wait_s=120.0)
    assert better(outcome, replace(then, others_wait_s=59.0))
    assert not better(outcome, then)
    assert workload_of(history, capacities=told, most_jobs=2).replayed_cpu_jobs == 1
    many = [*history, replace(bare, job_id="b2"), replace(bare, job_id="b3")]
    assert workload_of(many, capacities=told, most_jobs=2).replayed_cpu_jobs == 0


def test_a_node_has_its_even_part_of_cpus_and_no_less_than_was_held_on_it(tmp_path: Path) -> None:
    records = [replace(each, cpu_milli=3000, mem_mib=10) for each in history_of(hog(1), tmp_path).records()]
    told = {"made": (Capacity(0, None, ("n0", "n1"), 8, 16, 100),)}
    nodes = workload_of(records, capacities=told).nodes
    assert [(node.cpu_milli, node.mem_mib) for node in nodes] == [(12_000, 50), (12_000, 50)]
