#!/usr/bin/env bash
# Build Kubernetes' own servers from their Go module, once a machine: build_server.sh [kube-scheduler kubelet … kueue]
#
# servers/go.mod names the version. The programs lie in the user's cache, outside the repository; kube-apiserver is
# always built; `kueue` is Kueue's controller, with its CRDs and webhooks. Needs Go and its module proxy, runs as any
# user, and takes some 12 minutes for all four servers on two cores.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' "$here/servers/go.mod")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/berth-tests/kubernetes-${version#v}
mkdir -p "$cache"
# A second caller waits for the first one's build.
exec 9>"$cache/lock"
flock 9
kueue=
missing=()
for server in kube-apiserver "$@"; do
    if [ "$server" = kueue ]; then
        kueue=$(awk '$2 == "sigs.k8s.io/kueue" { print $3 }' "$here/kueue/go.mod")
        [ -x "${cache%/*}/kueue-${kueue#v}/kueue" ] && kueue=
    elif [ ! -x "$cache/$server" ]; then
        missing+=("$server")
    fi
done
[ ${#missing[@]} = 0 ] && [ -z "$kueue" ] && exit 0
if ! command -v go >/dev/null; then
    echo "build_server.sh: wanted Go $(awk '$1 == "go" { print $2 }' "$here/servers/go.mod") or later, and found none" >&2
    exit 1
fi
IFS=. read -r major minor _ <<<"${version#v}"
about=k8s.io/component-base/version
cd "$here/servers"
for server in "${missing[@]}"; do
    CGO_ENABLED=0 nice go build -p "${BERTH_BUILD_JOBS:-2}" -trimpath -o "$cache/.new" \
        -ldflags "-s -w -X $about.gitVersion=$version -X $about.gitMajor=$major -X $about.gitMinor=$minor" "./$server"
    mv "$cache/.new" "$cache/$server"
done
if [ -n "$kueue" ]; then
    cd "$here/kueue"
    into=${cache%/*}/kueue-${kueue#v}
    mkdir -p "$into/crds"
    from=$(go mod download -json "sigs.k8s.io/kueue@$kueue" | awk -F'"' '$2 == "Dir" { print $4 }')
    install -m 644 -t "$into/crds" "$from"/config/components/crd/bases/*.yaml
    install -m 644 "$from/config/components/webhook/manifests.yaml" "$into/webhooks.yaml"
    CGO_ENABLED=0 nice go build -p "${BERTH_BUILD_JOBS:-2}" -trimpath -ldflags "-s -w" -o "$into/.new" \
        sigs.k8s.io/kueue/cmd/kueue
    mv "$into/.new" "$into/kueue"
fi
