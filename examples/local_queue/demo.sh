#!/bin/sh
# Two jobs on one fake GPU, then a console over their queue: what `make demo` ends with.
#   demo.sh          leaves the console and the queue up for an hour, and prints the console's address
#   demo.sh --stop   ends them now; without a running demo it does nothing
set -e
here=$(cd "$(dirname "$0")" && pwd)
kept="$here/../../out/demo-console"  # names the folder of the demo that is up

stop() {
    [ -f "$kept" ] || return 0
    folder=$(cat "$kept")
    rm -f "$kept"
    [ -d "$folder" ] || return 0
    kill "$(cat "$folder/console.pid")" 2> /dev/null || true
    keeper=$(cat "$folder/keeper.pid" 2> /dev/null) || true  # takes the queue down and removes the folder
    while [ -d "$folder" ] && kill -0 "$keeper" 2> /dev/null; do sleep 0.2; done
    rm -rf "$folder"
}

stop
[ "$1" != --stop ] || exit 0

BERTH_STATE=$(mktemp -d /tmp/berth-demo-XXXXXX)
export BERTH_STATE BERTH_ROOT="$BERTH_STATE/partitions"
trap 'berth down --cancel > /dev/null 2>&1 || true; rm -rf "$BERTH_STATE"' EXIT

echo "$ berth up --fake-gpus 1xA100-80G"
berth up --fake-gpus 1xA100-80G
echo "$ berth submit --mem 30G --name train python train.py 25 3"
berth submit --mem 30G --name train python3 "$here/train.py" 25 3
echo "$ berth submit --mem 4G --name grows python train.py 10 1    # asks for too little: its limit grows"
berth submit --mem 4G --name grows python3 "$here/train.py" 10 1
echo "$ berth status; berth wait 1 2"
sleep 0.5
berth status | grep -A9 '^GPU'
berth wait 1 2
echo "$ berth queue --ended"
berth queue --ended

echo "$ berth console --actions    # with three more jobs to look at"
for name in train tune serve; do
    berth submit --mem 30G --name "$name" python3 "$here/train.py" 20 3600 > /dev/null
done
# shellcheck disable=SC2016  # the inner shell is to expand these
setsid sh -c '
    timeout 3600 berth console --listen 127.0.0.1:0 --actions > "$BERTH_STATE/console.out" 2> "$BERTH_STATE/console.err" &
    echo $! > "$BERTH_STATE/console.pid"
    wait
    [ -s "$BERTH_STATE/console.out" ] || exit
    berth down --cancel
    rm -rf "$BERTH_STATE"
' < /dev/null > /dev/null 2>&1 &
keeper=$!
echo "$keeper" > "$BERTH_STATE/keeper.pid"
while [ ! -s "$BERTH_STATE/console.out" ] && kill -0 "$keeper" 2> /dev/null; do sleep 0.2; done
if [ ! -s "$BERTH_STATE/console.out" ]; then
    echo "the console did not start:" >&2
    cat "$BERTH_STATE/console.err" >&2
    exit 1
fi
trap - EXIT
mkdir -p "$(dirname "$kept")"
echo "$BERTH_STATE" > "$kept"
echo
echo "The console, for an hour (examples/local_queue/demo.sh --stop ends it):"
cat "$BERTH_STATE/console.out"
