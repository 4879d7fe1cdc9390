#!/bin/bash
# A real Slurm with MariaDB on this machine for as long as a command runs; nothing listens outside a network
# namespace of its own. As root or as anybody:
#   slurm_cluster.sh DIR 'sbatch … && sacct'
# Inside, SLURM_CONF is set, and BERTH_SLURMDBD is the database's address as `berth import slurmdbd` takes it.
# CLUSTER_NODES is how many nodes there are (2). CLUSTER_ACCOUNTING=no leaves MariaDB and slurmdbd out. CLUSTER_SETUP is
# a script that may change $dir/slurm.conf and $dir/gres.conf, told by DIR, before Slurm starts. CLUSTER_REST=yes starts
# slurmrestd on the socket $dir/rest, which asks for a token (`scontrol token`).
# CLUSTER_DATABASE=disk keeps the database in DIR, for one that is too large for memory.
# BERTH_TEST_SLURM is the root of another Slurm than this machine's, as newer_slurm.sh prints it.
# Packages: see .ci/packages.
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: $0 DIR COMMAND" >&2; exit 2; }
if [ -z "${IN_CLUSTER_NAMESPACE:-}" ]; then
    export IN_CLUSTER_NAMESPACE=1
    mkdir -p "$1"
    if [ "$(id -u)" = 0 ]; then exec unshare --net -- "$0" "$(realpath "$1")" "$2"; fi
    exec unshare --user --map-current-user --keep-caps --net -- "$0" "$(realpath "$1")" "$2"
fi
dir=$1 command=$2 me=$(id -un) host=$(hostname -s)
nodes=${CLUSTER_NODES:-2} accounting=${CLUSTER_ACCOUNTING:-yes} rest=${CLUSTER_REST:-no}
export PATH=$PATH:/usr/sbin:/sbin plugins=
if [ -n "${BERTH_TEST_SLURM:-}" ]; then
    export PATH=$BERTH_TEST_SLURM/usr/sbin:$BERTH_TEST_SLURM/usr/bin:$PATH
    plugins=PluginDir=$(compgen -G "$BERTH_TEST_SLURM/usr/lib/*/slurm-wlm")
