"""What trackers of experiments are told of a job, through its environment: W&B and MLflow.

What the user has set stays: tags are added to theirs, group and notes are left alone. With `BERTH_CONSOLE`, the address
of a console, notes and tags link to the job's page.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping


def tracker_variables(
    base: Mapping[str, str], *, job_id: str, number: str, name: str, user: str, attempt: int
) -> dict[str, str]:
    """The variables for a job whose environment is `base`; `number` is shared by the tasks of an array."""
    host = os.uname().nodename
    console = base.get("BERTH_CONSOLE", "").rstrip("/")
    page = f"{console}/job/{job_id}" if console else ""
    notes = " ".join(filter(None, [f"berth job {job_id} on {host}, attempt {attempt}", page]))
    tags = [tag for tag in (*base.get("WANDB_TAGS", "").split(","), "berth", f"berth-job-{job_id}") if tag]
    context = {"berth.job": job_id, "berth.name": name, "berth.user": user, "berth.host": host}
    context |= {"berth.attempt": str(attempt), **({"berth.page": page} if page else {})}
    return {
        "WANDB_RUN_GROUP": base.get("WANDB_RUN_GROUP") or f"berth-{host}-{number}",
        "WANDB_NOTES": base.get("WANDB_NOTES") or notes,
        "WANDB_TAGS": ",".join(dict.fromkeys(tags)),
        "MLFLOW_RUN_CONTEXT": json.dumps({**context, **_object(base.get("MLFLOW_RUN_CONTEXT", ""))}),
    }


def _object(text: str) -> dict[str, str]:
    """The tags that the user has set; none if that is no object of JSON, which MLflow could not read either."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
