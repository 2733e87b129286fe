#!/bin/sh
# Builds Enroot, which Debian does not have, into a directory.
# build_enroot.sh DIRECTORY: some seconds. As root (it installs Debian packages). It takes the source from GitHub, or
# from the directory or git repository that ENROOT_SOURCE names.
set -eu
to=$1
version=4.1.2
work=$to.build
[ -x "$to/bin/enroot" ] && exit 0
needed="gcc make libbsd-dev parallel jq curl zstd squashfs-tools squashfuse fuse-overlayfs passwd docker-registry"
# shellcheck disable=SC2086 - several packages
dpkg -s $needed >/dev/null 2>&1 || {
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $needed >/dev/null
}
rm -rf "$work" "$to"
mkdir -p "$work"
git clone -q --bare --depth 1 --branch "v$version" "${ENROOT_SOURCE:-https://github.com/NVIDIA/enroot}" "$work/repo"
git --git-dir "$work/repo" archive "v$version" | tar -x -C "$work"
cd "$work"
# Debian's C library and libbsd serve, in place of what the source brings; no bundles are made.
make -s -C deps libbsd FORCE_GLIBC=1
make -s -o deps install prefix="$to" DEPS= FORCE_GLIBC=1 LDFLAGS= LDLIBS=-lbsd \
  CPPFLAGS="-D_GNU_SOURCE= -include bsd/string.h -include bsd/stdio.h" >/dev/null 2>&1
rm -rf "$work"
XDG_RUNTIME_DIR=$(mktemp -d) "$to/bin/enroot" version
