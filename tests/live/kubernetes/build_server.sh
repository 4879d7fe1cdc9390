#!/usr/bin/env bash
# Build Kubernetes' own servers from Debian's source, once a machine: build_server.sh [kube-scheduler kubelet …]
#
# Debian ships no package with kube-apiserver, but bookworm's source package `kubernetes` is the whole tree with
# its vendored modules. The results lie in the user's cache, outside the repository. kube-apiserver is always
# built. Needs golang-1.19-go, rsync and a network; runs as any user, and changes nothing in the system's apt.
set -euo pipefail
version=1.20.2
recipe=1 # counted up with each change of what is built; the results of another recipe are built anew
cache=${XDG_CACHE_HOME:-$HOME/.cache}/berth-tests/kubernetes-$version
mkdir -p "$cache"
# A second caller waits for the first one's build.
exec 9>"$cache/lock"
flock 9
if [ -e "$cache/recipe" ] && [ "$(cat "$cache/recipe")" != "$recipe" ]; then
    rm -rf "$cache/source" "$cache"/kube*
fi
echo "$recipe" >"$cache/recipe"
missing=()
for server in kube-apiserver "$@"; do
    [ -x "$cache/$server" ] || missing+=("cmd/$server")
done
[ ${#missing[@]} = 0 ] && exit 0

export PATH=/usr/lib/go-1.19/bin:$PATH
if ! [[ $(go version 2>/dev/null) == *go1.19* ]] || ! command -v rsync >/dev/null; then
    echo "build_server.sh: wanted Go 1.19 and rsync; apt-get install golang-1.19-go rsync" >&2
    exit 1
fi
tree=$cache/source
mirror=${BERTH_DEBIAN_MIRROR:-http://deb.debian.org/debian}
if ! [ -e "$tree/.complete" ]; then
    rm -rf "$tree" "$cache/apt"
    mkdir -p "$tree" "$cache/apt/lists/partial" "$cache/apt/archives/partial"
    cat >"$cache/apt/sources.list" <<LIST
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main
deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main
LIST
    apt=(apt-get -q -o "Dir::Etc::SourceList=$cache/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$cache/apt/lists" -o "Dir::Cache=$cache/apt" -o APT::Sandbox::User=root)
    "${apt[@]}" update
    cd "$cache/apt"
    "${apt[@]}" source --download-only kubernetes
    "${apt[@]}" download golang-github-modern-go-reflect2-dev
    if ! compgen -G "kubernetes_*$version*.orig.tar.gz" >/dev/null; then
        echo "build_server.sh: wanted the source of $version, and $mirror has $(echo kubernetes_*.orig.tar.gz)" >&2
        exit 1
    fi
    tar xzf kubernetes_*"$version"*.orig.tar.gz -C "$tree" --strip-components=1
    # The tree's reflect2 1.0.1 calls Go's runtime wrongly from Go 1.18 on: the server would die at the first
    # custom resource. Debian's package has 1.0.2.
    dpkg -x golang-github-modern-go-reflect2-dev_*.deb "$cache/apt/reflect2"
    rm -f "$tree"/vendor/github.com/modern-go/reflect2/*.go "$tree"/vendor/github.com/modern-go/reflect2/*.s
    cp -r "$cache"/apt/reflect2/usr/share/gocode/src/github.com/modern-go/reflect2/* \
        "$tree/vendor/github.com/modern-go/reflect2/"
    if ! [ -e "$tree/vendor/github.com/modern-go/reflect2/go_above_118.go" ]; then
        echo "build_server.sh: Debian's reflect2 is not 1.0.2 or later; the server would die at a custom resource" >&2
        exit 1
    fi
    mkdir -p "$tree/.go/src/k8s.io"
    ln -sfn ../../.. "$tree/.go/src/k8s.io/kubernetes"
    cat >"$tree/ver" <<VERSION
KUBE_GIT_VERSION='v$version'
KUBE_GIT_MAJOR='1'
KUBE_GIT_MINOR='20'
KUBE_GIT_COMMIT='faecb196815e248d3ecfb03c680a4507229c2a56'
KUBE_GIT_TREE_STATE='clean'
VERSION
    rm -rf "$cache/apt"
    touch "$tree/.complete"
fi
cd "$tree"
GOPATH=$tree/.go GOCACHE=$cache/go CGO_ENABLED=0 GOFLAGS=-p=${BERTH_BUILD_JOBS:-2} KUBE_GIT_VERSION_FILE=$tree/ver \
    nice make WHAT="${missing[*]}"
for server in "${missing[@]}"; do
    install -m 755 "$tree/_output/bin/${server#cmd/}" "$cache/.new"
    mv "$cache/.new" "$cache/${server#cmd/}"
done
# Both are only needed for further servers; kept, they would take 4 GiB.
rm -rf "$tree" "$cache/go"
