#!/usr/bin/env bash
# Build Kubernetes' own servers from their Go module, once a machine: build_server.sh [kube-scheduler kubelet … kueue]
#
# servers/go.mod names the version. The programs lie in ~/.cache/berth-tests, outside the repository; kube-apiserver is
# always built; `kueue` is Kueue's controller, with its CRDs and webhooks. Needs Go and its module proxy, runs as any
# user, and takes some 12 minutes for all four servers on two cores. For another version, such as 1.30:
#
#     KUBERNETES_VERSION=v1.30.14 build_server.sh kube-scheduler kube-controller-manager
#     KUBEBUILDER_ASSETS=~/.cache/berth-tests/kubernetes-1.30.14 pytest tests/live/kubernetes
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
ours=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' "$here/servers/go.mod")
version=${KUBERNETES_VERSION:-$ours}
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
if [ "$version" != "$ours" ]; then
    # Before 1.36, Kubernetes' module names the versions of its parts only by `replace`, which each user repeats.
    rm -rf "$cache/servers" && cp -r . "$cache/servers" && cd "$cache/servers" && rm go.sum
    parts=v0.${version#v1.}
    upstream=$(go mod download -json "k8s.io/kubernetes@$version" | awk -F'"' '$2 == "GoMod" { print $4 }')
    {
        printf 'module berth-gpu/tests/servers\n\ngo 1.22.0\n\n'
        printf 'require k8s.io/component-base %s\nrequire k8s.io/kubernetes %s\n' "$parts" "$version"
        grep -o 'k8s.io/[a-z-]* =>' "$upstream" | sort -u | awk -v v="$parts" '{ print "replace", $1, "=>", $1, v }'
    } >go.mod
    go mod tidy
fi
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
