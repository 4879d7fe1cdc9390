# A storm on a real Slurm: kill -9 of berth, slurmctld, slurmd and the nodes' agent in turn, and a node that goes down, while
# jobs of all kinds wait and run. SETS is how many jobs of each kind there are, ROUNDS how often each process is killed, and
# WAIT_S how long its end is waited for. Sourced after stories.sh.
ran='; echo ${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}_$SLURM_ARRAY_TASK_ID >>'"$PWD/ran"
work() { submit --requeue --mem=1 "$@" --wrap "sleep 0.$((RANDOM % 8 + 1))$ran"; }
done_by_now() { sort -u ran 2>/dev/null | wc -l; }
until_saved() { # what slurmctld has not saved when it is killed is lost by Slurm itself: it saves every 5 s at most
    local _
    touch mark
    for _ in $(seq 600); do [ state/job_state -nt mark ] && return; sleep .1; done
}
until_more() { # the storm goes on only as jobs end
    local before _; before=$(done_by_now)
    for _ in $(seq 600); do [ "$(done_by_now)" -gt "$before" ] || [ "$before" -ge "$all" ] && return; sleep .1; done
}
berth_again() { place --card v100=1G; }
kill_berth() { stop_berth KILL; berth_again; }
kill_slurmctld() {
    until_saved; until_saved
    local pid _; pid=$(cat slurmctld.pid)
    kill -KILL "$pid"; ended "$pid"; slurmctld
    for _ in $(seq 600); do scontrol ping 2>/dev/null | grep -q 'is UP' && return; sleep .1; done
}
kill_slurmd() {
    local pid; pid=$(cat "slurmd.$1.pid")
    kill -KILL "$pid"; ended "$pid"; slurmd -N "$1"
}
agent() { # both nodes are on this machine, and have one
    env BERTH_SLURM_FAKE_GPU=1 BERTH_ROOT="$PWD/root" BERTH_FAKE_CARD="$PWD/card" BERTH_SLURM_LOG="$PWD/agent.log" \
        "$BERTH" slurm agent --state "$PWD/state" 2>>agent.err &
    agent_pid=$!
}
kill_agent() {
    kill -KILL "$agent_pid"; wait "$agent_pid" 2>/dev/null || true
    agent
}
node() { scontrol update NodeName="$1" State="$2" Reason=storm; }
requeue_one() { scontrol requeue "$(squeue -h -p gpu -t RUNNING -o %A | head -n 1)" 2>/dev/null || true; }

: >ran; : >ids
install_berth "${GPU_SETTINGS[@]}"
agent
berth_again
for _ in $(seq "$SETS"); do
    one=$(work --gres=gpu:1 --comment 'gpu_mem=300M'); echo "${one}_" >>ids
    after=$(work --gres=gpu:1 -d "afterok:$one"); echo "${after}_" >>ids
    gang=$(work -N 2 --gres=gpu:1); echo "${gang}_" >>ids
    part=$(work --gres=gpu:1 --comment 'gpu_mem=200M gpu_pct=40'); echo "${part}_" >>ids
    array=$(work --array=1-3 --gres=gpu:1 --comment 'gpu_mem=100M'); printf "${array}_%s\n" 1 2 3 >>ids
    het=$(work --gres=gpu:1 : --gres=gpu:1 --comment 'gpu_mem=100M' --mem=1); echo "${het}_" >>ids
    other=$(work -p plain --gres=gpu:1); echo "${other}_" >>ids
done
held=$(submit -H -p plain --gres=gpu:1 --comment mine --wrap true)
all=$(wc -l <ids)
until_saved; until_saved
for _ in $(seq "$ROUNDS"); do
    kill_berth; until_more
    kill_slurmd node1; requeue_one; until_more
    kill_slurmctld; kill_agent; until_more
    node node2 DOWN; until_more; node node2 RESUME
    kill_slurmd node2; kill_berth; until_more
done
# A job that a killed slurmd never launched is RUNNING for slurmctld until the node registers again, which
# `scontrol reconfigure` has all nodes do: an operator calls it a minute after the storm, and each minute from then on.
: >operator
for second in $(seq "$WAIT_S"); do
    [ -n "$(squeue -h -a -t PENDING,RUNNING,COMPLETING,CONFIGURING -o %i | grep -vx "$held")" ] || break
    if [ $((second % 60)) = 0 ]; then scontrol reconfigure || true; echo "scontrol reconfigure" >>operator; fi
    sleep 1
done
squeue -h -a -o '%i %T %r %k' >left
squeue -h -a -t all -o '%T' | sort | uniq -c >states
echo "$held" >held
scontrol -d -o show node | grep -oE ' Gres=\S+| GresUsed=\S+' | tr , '\n' | grep -oE 'shard:[^(]*' |
    sort | uniq -c >shards
kill "$agent_pid"
stop_berth
