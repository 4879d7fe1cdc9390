#!/usr/bin/env bash
# size.sh: how large the images of the Containerfile are, in MB: built where podman can pull Debian, else what they add to it.
set -euo pipefail
cd "$(dirname "$0")/../.."
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
for target in agent steerer; do
    if podman build -q -f deploy/kubernetes/Containerfile --target "$target" -t "berth-$target:size" . >"$made/log" 2>&1; then
        bytes=$(podman image inspect --format '{{.Size}}' "berth-$target:size")
        what=image
    else
        python3 -m pip install -q --no-compile --no-deps --target "$made/$target" --require-hashes -r "requirements/$target.lock"
        bytes=$(($(du -sb "$made/$target" | cut -f1) + $(git ls-files src | xargs -d '\n' du -cb | tail -1 | cut -f1)))
        what="packages and berth, without Debian's Python"
    fi
    echo "$target: $((bytes / 1000000)) MB ($what)"
done
