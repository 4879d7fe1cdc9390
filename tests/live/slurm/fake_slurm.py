"""A Slurm for tests without one: a queue and nodes as its commands print them, which holds, places and runs jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from berth.errors import LiveError
from berth.history.values.causes import END_OF_NOTE, note_in
from berth.live.slurm.jobs import COLUMNS, FIELD, ROW

NODE = (
    "NodeName={name} Arch=x86_64 CPUAlloc=0 CPUEfctv=16 CPUTot=16 AvailableFeatures={features}"
    " ActiveFeatures={features} Gres={gres} GresUsed={used} OS=Linux 6.1 #1 SMP RealMemory=64000 AllocMem=0"
    " State={state} ThreadsPerCore=1 Partitions=gpu BootTime=1"
)
TYPED = "gpu:v100_0:1,gpu:v100_1:1,shard:v100_0:4,shard:v100_1:4"


def row(**fields: object) -> str:
    """A row of `values` as `jobs_of` takes it where the query had no mark."""
    return FIELD.join(values(**fields)) + ROW + "\n"


def values(**fields: object) -> list[str]:
    """The fields of a row of `squeue -O`; what is not told is what Slurm prints for a small job that waits."""
    plain: dict[str, object] = {
        "JobID": "1", "HetJobID": "N/A", "State": "PENDING", "Reason": "None", "UserName": "ann",
        "Account": "(null)", "QOS": "(null)", "Partition": "gpu", "Name": "wrap", "PriorityLong": "100", "Nice": "0",
        "SubmitTime": "1000", "EligibleTime": "1000", "StartTime": "N/A", "EndTime": "N/A", "TimeLimit": "1:00:00",
        "NumNodes": "1", "NumTasks": "1", "tres-alloc": "cpu=1,mem=500M,node=1,billing=1", "Feature": "(null)",
        "Dependency": "(null)", "Reservation": "(null)", "OverSubscribe": "OK",
        "RestartCnt": "0",
    }  # fmt: skip
    found = {
        **plain,
        **{name.replace("_", "-") if name.startswith("tres") else name: v for name, v in fields.items()},
    }
    found.setdefault("JobArrayID", found["JobID"])
    return [str(found.get(name, "")) for name in COLUMNS]


@dataclass
class FakeSlurm:
    """Jobs by id as the fields of their rows; each release starts a job at once, if it has GPUs and a node."""

    jobs: dict[str, dict[str, object]] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=lambda: {"node1": "IDLE", "node2": "IDLE"})
    partition: str = "UP"
    """The state of the partition."""
    tiers: dict[str, int] = field(default_factory=dict)
    """The PriorityTier of partitions beside `gpu`."""
    used: dict[str, str] = field(default_factory=dict)
    """The GresUsed of nodes on which something runs."""
    leaked: set[tuple[str, str]] = field(default_factory=set)
    """Nodes and types of their GPUs of which a shard is counted that no job has, as Slurm 22.05 does at times."""
    comments: dict[str, str] = field(default_factory=dict)
    """Of nodes."""
    commands: list[str] = field(default_factory=list)
    """Every line that scontrol was given."""
    refuses: dict[str, str] = field(default_factory=dict)
    """What is printed below a line that begins so."""
    starts: bool = True
    """Whether what is released starts."""
    elsewhere: str = ""
    """The nodes on which jobs start whatever they were told."""
    begins: dict[str, str] = field(default_factory=dict)
    """Jobs that start just before a line that begins so."""
    changes: dict[str, str] = field(default_factory=dict)
    """What somebody makes of jobs' GPUs after they were updated."""
    gone: bool = False
    """Whether the controller is away."""
    gone_after: int | None = None
    """How many lines scontrol is told until the controller goes away."""
    now_s: int = 2000
    auth_info: str = "(null)"

    def held(self, job_id: str, request: str = "gres:gpu:1", **fields: object) -> None:
        """A job that the plugin has held."""
        note = f"berth:1;node={request};job=;task="
        self.jobs[job_id] = {
            "JobID": job_id, "admin_comment": note, "Reason": "JobHeldUser", "PriorityLong": "0", **fields
        }  # fmt: skip

    def held_components(self, *requests: str, first: int = 1, **fields: object) -> None:
        """A heterogeneous job that the plugin has held: the requests of its components; their numbers from `first`."""
        for at, request in enumerate(requests):
            name, number = f"{first}+{at}", str(first + at)
            self.held(number, request, JobArrayID=name, HetJobID=first, **fields)
            self.jobs[number]["admin_comment"] = f"{self.jobs[number]['admin_comment']};part={at}"

    def _components(self, job: dict[str, object]) -> list[dict[str, object]]:
        """The components of a heterogeneous job, or the job alone."""
        het = job.get("HetJobID")
        return [each for each in self.jobs.values() if each.get("HetJobID") == het] if het else [job]

    def end(self, job_id: str, state: str = "COMPLETED") -> None:
        """A job ends, and what was to start then does."""
        for job in self._components(self.jobs[job_id]):
            job |= {"State": state, "EndTime": str(self.now_s)}
        for job in self.jobs.values():
            released = job.get("State", "PENDING") == "PENDING" and job.get("PriorityLong") != "0"
            if released and job.get("Dependency"):
                self._begin(job)

    def __call__(self, words: Sequence[str], lines: str) -> str:
        if self.gone:
            raise LiveError("slurmctld does not answer")
        if words[0] == "squeue" and "Exclusive:" in words[-1]:
            raise LiveError("squeue -h -a -t: squeue: error: Invalid job format specification: Exclusive")
        if words[0] == "squeue":
            ended = "all" in words
            only = words[words.index("-j") + 1].split(",") if "-j" in words else list(self.jobs)
            live = ("PENDING", "RUNNING", "COMPLETING")
            if "-j" in words and len(only) == 1 and only[0] not in self.jobs:
                raise LiveError("squeue -h -a -t: slurm_load_jobs error: Invalid job id specified")
            marks = [each.partition(":")[2] for each in words[-1].split(",")]
            return "".join(
                "".join(value + mark for value, mark in zip(values(**job), marks, strict=True)) + "\n"
                for job_id, job in self.jobs.items()
                if {job_id, str(job.get("JobArrayID"))} & {*only} and (ended or job.get("State", "PENDING") in live)
            )  # fmt: skip
        if words[-1] == "node":
            return "\n".join(
                NODE.format(
                    name=name,
                    features="big" if name == "node2" else "(null)",
                    gres=TYPED,
                    used=",".join(
                        [
                            self.used.get(name, "gpu:0"),
                            *(f"shard:{kind}:1(1/4)" for node, kind in sorted(self.leaked) if node == name),
                        ]
                    ),
                    state=state,
                ).replace("Partitions=gpu", f"Partitions={','.join(['gpu', *self.tiers])}")
                + (f" Comment={self.comments[name]} Extra=x" if self.comments.get(name) else "")
                for name, state in self.nodes.items()
            )
        if words[1:2] == ["update"]:
            for name in words[2].removeprefix("NodeName=").split(","):
                self.comments[name] = words[3].removeprefix("Comment=")
            return ""
        if words[-1] == "partition":
            nodes = ",".join(self.nodes)
            state = f"Nodes={nodes} PriorityJobFactor=1 State={self.partition} TotalCPUs=32"
            return f"PartitionName=gpu Default=YES {state} PriorityTier=1\n" + "".join(
                f"PartitionName={name} {state} PriorityTier={tier}\n" for name, tier in self.tiers.items()
            )
        if words[-1] == "config":
            return (
                "Configuration data as of 2026-01-01T00:00:00\n"
                f"AuthInfo                = {self.auth_info}\nPriorityType            = priority/basic\n"
            )
        if words[0] == "sshare":
            return ""
        answers = []
        for line in lines.splitlines():
            if self.gone_after is not None:
                self.gone_after -= 1
                if self.gone_after < 0:
                    raise LiveError(
                        "scontrol has not answered for 60 s; see whether slurmctld lives: scontrol ping"
                    )
            answers.append(self._do(line))
        return "".join(answers)

    def _do(self, line: str) -> str:
        self.commands.append(line)
        answer = f"scontrol: {line}\n"
        what, job_id = line.split()[0], line.split()[1].removeprefix("JobId=")
        if job_id in self.begins and line.startswith(self.begins[job_id]):
            self._start(self.jobs[job_id], "node1")
        for begins, why in self.refuses.items():
            if line.startswith(begins):
                return f"{answer}{why}\n"
        job = self.jobs.get(job_id)
        if job is None:
            return f"{answer}Invalid job id specified for job {job_id}\n"
        state = job.get("State", "PENDING")
        first = job.get("HetJobID") is None or str(job["HetJobID"]) == job_id
        if what == "requeuehold" and not first:
            return f"{answer}Job not heterogeneous job leader for job {job_id}\n"
        if job.get("HetJobID") and first and "ReqNodeList=" in line:
            return f"{answer}scontrol: error: Job resizing not supported for job arrays\n"
        asked = dict(pair.partition("=")[::2] for pair in line.split()[2:])
        if what == "hold" and state == "RUNNING":
            job |= {"Reason": "JobHeldAdmin"}  # it would be held if it were queued again
            return answer
        if what in ("hold", "release") and state != "PENDING":
            return f"{answer}Job is no longer pending execution for job {job_id}\n"
        if what == "update" and (
            state not in ("PENDING", "RUNNING") or (state == "RUNNING" and set(asked) != {"AdminComment"})
        ):
            why = (
                "Job is no longer pending execution"
                if state == "RUNNING"
                else "Job/step already completing or completed"
            )
            return f"{answer}{why} for job {job_id}\n"
        if what == "hold":
            job |= {"Reason": "JobHeldAdmin", "PriorityLong": "0"}
        elif what == "requeuehold":
            if job.get("no_requeue"):
                return f"{answer}Requested operation is presently disabled for job {job_id}\n"
            for each in self._components(job):
                each |= {
                    "State": "PENDING",
                    "Reason": "job_requeued_in_held_state",
                    "PriorityLong": "0",
                    "EndTime": "N/A",
                    "RestartCnt": str(int(str(each.get("RestartCnt", "0"))) + 1),
                }
        elif what == "update":
            names = {
                "ReqNodeList": "ReqNodes",
                "ExcNodeList": "excluded",
                "TresPerNode": "tres_per_node",
                "Dependency": "Dependency",
            }
            if begins := asked.get("StartTime"):
                job["StartTime"] = str(self.now_s + int(begins.removeprefix("now+")))
            given = str(job.get("given") or job.get("tres_per_node", ""))
            for name, value in asked.items():
                if name == "AdminComment":  # as the plugin does
                    others = str(job["admin_comment"]).replace(note_in(str(job["admin_comment"])), "").strip()
                    job["admin_comment"] = f"{others} {value.removeprefix(END_OF_NOTE)}".strip()
                elif name == "ExcNodeList" and first:
                    for each in self._components(job):
                        each["excluded"] = value
                elif name in names:
                    job[names[name]] = value
            wanted = asked.get("TresPerNode", "")
            if given and wanted and given.rpartition(":")[0] != wanted.rpartition(":")[0]:
                job["tres_per_node"] = f"{given},{wanted}"  # what it holds then, whatever squeue says
            job["given"] = job["tres_per_node"] if wanted else given
            job["tres_per_node"] = self.changes.get(job_id, job.get("tres_per_node", ""))
        elif what == "release":
            for each in self._components(job) if first else [job]:
                each |= {"Reason": "None", "PriorityLong": "100"}
            if job.get("HetJobID"):
                self._begin_components(self._components(job))
            else:
                self._begin(job)
        return answer

    def _begin(self, job: dict[str, object]) -> None:
        """Start a released job, if nothing that it waits for has still to end."""
        _, _, before = str(job.get("Dependency", "")).partition(":")
        waits = any(
            self.jobs[each].get("State", "PENDING") in ("PENDING", "RUNNING", "COMPLETING")
            for each in before.split(":")
            if each in self.jobs
        )
        node, asked = str(job.get("ReqNodes", "")), str(job.get("tres_per_node", ""))
        if any(each == node and asked.endswith((f"gpu:{kind}:1", f"{kind}:4")) for each, kind in self.leaked):
            job["Reason"] = "Resources"
        elif self.starts and node and not waits:
            self._start(job, self.elsewhere or node)

    def _begin_components(self, jobs: list[dict[str, object]]) -> None:
        """Start the components of a heterogeneous job if each can have a node that is no other's."""
        nodes = [
            str(job.get("ReqNodes") or "")
            or ",".join(name for name in self.nodes if name not in str(job.get("excluded", "")).split(","))
            for job in jobs
        ]
        apart = len({name for names in nodes for name in names.split(",")}) == len(",".join(nodes).split(","))
        if self.starts and apart and all(job["PriorityLong"] != "0" for job in jobs):
            for job, names in zip(jobs, nodes, strict=True):
                assert not set(names.split(",")) & set(str(job.get("excluded", "")).split(","))
                self._start(job, names)

    def _start(self, job: dict[str, object], where: str) -> None:
        job |= {"State": "RUNNING", "Reason": "None", "NodeList": where, "StartTime": str(self.now_s)}
