"""The one table of commands; help lists them in this order, and a command's module is imported when it is used."""

from __future__ import annotations

from typing import Final, NamedTuple


class Entry(NamedTuple):
    """One command, or one group of commands."""

    target: str
    """MODULE:NAME of the command's function, or of the group's Typer; PAPERS if berth-papers declares it."""
    summary: str
    """The line in the list of all commands; a test compares it with the command's own help."""
    reads_history: bool = False
    """Reads the history of this machine's queue if there is no other history here."""
    command_follows: bool = False
    """The first operand begins another command, whose options are its own."""


PAPERS: Final = "berth-papers"
"""The package whose commands are entry points of the group `berth.commands`."""

COMMANDS: Final = {
    "simulate": Entry("berth.cli.compare:simulate", "Replay a trace through one policy."),
    "compare": Entry(
        "berth.cli.compare:compare",
        "Replay a trace through several policies and put the results side by side.",
        reads_history=True,
    ),
    "sweep": Entry(
        "berth.cli.sweep:sweep",
        "Simulate every policy and seed of a plan at every load, size and condition, as one table.",
    ),
    "size": Entry(
        "berth.cli.size:size",
        "Find the smallest cluster that keeps the wait: how many GPUs could be returned, and with which policy.",
        reads_history=True,
    ),
    "backtest": Entry(
        "berth.cli.backtest:backtest",
        "Predict each week's waits from the weeks before, and say how far that was from what happened.",
        reads_history=True,
    ),
    "policies": Entry("berth.cli.policies:policies", "List orders, placements and policies, one per line."),
    "experiment": Entry(PAPERS, "Run an experiment of the literature."),
    "trace": Entry("berth.cli.trace:app", "Describe, convert and fetch traces of GPU jobs."),
    "import": Entry(
        "berth.cli.importing:app",
        "Import jobs into the history. Every import may be repeated: nothing is counted twice.",
    ),
    "history": Entry("berth.cli.history:app", "Look at what was imported, and take an import back."),
    "stats": Entry(
        "berth.cli.stats:stats",
        "Show usage, waste, waits and their causes, and lost work.",
        reads_history=True,
    ),
    "job": Entry(
        "berth.cli.job:job",
        "Show all about one job: attempts, waits and why, use, cost, and what would have been enough.",
        reads_history=True,
    ),
    "report": Entry(
        "berth.cli.stats:report",
        "Write the history, or a period of it, as one self-contained page.",
        reads_history=True,
    ),
    "cost": Entry(
        "berth.cli.cost:cost",
        "Show what groups of jobs cost: GPU-hours by model, CPU-hours, and energy and CO₂ where measured.",
        reads_history=True,
    ),
    "digest": Entry(
        "berth.cli.digest:digest",
        "Summarise a period: GPUs that could be returned, changes, idle GPUs by user, failures, and causes of waits.",
        reads_history=True,
    ),
    "plot": Entry("berth.cli.stats:plot", "Draw one picture of the history.", reads_history=True),
    "applications": Entry(
        "berth.cli.stats:applications",
        "List the job names that match no rule, by GPU-hours: write a rule for the first one next.",
        reads_history=True,
    ),
    "profile": Entry(
        "berth.cli.profile:app",
        "Applications' use of a GPU over their runs, kept with the history.",
        reads_history=True,
    ),
    "interference": Entry(
        PAPERS,
        "How jobs on one GPU slow each other: judge a model by measurements, or fit one.",
    ),
    "predict-wait": Entry(
        "berth.cli.waiting:app",
        "Predict how long a job will wait, from the history.",
        reads_history=True,
    ),
    "advise": Entry(
        "berth.cli.advice:advise",
        "Propose limits on jobs, GPUs and nodes, and jobs to share a GPU, by replaying the history under each.",
        reads_history=True,
    ),
    "sample": Entry(
        "berth.cli.sampling:sample",
        "Measure each job's use of this node's GPUs through NVML, until stopped.",
    ),
    "train": Entry(
        "berth.cli.train:train",
        "Learn which waiting jobs to start together on a GPU (extra `learn`).",
    ),
    "doctor": Entry(
        "berth.cli.doctor:doctor",
        "Show what is installed on this machine, and what is missing for which command.",
    ),
    "run": Entry(
        "berth.cli.partition:run",
        "Run a command and its children under limits: berth run --mem 4G -- python train.py",
        command_follows=True,
    ),
    "partition": Entry(
        "berth.cli.partition:app",
        "Named partitions of this machine's GPUs, which processes and containers join.",
    ),
    "k8s": Entry(
        "berth.cli.kubernetes:app",
        "Steer pods on a Kubernetes cluster, say why they wait, and install what that needs.",
    ),
    "slurm": Entry(
        "berth.cli.slurm:app",
        "Work with Slurm: advise on its queue, or place the jobs of partitions that were given to berth.",
    ),
    "console": Entry(
        "berth.cli.console:app",
        "Show the live cluster, its history and 'what if' in a browser.",
    ),
    "top": Entry(
        "berth.cli.local:top",
        "Show this machine's queue live: a tile per GPU, the jobs below, keys to cancel, hold and show.",
    ),
    "submit": Entry(
        "berth.cli.local:submit",
        "Queue a job on this machine: a command, a script with #BERTH lines, or - for one job per line of standard"
        " input.",
        command_follows=True,
    ),
    "jupyter": Entry(
        "berth.cli.local:jupyter", "Run JupyterLab as a job of this machine, and print its address."
    ),
    "mcp": Entry("berth.cli.mcp:app", "Serve this machine's queue to agents, by the Model Context Protocol."),
    "queue": Entry("berth.cli.local:queue", "List waiting and running jobs."),
    "logs": Entry("berth.cli.local:logs", "Print a job's output."),
    "wait": Entry(
        "berth.cli.local:wait",
        "Wait until jobs have ended; the exit status is the first that is not 0.",
    ),
    "cancel": Entry(
        "berth.cli.local:cancel",
        "Cancel jobs: a running one gets SIGTERM, then SIGKILL after its grace period.",
    ),
    "hold": Entry("berth.cli.local:hold", "Keep waiting jobs from starting."),
    "release": Entry("berth.cli.local:release", "Let held jobs start again."),
    "suspend": Entry(
        "berth.cli.local:suspend",
        "Move running jobs off their GPUs into the machine's memory, with all that they have done.",
    ),
    "resume": Entry("berth.cli.local:resume", "Let suspended jobs run on as soon as their GPUs have room."),
    "edit": Entry(
        "berth.cli.local:edit",
        "Change a waiting job, or the time limit, grace period, retries, name or comment of a running one.",
    ),
    "requeue": Entry(
        "berth.cli.local:requeue",
        "Queue a running or ended job again; a running one is stopped first.",
    ),
    "why": Entry(
        "berth.cli.local:why",
        "Explain why a job waits: policy, candidates, obstacles, since when.",
    ),
    "policy": Entry("berth.cli.local:policy", "Show or change the policy; no job stops."),
    "drain": Entry(
        "berth.cli.local:drain",
        "Start no job on these GPUs; running jobs continue. Without a GPU, list the drained ones.",
    ),
    "undrain": Entry("berth.cli.local:undrain", "Start jobs on these GPUs again."),
    "up": Entry("berth.cli.local:up", "Start the queue of this machine."),
    "config": Entry(
        "berth.cli.local:config",
        "Show what `berth.toml` sets for `berth up`, `berth submit` and notices, and which file says so.",
    ),
    "down": Entry(
        "berth.cli.local:down",
        "Stop the queue; running jobs continue, and the next `berth up` finds them.",
    ),
    "status": Entry(
        "berth.cli.local:status",
        "Show whether the queue is up, its policy, and what the GPUs hold.",
    ),
}
