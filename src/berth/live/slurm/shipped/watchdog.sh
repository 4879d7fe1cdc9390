#!/bin/bash
# Gives the jobs that are held for berth their GPUs back and releases them, where no berth that lives places them. It
# needs nothing of berth, and runs by a systemd timer and a line of cron, whichever is left. As root or SlurmUser:
#   watchdog.sh [SECONDS] [STATE]
# SECONDS is how long berth may be silent (300); STATE is the folder of `berth slurm run --state` (/var/lib/berth/slurm).
set -u
limit=${1:-300} state=${2:-/var/lib/berth/slurm}
export PATH="$PATH:@SLURM_BIN@:/usr/sbin:/usr/bin:/sbin:/bin" SLURM_TIME_FORMAT=%s SLURM_BITSTR_LEN=0
mkdir -p "$state" && exec 9>"$state/watchdog.lock" && flock -n 9 || exit 0 # the timer's or cron's is at it
began=$(date +%s)

quoted() { # TEXT: as berth writes a path into a comment, where a space would end it
    local LC_ALL=C at
    for ((at = 0; at < ${#1}; at++)); do
        case ${1:at:1} in
        [A-Za-z0-9_.~/-]) printf %s "${1:at:1}" ;;
        *) printf '%%%02X' $(($(printf %d "'${1:at:1}") & 255)) ;;
        esac
    done
}
mine="$(uname -n):$(quoted "$(realpath "$state")")"
# The berth of another machine or folder places, and has a watchdog of its own.
while read -r owner until; do
    [ "$owner" = "$mine" ] || [ "$until" -le "$began" ] || exit 0
done < <(scontrol -o -a show node 2>/dev/null |
    sed -n 's/.*\[berth places: \([^ ]*\) until \([0-9]*\)\].*/\1 \2/p' | sort -u)

silent() { [ $(($(date +%s) - $(stat -c %Y "$state/status.json" 2>/dev/null || echo 0))) -ge "$limit" ]; }
in_hands() { # PARTITION QOS: whether a berth that lives places such jobs
    ! silent && grep -qxF -e "partition $1" -e "qos $2" "$state/scope" 2>/dev/null
}
part() { printf '%s' "$2" | tr ';' '\n' | sed -n "s/^$1=//p" | head -n 1; }

rows=$(squeue -h -a -t PENDING \
    -O $'JobArrayID:\x1f,JobID:\x1f,SubmitTime:\x1f,Partition:\x1f,QOS:\x1f,tres-per-node:\x1f,admin_comment:\x1f,Reason:' |
    grep -iE $'\x1f(JobHeld|[^\x1f]*requeued[^\x1f]*held)[^\x1f]*$' | sed $'s/\x1f[^\x1f]*$//')
given_back=0
declare -A others=() broken=() # of heterogeneous jobs, components that have their GPUs back; those with some that have not
while IFS=$'\x1f' read -r job number submitted partition qos placed note; do
    case " $note" in *" berth:1;"*) note=berth:1\;${note##*berth:1;} note=${note%%[[:space:]]*} ;; *) continue ;; esac
    [ $((began - submitted)) -ge "$limit" ] || continue
    if in_hands "$partition" "$qos"; then # asked for each job: berth may have come back
        case $job in *+*) broken[${job%+*}]=yes ;; esac
        continue
    fi
    id=$(printf '%s' "$job" | sed 's/%[0-9]*\]$/]/') # scontrol takes an array's waiting tasks, not its limit
    words=() het=
    case $id in
    *+0) id=$number het=$number words+=(ExcNodeList=) ;; # Slurm takes no ReqNodeList of the first component
    *+*) het=${id%+*} id=$number words+=(ReqNodeList=) ;;
    *\]) ;; # of tasks that are still one row none was placed, and scontrol takes no ReqNodeList of several
    *) words+=(ReqNodeList=) ;;
    esac
    case $placed in
    *gpu* | *shard*) ;; # Slurm does not take off what a job was placed with: it keeps those types, on any node
    *)
        for pair in node:TresPerNode job:TresPerJob task:TresPerTask; do
            value=$(part "${pair%%:*}" "$note")
            [ -z "$value" ] || words+=("${pair#*:}=$value")
        done
        ;;
    esac
    # The note goes last: without it nobody would find the job again. The first component is released with all others.
    if [ -n "$het" ] && [ "$het" != "$id" ]; then
        others[$het]+=" $id"
        scontrol update JobId="$id" "${words[@]}" || broken[$het]=yes
    elif [ -n "${broken[$id]:-}" ]; then
        echo "berth-watchdog: job $id keeps waiting: a component's request is not given back" >&2
    elif { [ ${#words[@]} = 0 ] || scontrol update JobId="$id" "${words[@]}"; } && scontrol release "$id"; then
        for each in $id ${others[$id]:-}; do scontrol update JobId="$each" AdminComment=berth:0\; 2>/dev/null; done
        given_back=$((given_back + 1))
    else
        echo "berth-watchdog: job $id keeps waiting: its request $note cannot be given back" >&2
    fi
done < <(grep -v '^[0-9]*+0' <<<"$rows"; grep '^[0-9]*+0' <<<"$rows")
[ "$given_back" = 0 ] || echo "berth-watchdog: no berth places them: jobs given back: $given_back"
