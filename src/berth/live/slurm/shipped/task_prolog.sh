#!/bin/bash
# berth's TaskProlog: what it prints becomes the environment of the task. It hands in libberth as the Prolog wrote it
# down, and takes away what sbatch left of a request for GPUs, with which srun would ask for GPUs that the job has as
# shards. Where the Prolog has written down nothing, jobs of berth's partitions and QoS get no GPU.
# @SETTINGS@
run=${BERTH_SLURM_RUN:-/run/berth-slurm}
file=$run/$SLURM_JOB_ID-$SLURMD_NODENAME
for name in "${!SLURM_JOB_ID_HET_GROUP_@}"; do # of a heterogeneous job it is the first component's number everywhere
    [ -r "$file" ] || file=$run/${!name}-$SLURMD_NODENAME
done
listed() { [ -n "$2" ] && [[ ,$1, == *,"$2",* ]]; } # NAMES NAME
if [ ! -r "$file" ]; then
    # Nothing would limit the task, and GPUs are shared here.
    if [ -n "${SLURM_JOB_GPUS:-}${SLURM_STEP_GPUS:-}" ] &&
        { listed "${BERTH_SLURM_PARTITIONS:-}" "${SLURM_JOB_PARTITION:-}" ||
            listed "${BERTH_SLURM_QOS:-}" "${SLURM_JOB_QOS:-}"; }; then
        echo "export CUDA_VISIBLE_DEVICES="
        if [ "${SLURM_LOCALID:-0}" = 0 ]; then
            why="$SLURMD_NODENAME made no GPU partition for job $SLURM_JOB_ID, so the job gets no GPU there"
            echo "print berth: $why; show this line to your administrator"
            logger -t berth "$why; see ${BERTH_SLURM_LOG:-/var/log/berth-slurm.log}" 2>/dev/null
        fi
    fi
    exit 0
fi
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
