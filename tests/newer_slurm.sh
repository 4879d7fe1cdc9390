#!/usr/bin/env bash
# Fetch another Slurm than this machine's, once a machine: newer_slurm.sh SUITE…, such as `newer_slurm.sh trixie sid`.
#
# SUITE is Debian's (trixie has 24.11, sid the newest). Its packages and the libraries that they need are unpacked into
# the user's cache (root's: /var/cache), and their programs are told to use those libraries and no other, so that they
# run beside this machine's own. Prints each folder, which tests take: BERTH_TEST_SLURM=FOLDER pytest tests/live/slurm.
# Needs patchelf and a network, runs as any user, and changes nothing in the system's apt or dpkg. 100 MB each.
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: $0 SUITE…" >&2; exit 2; }
command -v patchelf >/dev/null || { echo "$0: wanted patchelf; apt-get install patchelf" >&2; exit 1; }
recipe=1 # counted up with each change of what is unpacked; the results of another recipe are made anew
mirror=${BERTH_DEBIAN_MIRROR:-http://deb.debian.org/debian}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/berth-tests
[ "$(id -u)" != 0 ] || cache=/var/cache/berth-tests # jobs of other users must get there, and root's home is closed
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo "$(uname -m)-linux-gnu")
packages=(slurmctld slurmd slurmdbd slurm-client slurmrestd slurm-wlm-basic-plugins slurm-wlm-mysql-plugin
    slurm-wlm-jwt-plugin)
mkdir -p "$cache"
# A second caller waits for the first one's.
exec 9>"$cache/slurm.lock"
flock 9

fetch() { # SUITE FOLDER: the packages and all that they need, as if nothing was installed
    local apt=$2/apt
    mkdir -p "$apt"/lists/partial "$apt"/archives/partial
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" >"$apt/sources.list"
    local options=(-qq -y --no-install-recommends -o "Dir::Etc::SourceList=$apt/sources.list"
        -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt"
        -o Dir::State::status=/dev/null -o Debug::NoLocking=1 -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    apt-get "${options[@]}" --download-only install "${packages[@]}"
}
umask 022
unpack() { # FOLDER
    local deb root=$1/root
    mkdir -p "$root" "$1/libraries"
    for deb in "$1"/apt/archives/*.deb; do
        case ${deb##*/} in
            slurm*) dpkg-deb -x "$deb" "$root" ;;
            *) dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$1/libraries" --wildcards '*/lib/*.so*' 2>/dev/null || true ;;
        esac
    done
    local from
    for from in "$1"/libraries/{usr/,}lib/"$multiarch"; do
        [ ! -d "$from" ] || cp -an "$from/." "$root/usr/lib/$multiarch/"
    done
    rm -rf "$1/apt" "$1/libraries" "$root/usr/share"
}
bind() { # ROOT: its own loader and libraries for all of Slurm's programs and plugins
    local libraries=$1/usr/lib/$multiarch file
    local loader=$libraries/ld-linux-$(uname -m | tr _ -).so.2
    [ -e "$loader" ] || loader=$(compgen -G "$libraries/ld-linux-*.so.*" | head -n 1)
    for file in "$1"/usr/bin/* "$1"/usr/sbin/* "$libraries"/slurm-wlm/*.so; do
        [ ! -L "$file" ] && [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue
        [[ $file == *.so ]] || patchelf --set-interpreter "$loader" "$file"
        patchelf --force-rpath --set-rpath "$libraries/slurm-wlm:$libraries" "$file"
    done
}
name_as_installed() { # SBIN: as dpkg's alternatives do, for each program asks its own name what it is
    local file
    for file in "$1"/*-wlm; do mv "$file" "${file%-wlm}"; done
    # Else it would start this machine's slurmstepd.
    mkdir "$1/daemon"
    mv "$1/slurmd" "$1/daemon/slurmd"
    printf '#!/bin/sh\nexec "%s" -d "%s" "$@"\n' "$1/daemon/slurmd" "$1/slurmstepd" >"$1/slurmd"
    chmod 755 "$1/slurmd"
}
for suite in "$@"; do
    folder=$cache/slurm-$suite
    if ! [ -e "$folder/recipe" ] || [ "$(cat "$folder/recipe")" != "$recipe" ]; then
        rm -rf "$folder"
        mkdir -p "$folder"
        fetch "$suite" "$folder"
        unpack "$folder"
        bind "$folder/root"
        name_as_installed "$folder/root/usr/sbin"
        "$folder/root/usr/sbin/slurmctld" -V >/dev/null
        echo "$recipe" >"$folder/recipe"
    fi
    echo "$folder/root"
done
