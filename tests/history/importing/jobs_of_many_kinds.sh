# Jobs of many kinds on a real Slurm, and what its commands print of them; sourced inside tests/slurm_cluster.sh.
# Writes into the folder $out: version; queue.txt and sacct.txt, and the same as JSON by each parser that Slurm has.
mkdir -p "$out"
me=$(id -un)
sacctmgr -i add account ai >/dev/null; sacctmgr -i add user "$me" account=ai >/dev/null
for _ in $(seq 900); do # until the controller knows the account; a job submitted earlier would have none
    scontrol -o show assoc_mgr "users=$me" flags=assoc | grep -q "Account=ai UserName=$me(" && break; sleep .2
done
J() { sbatch -A ai --parsable -o /dev/null -t 5 "$@"; }
state() { squeue -h -a -t all -j "$1" -o %T 2>/dev/null | head -n 1; }
is() { for _ in $(seq 900); do [ "$(state "$1")" = "$2" ] && return; sleep .1; done; echo "$1 is $(state "$1")" >&2; return 1; }
halted=$(J -J halted --gres=gpu:1 --wrap 'touch halted; until [ -e go ]; do sleep .1; done')
again=$(J --requeue -J again --wrap 'touch again; until [ -e go ]; do sleep .1; done')
for _ in $(seq 900); do [ -e halted ] && [ -e again ] && break; sleep .1; done # RUNNING is said before a step runs
scontrol suspend "$halted"; scontrol requeue "$again"; touch go
J --array=1-3%2 --gres=gpu:1 -J sweep --comment=caffe --wrap 'srun true; sleep 1' >/dev/null
J -n1 : -n1 --gres=gpu:1 -J het --wrap 'sleep 1' >/dev/null
J -J fails --wrap 'exit 3' >/dev/null
J -J killed --wrap 'kill -9 $$' >/dev/null
scancel "$(J --begin=now+1hour -J never --wrap 'sleep 1')"
late=$(J -J late --gres=gpu:v100:1 --wrap 'sleep 280'); is "$late" RUNNING # until it is cancelled
waits=$(J -J waits --gres=gpu:2 -N2 --comment=vasp --array=2-8:3%1 --wrap 'sleep 1')
sleep 2
parsers=$(squeue --json=list 2>&1 | grep -o 'v0\.0\.[0-9]*' | sort -u || true)
listed() { squeue -h -a -o '%i %T'; }
for _ in $(seq 30); do # all tell of one moment: nothing starts or ends from a second before the first to the last
    before=$(listed); sleep 1
    for parser in $parsers; do squeue --json="$parser" >"$out/squeue-$parser.json"; done
    sacct -X -P -s PENDING,RUNNING -o \
        JobIDRaw,JobID,JobName,Comment,User,Account,Partition,QOS,State,Submit,Start,TimelimitRaw,ReqTRES,NNodes \
        >"$out/queue.txt"
    [ "$(listed)" = "$before" ] && { settled=yes; break; }
done
[ -n "${settled-}" ] || { echo "the queue changed during each of 30 looks" >&2; exit 1; }
scancel "$waits" "$late"; scontrol resume "$halted"
for _ in $(seq 600); do
    [ -z "$(squeue -h)" ] && break
    sleep .3; scontrol update JobId="$again" StartTime=now 2>/dev/null || true
done
for _ in $(seq 600); do # slurmdbd hears of an end a little later
    sacct -X -n -a -D -S 2020-01-01 -s PENDING,RUNNING -o JobID | grep -q . || break; sleep .2
done
for parser in $parsers; do sacct --json="$parser" -a -D -S 2020-01-01 >"$out/sacct-$parser.json"; done
fields=JobIDRaw,JobID,Cluster,JobName,User,Account,Partition,QOS,State,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw
fields+=,NNodes,NCPUS,AllocTRES,ReqTRES,NodeList,Reason,Comment,Container,SubmitLine,ExitCode,Suspended,TotalCPU
fields+=,ConsumedEnergyRaw,TRESUsageInTot
sacct -a -D -P -S 2020-01-01 -o $fields >"$out/sacct.txt"
slurmctld -V >"$out/version"
