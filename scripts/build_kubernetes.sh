#!/bin/sh
# Builds the real Kubernetes of the tests (1.20.2: apiserver, controllers, scheduler, kubelet) from Debian's source package.
# build_kubernetes.sh DIRECTORY: 29 minutes on two free cores, once; 360 MB stay. Debian 12, as root (it installs Go 1.19).
set -eu
to=$1
work=$to.build
[ -x "$to/kubelet" ] && exit 0
mkdir -p "$work"
cd "$work"
# A list of its own: the machine's lists of sources stay as they are.
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb-src [signed-by=$keyring] http://deb.debian.org/debian bookworm main" >sources.list
mkdir -p lists/partial
alone="-o Dir::Etc::sourcelist=$work/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$work/lists"
command -v jq >/dev/null && command -v rsync >/dev/null && [ -x /usr/lib/go-1.19/bin/go ] ||
  DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends golang-1.19-go jq rsync >/dev/null
if [ ! -f tree/Makefile ]; then
  # shellcheck disable=SC2086 - several options
  apt-get -qq $alone update
  # shellcheck disable=SC2086
  apt-get -qq $alone source --download-only kubernetes
  mkdir -p tree
  tar -xf kubernetes_*.orig.tar.* -C tree --strip-components 1
  for more in kubernetes_*.debian.tar.*; do tar -xf "$more" -C tree; done
fi
mkdir -p .go/src/k8s.io
ln -sfn "$work/tree" .go/src/k8s.io/kubernetes
cd .go/src/k8s.io/kubernetes
export PATH="/usr/lib/go-1.19/bin:$PATH" GOPATH="$work/.go" GOCACHE="$work/cache" GOFLAGS="${GOFLAGS:-}" GO111MODULE=off CGO_ENABLED=0
export KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20 KUBE_GIT_COMMIT=debian KUBE_GIT_TREE_STATE=clean
make WHAT="cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler cmd/kubelet" GOLDFLAGS="-s -w"
found=$(dirname "$(find "$work/tree/_output" -name kubelet -type f -perm -u+x | head -1)")
mkdir -p "$to.new"
for each in kube-apiserver kube-controller-manager kube-scheduler kubelet; do cp "$found/$each" "$to.new/$each"; done
mv "$to.new" "$to"
rm -rf "$work"
