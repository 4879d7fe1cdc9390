# Words for stories on a real Slurm; sourced inside tests/slurm_cluster.sh. BERTH and PYTHON are told, and the folder is
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
# the cluster's own.

as() { local user=$1; shift; setpriv --reuid "$user" --regid "$user" --clear-groups -- env -u HOME "$@"; }
submit() { sbatch --parsable -o /dev/null -t 10 "$@"; }
until_there() { echo "until [ -e '$PWD/$1' ]; do sleep .1; done"; } # FILE: what a job does that lasts until then
state() { squeue -h -a -t all -j "$1" -o %T 2>/dev/null | head -n 1; }
reason() { squeue -h -a -t all -j "$1" -o %r 2>/dev/null | head -n 1; }
until_so() { # COMMAND…, or a line of bash: until it succeeds; the line that never does ends the story
    local _
    for _ in $(seq 900); do
        if [ $# = 1 ]; then eval "$1"; else "$@"; fi >/dev/null 2>&1 && return
        sleep .1
    done
    echo "this was never so: $*" >&2
    squeue -a -t all >&2; tail -n 5 state/decisions.jsonl >&2; cat state/status.json >&2
    return 1
}
logged() { grep -sc "\"$1\"" "${2:-state}/decisions.jsonl"; } # EVENT [STATE]: how many there are
until_is() { # JOB STATE
    for _ in $(seq 900); do
        case $(state "$1") in "$2") return 0 ;; FAILED | COMPLETED | CANCELLED | TIMEOUT) break ;; esac
        sleep .1
    done
    echo "job $1 is $(state "$1") ($(reason "$1")), not $2" >&2
    scontrol -d show job "$1" >&2; tail -n 5 state/decisions.jsonl >&2; cat state/status.json berth.err >&2
    return 1
}
place() { # ARGUMENTS OF berth slurm run…
    "$BERTH" slurm run --mode place --partitions gpu --interval 0.1 --patience 3 --state "$PWD/state" "$@" 2>>berth.err &
    berth_pid=$!
}
stop_berth() { kill -"${1:-TERM}" "$berth_pid"; wait "$berth_pid" 2>/dev/null || true; }

# What docs/slurm.md says: install, start Slurm again.
install_berth() {
    "$BERTH" slurm install --apply --partitions gpu --state "$PWD/state" --folder "$PWD/berth" --shards-per-gpu 4 "$@" \
        >install.diff
    restart
}
restart() {
    local pid node
    for node in $(scontrol show hostnames "$(sinfo -h -o %N)"); do
        pid=$(cat "slurmd.$node.pid") && kill "$pid" && ended "$pid"
    done
    pid=$(cat slurmctld.pid) && kill "$pid" && ended "$pid"
    slurmctld
    until_so scontrol ping
    for node in $(scontrol show hostnames "$(sinfo -h -o %N)"); do slurmd -N "$node"; done
    if [ -f rest.pid ]; then pid=$(cat rest.pid) && kill "$pid" && ended "$pid"; start_rest; fi
    until_so '[ "$(sinfo -h -N -t idle -o %n | wc -l)" = "$(sinfo -h -N -o %n | wc -l)" ]'
}
GPU_SETTINGS=(--set BERTH_SLURM_FAKE_GPU=1 --set "BERTH_ROOT=$PWD/root" --set "BERTH_FAKE_CARD=$PWD/card"
    --set "BERTH_SLURM_LOG=$PWD/node.log" --set "SLURM_CONF=$SLURM_CONF" --set "BERTH_SLURM_RUN=$PWD/run")
gpus_of() { scontrol -d -o show job "$1" | grep -o ' GRES=[^ ]*' | tail -n 1 | cut -c7-; }
admin() { squeue -h -a -t all -j "$1" -O admin_comment: | head -n 1; }
