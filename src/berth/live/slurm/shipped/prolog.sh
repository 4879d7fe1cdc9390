#!/bin/bash
# berth's Prolog: makes the GPU partition of the job. Slurm drains a node whose Prolog fails, so this one never does, and
# takes at most 8 s: slurmctld waits 10 for the start of a batch job.
export PATH="@SLURM_BIN@:/usr/sbin:/usr/bin:/sbin:/bin" # slurmd gives scripts none
# @SETTINGS@
timeout 8 @PYTHON@ -I -m berth.live.slurm.node prolog </dev/null >/dev/null 2>&1
code=$?
why="it ended with $code; 124 means that it took more than 8 s, and 127 that @PYTHON@ is not there"
[ $code = 0 ] || echo "$(date +%FT%T%z) berth: prolog of job $SLURM_JOB_ID: $why" \
    2>/dev/null >>"${BERTH_SLURM_LOG:-/var/log/berth-slurm.log}"
exit 0
