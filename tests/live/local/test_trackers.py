"""What W&B and MLflow are told of a job by its environment."""

from __future__ import annotations

import json
import os

from berth.live.local.runner import tracker_variables
from tests.live.local.world import World

HOST = os.uname().nodename
JOB = {"job_id": "12_3", "number": "12", "name": "sweep", "user": "ann", "attempt": 2}


def test_a_run_has_the_jobs_ids_and_a_link_to_its_page() -> None:
    found = tracker_variables({"BERTH_CONSOLE": "https://gpu1:8080/"}, **JOB)
    context = json.loads(found.pop("MLFLOW_RUN_CONTEXT"))
    page = "https://gpu1:8080/job/12_3"
    assert found == {
        "WANDB_RUN_GROUP": f"berth-{HOST}-12",
        "WANDB_NOTES": f"berth job 12_3 on {HOST}, attempt 2 {page}",
        "WANDB_TAGS": "berth,berth-job-12_3",
    }
    assert context == {
        "berth.job": "12_3", "berth.name": "sweep", "berth.user": "ann", "berth.host": HOST, "berth.attempt": "2",
        "berth.page": page,
    }  # fmt: skip


def test_what_the_user_has_set_stays() -> None:
    own = {"WANDB_RUN_GROUP": "mine", "WANDB_NOTES": "first try", "WANDB_TAGS": "paper,berth"}
    own["MLFLOW_RUN_CONTEXT"] = json.dumps({"team": "vision"})
    found = tracker_variables(own, **JOB)
    assert (found["WANDB_RUN_GROUP"], found["WANDB_NOTES"]) == ("mine", "first try")
    assert found["WANDB_TAGS"] == "paper,berth,berth-job-12_3"
    context = json.loads(found["MLFLOW_RUN_CONTEXT"])
    assert (context["team"], context["berth.job"]) == ("vision", "12_3")
    assert "berth.page" not in context


def test_tags_that_are_no_json_are_replaced() -> None:
    for broken in ("{", "[1]"):
        found = tracker_variables({"MLFLOW_RUN_CONTEXT": broken}, **JOB)
        assert json.loads(found["MLFLOW_RUN_CONTEXT"])["berth.job"] == "12_3"


def test_a_job_of_the_queue_finds_them(shared: World) -> None:
    job = shared.submit('echo "$WANDB_TAGS $WANDB_RUN_GROUP"', gpus=0, name="tracked")
    shared.wait(job)
    assert shared.output(job) == f"berth,berth-job-{job} berth-{HOST}-{job}\n"
