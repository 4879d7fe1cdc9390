#!/bin/bash
# berth's TaskProlog: what it prints becomes the environment of the task. It hands in libberth as the Prolog wrote it
# down, and takes away what sbatch left of a request for GPUs, with which srun would ask for GPUs that the job has as
# shards.
# @SETTINGS@
file=${BERTH_SLURM_RUN:-/run/berth-slurm}/$SLURM_JOB_ID-$SLURMD_NODENAME
[ -r "$file" ] || exit 0
while IFS='=' read -r name value; do
    case $name in
    LD_PRELOAD) value+=${LD_PRELOAD:+ $LD_PRELOAD} ;;
    LD_LIBRARY_PATH) value+=${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ;;
    esac
    printf 'export %s=%s\n' "$name" "$value"
done <"$file"
for name in SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK; do
    [ -z "${!name:-}" ] || echo "unset $name"
done
exit 0
