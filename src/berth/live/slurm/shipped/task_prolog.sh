#!/bin/bash
# berth's TaskProlog: what it prints becomes the environment of the task. It hands in libberth.
# @SETTINGS@
timeout 20 @PYTHON@ -m berth.live.slurm.node task-prolog </dev/null 2>/dev/null
exit 0
