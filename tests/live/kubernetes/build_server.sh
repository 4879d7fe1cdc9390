#!/usr/bin/env bash
# Build Kubernetes' own servers from their Go module, once a machine: build_server.sh [kube-scheduler kubelet …]
#
# servers/go.mod names the version. The programs lie in the user's cache, outside the repository; kube-apiserver is
# always built. Needs Go and its module proxy, runs as any user, and takes some 12 minutes for all four on two cores.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' "$here/servers/go.mod")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/berth-tests/kubernetes-${version#v}
mkdir -p "$cache"
# A second caller waits for the first one's build.
exec 9>"$cache/lock"
flock 9
missing=()
for server in kube-apiserver "$@"; do
    [ -x "$cache/$server" ] || missing+=("$server")
done
[ ${#missing[@]} = 0 ] && exit 0
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
