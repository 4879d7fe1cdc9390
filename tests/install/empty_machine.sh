#!/usr/bin/env bash
# Installs the wheel, then the source, on an empty Debian without a compiler, and runs the demo's comparison there.
#   tests/install/empty_machine.sh [SUITE]     trixie (Python 3.13) by default; bookworm has 3.11
# Needs root, debootstrap and the network; the empty Debian is kept in the user's cache for the next time.
set -euo pipefail
suite=${1:-trixie}
root=$(cd "$(dirname "$0")/../.." && pwd)
kept=${XDG_CACHE_HOME:-$HOME/.cache}/berth-tests/debian-$suite
certificates=/etc/ssl/certs/ca-certificates.crt
if [ ! -e "$kept/whole" ]; then
    rm -rf "$kept"
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$kept"
    touch "$kept/whole"
fi
make -C "$root" dist
rm -rf "$kept/in" "$kept/tmp/try"
mkdir -p "$kept/in" "$kept/tmp/try"
cp "$root"/dist/berth_gpu-* "$root/requirements/plain.lock" "$kept/in/"
cp /etc/resolv.conf "$kept/etc/resolv.conf"
cp "$certificates" "$kept$certificates"  # also those of a mirror that only this machine knows
mount -t proc proc "$kept/proc"
trap 'umount "$kept/proc"' EXIT
PIP_CERT=$certificates chroot "$kept" bash -euo pipefail <<'INSIDE'
cd /tmp/try
python3 --version
if command -v gcc cc make; then exit 1; fi
python3 -m venv venv
venv/bin/pip install --quiet --require-hashes -r /in/plain.lock
venv/bin/pip install --quiet --no-deps /in/berth_gpu-*.whl
venv/bin/berth compare synthetic:demo --policies fifo+first-fit,sjf+best-fit,fgd,random --seeds 5 --out out/demo
venv/bin/berth run --mem 1G --fake-gpu -- true
venv/bin/pip uninstall --quiet --yes berth-gpu
venv/bin/pip install --quiet --no-deps --no-build-isolation /in/berth_gpu-*.tar.gz
venv/bin/berth compare synthetic:demo --policies fifo+first-fit --out out/again
if venv/bin/berth run --mem 1G --fake-gpu -- true; then exit 1; fi
INSIDE
echo "installed and run on an empty Debian $suite, from the wheel and from the source"
