#!/bin/bash
# berth's Epilog: notes what the job held of its GPUs, and takes its partition away. It never fails.
export PATH="@SLURM_BIN@:/usr/sbin:/usr/bin:/sbin:/bin" # slurmd gives scripts none
# @SETTINGS@
timeout 8 @PYTHON@ -I -m berth.live.slurm.node epilog </dev/null >/dev/null 2>&1
exit 0
