#!/bin/sh
# Installs what the build and the tests need on Debian and its relatives. Does nothing when all of it is
# there; elsewhere, or without root, says what is missing.
set -eu
pkgs="gcc g++ libc6-dev make cmake ninja-build pkg-config libcmocka-dev libpcre2-dev libutf8proc-dev libjansson-dev \
liburing-dev libcurl4-openssl-dev libssl-dev libedit-dev libncurses-dev python3 python3-pip python3-numpy ca-certificates"
[ "${1:-}" = clang ] && pkgs="$pkgs clang libclang-rt-14-dev"
if ! command -v dpkg-query >/dev/null 2>&1; then
    for tool in cc cmake ninja pkg-config python3; do
        command -v $tool >/dev/null 2>&1 || { echo "missing: $tool (Debian's names of all that is needed: $pkgs)" >&2; exit 1; }
    done
    exit 0
fi
missing=""
for p in $pkgs; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ]; then
    echo "missing packages; as root: apt-get install$missing" >&2
    exit 1
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends $missing >/dev/null
