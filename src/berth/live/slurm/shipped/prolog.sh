#!/bin/bash
# berth's Prolog: makes the GPU partition of the job. Slurm drains a node whose Prolog fails, so this one never does, and
# takes at most 8 s: slurmctld waits 10 for the start of a batch job.
export PATH="@SLURM_BIN@:/usr/sbin:/usr/bin:/sbin:/bin" # slurmd gives scripts none
# @SETTINGS@
timeout 8 @PYTHON@ -I -m berth.live.slurm.node prolog </dev/null >/dev/null 2>&1
exit 0
