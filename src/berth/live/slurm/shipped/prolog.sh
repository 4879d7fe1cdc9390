#!/bin/bash
# berth's Prolog: makes the GPU partition of the job. Slurm drains a node whose Prolog fails, so this one never does, and
# never takes longer than Slurm waits.
# @SETTINGS@
timeout 20 @PYTHON@ -m berth.live.slurm.node prolog </dev/null >/dev/null 2>&1
exit 0