fi
version=$(slurmctld -V) version=${version##* } # 22.05.8
umask 022
mkdir -p "$dir"/{log,state,database,munge}
# The name of a socket has 108 characters at most, and slurmstepd puts a long one behind its folder's.
spool=$(mktemp -d /tmp/slurm.XXXXXX); chmod 755 "$spool"
# In memory where there is room: to make an empty database is hundreds of small writes.
database=$dir/database
[ "${CLUSTER_DATABASE:-memory}" = disk ] || [ "$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)0" -lt 10000000 ] || database=$(mktemp -d /dev/shm/berth-database.XXXXXX)
chmod 711 "$dir/munge" # jobs may be of several users

ended() { # PID: waits until it has, also where nobody has asked yet how
    local stat
    for _ in $(seq 1200); do
        { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
        [[ ${stat##*) } != Z* ]] || return 0
        sleep .05
    done
    return 1
}
stop_all() { # NAMES: all are told before any is waited for
    local name pid pids=()
    for name in "$@"; do
        pid=$(cat "$dir/$name.pid" 2>/dev/null) && kill "$pid" 2>/dev/null && pids+=("$pid")
    done
    for pid in "${pids[@]}"; do ended "$pid"; done
}
stop() {
    set +e
    stop_all rest $(seq -f slurmd.node%g "$nodes")
    stop_all slurmctld
    stop_all slurmdbd
    pid=$(cat "$dir/database.pid" 2>/dev/null) && kill -KILL "$pid" # nobody reads it again
    stop_all munge
    rm -rf "$spool" "$database"
}
trap stop EXIT

until_works() { # COMMAND…; what starts in a second takes twenty where twenty programs run
    local end=$((SECONDS + 180))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || { echo "does not come up: $*" >&2; cat "$dir"/log/* >&2; exit 1; }
        sleep .05
    done
}

# slurmdbd looks for an address beside 127.0.0.0/8 before it answers on any.
ip link set lo up && ip address add 10.254.0.1/32 dev lo

head -c 128 /dev/urandom >"$dir/munge/key"; chmod 600 "$dir/munge/key"
munged --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge.pid" \
    --seed-file="$dir/munge/seed" --log-file="$dir/log/munge"

start_database() {
as_me=(--innodb-flush-method=nosync --innodb-flush-log-at-trx-commit=0 --skip-innodb-doublewrite
    --innodb-log-file-size=16M) # it lives as long as the test: nothing of it needs to outlive a loss of power
[ "$me" != root ] || as_me+=(--user=root)
mariadb-install-db --no-defaults "${as_me[@]}" --datadir="$database" --auth-root-authentication-method=normal \
    --skip-test-db >"$dir/log/install" 2>&1
# Tables for the moment are here, too: a server that starts removes those of all others in /tmp.
mariadbd --no-defaults "${as_me[@]}" --datadir="$database" --socket="$dir/database.socket" \
    --bind-address=127.0.0.1 --port=33306 --pid-file="$dir/database.pid" --innodb-lock-wait-timeout=900 \
    --tmpdir="$database" \
    --innodb-buffer-pool-size=256M >"$dir/log/database" 2>&1 &
sql() { mariadb -uroot -S "$dir/database.socket" "$@"; }
until_works sql -e 'select 1'
# Without utf8mb4 a Korean job name becomes question marks.
sql -e "create database slurm_acct_db character set utf8mb4;
    create user slurm@'%' identified by 'slurm'; grant all on slurm_acct_db.* to slurm@'%';
    create user reader@'%' identified by 'reader'; grant select on slurm_acct_db.* to reader@'%';
    create user nobody@'%' identified by 'nobody'"
cat >"$dir/slurmdbd.conf" <<END
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
DbdHost=$host
DbdAddr=127.0.0.1
SlurmUser=$me
LogFile=$dir/log/slurmdbd
PidFile=$dir/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=33306
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
$plugins
END
chmod 600 "$dir/slurmdbd.conf"
}
[ "$accounting" = no ] || start_database

cat >"$dir/slurm.conf" <<END
ClusterName=sandbox
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
# A job that is queued again begins when its first credential has expired: 5 s is the least that Slurm takes.
AuthInfo=socket=$dir/munge/socket,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$spool/%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/log/slurmctld
SlurmdLogFile=$dir/log/slurmd.%n
SlurmdDebug=verbose
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=bf_interval=2,sched_min_interval=200000
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePass=$dir/munge/socket
AccountingStorageTRES=gres/gpu,gres/gpu:v100
AccountingStoreFlags=job_comment
JobAcctGatherType=jobacct_gather/linux
MpiDefault=none
$plugins
GresTypes=gpu
NodeName=node[1-$nodes] NodeAddr=127.0.0.1 Port=[17001-$((17000 + nodes))] CPUs=16 RealMemory=64000 Gres=gpu:v100:2
PartitionName=gpu Nodes=ALL Default=YES MaxTime=60 DefMemPerCPU=500
END
# Slurm accepts only character devices as GPUs.
echo "NodeName=node[1-$nodes] Name=gpu Type=v100 File=/dev/tty[0-1]" >"$dir/gres.conf"
[ -c /dev/tty0 ] && [ -c /dev/tty1 ] || sed -i 's|/dev/tty\[0-1\]|/dev/null,/dev/zero|' "$dir/gres.conf"
export SLURM_CONF=$dir/slurm.conf
[ "$accounting" != no ] || sed -i '/^Accounting/d' "$dir/slurm.conf"
if [ "$rest" != no ]; then
    head -c 32 /dev/urandom >"$dir/state/jwt_hs256.key"; chmod 600 "$dir/state/jwt_hs256.key"
    printf 'AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=%s\n' "$dir/state/jwt_hs256.key" >>"$dir/slurm.conf"
fi
if [ -n "${CLUSTER_SETUP:-}" ]; then DIR=$dir bash -eu "$CLUSTER_SETUP"; fi
if [ "$accounting" != no ]; then
    slurmdbd; until_works sacctmgr -n list cluster
    sacctmgr -i add cluster sandbox >/dev/null 2>&1 || true
fi
slurmctld; until_works scontrol ping
for node in $(seq -f node%g "$nodes"); do 
    mkdir -p "$spool/$node"
    slurmd -N "$node" || { cat "$dir/log/slurmd.$node" >&2; exit 1; }
done
idle() { [ "$(sinfo -h -N -t idle -o %n | sort -u | wc -l)" = "$nodes" ]; }
until_works idle
start_rest() { # a story calls it again once it has changed slurm.conf
    local serves=openapi/v0.0.38 security=disable_user_check drop=()
    [ -z "$(compgen -G "${plugins#*=}/openapi_slurmctld.so")" ] || serves=openapi/slurmctld # Slurm 23.11 and later
    # As SlurmUser it does not start without this, and a later one not at all; whoever asks needs a token all the same.
    if [ "$me" = root ]; then
        drop=(setpriv --reuid daemon --regid daemon --clear-groups) security=
        install -d -o daemon "$dir/rest.d" && ln -sfn rest.d/socket "$dir/rest"
    fi
    rm -f "$(readlink -m "$dir/rest")"
    SLURM_JWT=daemon SLURMRESTD_SECURITY=$security "${drop[@]}" slurmrestd -s $serves -a rest_auth/jwt \
        unix:"$(readlink -m "$dir/rest")" >>"$dir/log/rest" 2>&1 &
    echo $! >"$dir/rest.pid"
    until_works test -S "$dir/rest"
}
[ "$rest" = no ] || start_rest
export BERTH_SLURMDBD=mysql+pymysql://reader:reader@127.0.0.1:33306/slurm_acct_db
export dir me plugins
export -f ended start_rest until_works
cd "$dir" && bash -euc "$command"
