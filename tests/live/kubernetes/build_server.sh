#!/usr/bin/env bash
# Build Kubernetes' own servers from their Go module, once a machine: build_server.sh [kube-scheduler kubelet … kueue karpenter]
#
# servers/go.mod names the version. The programs lie in ~/.cache/berth-tests, outside the repository; kube-apiserver is
# always built; `kueue` is Kueue's controller, with its CRDs and webhooks, and `karpenter` Karpenter's, with its kwok
# provider and CRDs. Needs Go and its module proxy, runs as any user, and takes some 12 minutes for all four servers on
# two cores. For another version, such as 1.30:
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
missing=()
others=()
for server in kube-apiserver "$@"; do
    case $server in
        kueue) from=kueue module=sigs.k8s.io/kueue ;;
        karpenter) from=autoscalers module=sigs.k8s.io/karpenter ;;
        *)
            [ -x "$cache/$server" ] || missing+=("$server")
            continue
            ;;
    esac
    at=$(awk -v module="$module" '$2 == module { print $3 }' "$here/$from/go.mod")
    into=${cache%/*}/$server-${at#v}
    [ -x "$into/$server" ] || others+=("$server $from $module@$at $into")
done
[ ${#missing[@]} = 0 ] && [ ${#others[@]} = 0 ] && exit 0
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
for other in "${others[@]}"; do
    read -r server from module into <<<"$other"
    cd "$here/$from"
    mkdir -p "$into/crds"
    source=$(go mod download -json "$module" | awk -F'"' '$2 == "Dir" { print $4 }')
    case $server in
        kueue)
            program=cmd/kueue
            install -m 644 -t "$into/crds" "$source"/config/components/crd/bases/*.yaml
            install -m 644 "$source/config/components/webhook/manifests.yaml" "$into/webhooks.yaml"
            ;;
        karpenter)
            program=kwok
            install -m 644 -t "$into/crds" "$source"/pkg/apis/crds/*.yaml "$source"/kwok/apis/crds/*.yaml
            ;;
    esac
    CGO_ENABLED=0 nice go build -p "${BERTH_BUILD_JOBS:-2}" -trimpath -ldflags "-s -w" -o "$into/.new" \
        "${module%@*}/$program"
    mv "$into/.new" "$into/$server"
done
