#!/bin/sh
# What tests need: Debian packages, and Azurite from npm. Does nothing elsewhere: those tests then skip and say why.
set -eu
azurite=${TRAINMASTER_CACHE:-$HOME/.cache/trainmaster}/azurite-3.35.0 # private_azurite.py looks there
if command -v npm >/dev/null 2>&1 && [ ! -e "$azurite" ]; then
  npm install --silent --no-audit --no-fund --ignore-scripts --omit=dev --fetch-retries=1 \
    --prefix "$azurite.new" azurite@3.35.0 && mv "$azurite.new" "$azurite" ||
    echo "npm has not installed Azurite: tests of az:// will be skipped" >&2
fi
packages="procps git openmpi-bin libopenmpi-dev"
packages="$packages debootstrap iproute2 iptables openssh-client util-linux" # the lab, metadata of clouds
packages="$packages libseccomp2" # tasks of Unix users
packages="$packages openssh-server" # hosts
packages="$packages zsh fish" # completion
packages="$packages slurm-wlm munge" # a Slurm of three nodes
[ -z "${WITH_PLACES-}" ] || packages="$packages slurmdbd mariadb-server-core mariadb-client-core lmod" # its accounting, and modules: `make places` only
# A Kubernetes of one's own, where it is built.
kubernetes=${TRAINMASTER_KUBERNETES_PROGRAMS:-${TRAINMASTER_CACHE:-$HOME/.cache/trainmaster}/kubernetes-1.20}
[ ! -x "$kubernetes/kubelet" ] || packages="$packages etcd-server containernetworking-plugins busybox-static"
packages="$packages fuse3 libfuse3-3" # mounts of volumes
packages="$packages chromium-headless-shell" # pages of the server
command -v java >/dev/null 2>&1 || packages="$packages default-jre-headless"
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || exit 0
# Any docker, podman and runc will do; where others are installed already, Debian's would replace them.
command -v dockerd >/dev/null 2>&1 || packages="$packages docker.io"
command -v podman >/dev/null 2>&1 || packages="$packages podman"
command -v runc >/dev/null 2>&1 || packages="$packages runc"
# Any PostgreSQL will do, wherever it comes from.
if ! { command -v postgres && command -v initdb; } >/dev/null 2>&1 && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
  packages="$packages postgresql"
fi
missing=""
for package in $packages; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
