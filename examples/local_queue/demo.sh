#!/bin/sh
# Two jobs on one fake GPU: what `make demo` ends with. Leaves nothing behind.
set -e
here=$(cd "$(dirname "$0")" && pwd)
BERTH_STATE=$(mktemp -d /tmp/berth-demo-XXXXXX)
export BERTH_STATE BERTH_ROOT="$BERTH_STATE/partitions"
trap 'berth down --cancel > /dev/null 2>&1 || true; rm -rf "$BERTH_STATE"' EXIT

echo "$ berth up --fake-gpus 1xA100-80G"
berth up --fake-gpus 1xA100-80G
echo "$ berth submit --mem 30G --name train python train.py 25 3"
berth submit --mem 30G --name train python3 "$here/train.py" 25 3
echo "$ berth submit --mem 4G --name grows python train.py 10 2    # asks for too little: queued again with what it needs"
berth submit --mem 4G --name grows python3 "$here/train.py" 10 2
echo "$ berth status; berth wait 1 2"
sleep 1.5
berth status | grep -A9 '^GPU'
berth wait 1 2
echo "$ berth queue --ended"
berth queue --ended
