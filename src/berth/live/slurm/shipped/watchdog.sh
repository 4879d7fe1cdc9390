#!/bin/bash
# Gives the jobs that berth holds their GPUs back and releases them, where berth has not been seen for a while. It needs
# nothing of berth, and runs by a systemd timer and a line of cron, whichever is left. As root or SlurmUser:
#   watchdog.sh [SECONDS] [STATE]
# SECONDS is how long berth may be silent (300); STATE is the folder of `berth slurm run --state` (/var/lib/berth/slurm).
set -u
limit=${1:-300} state=${2:-/var/lib/berth/slurm}
export PATH=$PATH:/usr/bin:/usr/local/bin:/opt/slurm/bin SLURM_TIME_FORMAT=%s SLURM_BITSTR_LEN=0
now=$(date +%s)
seen=$(stat -c %Y "$state/status.json" 2>/dev/null || echo 0)
[ $((now - seen)) -ge "$limit" ] || exit 0

part() { printf '%s' "$2" | tr ';' '\n' | sed -n "s/^$1=//p" | head -n 1; }

given_back=0
while IFS=$'\x1f' read -r job submitted placed note; do
    case $note in berth:1\;*) ;; *) continue ;; esac
    [ $((now - submitted)) -ge "$limit" ] || continue
    id=${job%%_\[*}
    words=(ReqNodeList= AdminComment=)
    for pair in node:TresPerNode job:TresPerJob task:TresPerTask socket:TresPerSocket; do
        value=$(part "${pair%%:*}" "$note")
        [ -z "$value" ] || words+=("${pair#*:}=$value")
    done
    # Slurm does not exchange the shards that a job was placed with for GPUs: it keeps those, on any node.
    if scontrol update JobId="$id" "${words[@]}" ||
        { case $placed in *gpu*|*shard*) true ;; *) false ;; esac &&
            scontrol update JobId="$id" ReqNodeList= AdminComment=; }; then
        scontrol release "$id" && given_back=$((given_back + 1))
    else
        echo "berth-watchdog: job $id keeps waiting: its request $note cannot be given back" >&2
    fi
done < <(squeue -h -a -t PENDING -O $'JobArrayID:\x1f,SubmitTime:\x1f,tres-per-node:\x1f,admin_comment:\x1f,Reason:' |
    grep -F JobHeld | sed $'s/\x1f[^\x1f]*$//')
[ "$given_back" = 0 ] || echo "berth-watchdog: berth was not seen for $((now - seen)) s; jobs given back: $given_back"
