#!/bin/bash
# Process 1 of a host: it makes the host's world, becomes root of nothing else, runs its first boot, reaps, and
# knows how to stop. Called with the host's directory, in new mount, UTS, IPC, PID and cgroup namespaces and the
# host's network.
# Ends with 0 for off and 10 for a reboot.
set -eu
shopt -s nullglob
dir=$1
. "$dir/seed/env"

mkdir -p "$dir/root" "$DISK/upper" "$DISK/work"
mount -t overlay overlay -o "lowerdir=$LAYERS,upperdir=$DISK/upper,workdir=$DISK/work" "$dir/root"
r=$dir/root

mount -t proc proc "$r/proc"
# The files of this machine's kernel belong to root, whose number a host's root has too: they are read-only.
# What is set with sysctl is a host's own in net/ only.
while IFS= read -r entry; do
  mount --bind -o ro "$entry" "$entry"
done < <(find "$r/proc" -mindepth 1 -maxdepth 1 ! -name '[0-9]*' \( -type d -o -type f -perm /222 \))
mount --bind "$r/proc/sys/net" "$r/proc/sys/net"
mount -o remount,bind,rw "$r/proc/sys/net"
mount --bind -o ro "$dir/meminfo" "$r/proc/meminfo"
mount -t sysfs -o ro sysfs "$r/sys"
if [ "$CGROUPS" = 2 ]; then
  mount -t cgroup2 -o ro cgroup2 "$r/sys/fs/cgroup"
else
  mount -t tmpfs -o mode=755 tmpfs "$r/sys/fs/cgroup"
  for hierarchy in $CGROUPS; do   # such as "cpu,cpuacct"
    mkdir "$r/sys/fs/cgroup/$hierarchy"
    mount -t cgroup -o "ro,$hierarchy" cgroup "$r/sys/fs/cgroup/$hierarchy"
    for controller in ${hierarchy//,/ }; do
      [ -e "$r/sys/fs/cgroup/$controller" ] || ln -s "$hierarchy" "$r/sys/fs/cgroup/$controller"
    done
  done
fi
mount -t tmpfs -o mode=755,size=64m tmpfs "$r/dev"
# Made, not mounted: a host's root may change the mode of what is its own.
while read -r device minor; do mknod -m 666 "$r/dev/$device" c 1 "$minor"; done <<< $'null 3\nzero 5\nfull 7\nrandom 8\nurandom 9'
mknod -m 666 "$r/dev/tty" c 5 0
[ ! -e /dev/fuse ] || mknod -m 666 "$r/dev/fuse" c 10 229   # for everybody, as udev makes it
mkdir "$r/dev/pts" "$r/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$r/dev/pts"
mount -t tmpfs -o "mode=1777,size=$SHM_BYTES" tmpfs "$r/dev/shm"
ln -s pts/ptmx "$r/dev/ptmx"
ln -s /proc/self/fd "$r/dev/fd"
ln -s /proc/self/fd/0 "$r/dev/stdin"
ln -s /proc/self/fd/1 "$r/dev/stdout"
ln -s /proc/self/fd/2 "$r/dev/stderr"
mount -t tmpfs -o mode=755 tmpfs "$r/run"
mkdir -p "$r/run/sshd" "$r/run/lab"
cp "$dir"/seed/* "$r/run/lab/"

# The runtime and the frameworks of this machine, at the same paths, read-only.
while IFS= read -r path; do
  [ -n "$path" ] || continue
  mount --bind -o ro "$path" "$r$path"
done <<< "$SHARED"

hostname "$HOST_NAME"
echo "$HOST_NAME" > "$r/etc/hostname"
printf '127.0.0.1 localhost\n%s %s %s\n' "$ADDRESS" "$HOST_NAME.ec2.internal" "$HOST_NAME" > "$r/etc/hosts"

# From here on root is the host's only. What was mounted until now is locked for it: as it is, or not at all.
sed '1,/^# --- the host/d' "$0" > "$r/run/lab/main.sh"
exec 9< "$dir/users"

cd "$r"
mkdir -p .old
pivot_root . .old
umount -l /.old
rmdir /.old 2>/dev/null || true
cd /
export PATH=$PATH_ON_HOSTS HOME=/root LANG=C.UTF-8
unset dir r
exec nsenter --user=/proc/self/fd/9 unshare --mount --uts --ipc --propagation private bash /run/lab/main.sh
# --- the host
exec 9<&-
set -eu
shopt -s nullglob
. /run/lab/env

mkdir /dev/mqueue
mount -t mqueue mqueue /dev/mqueue   # of its own IPC namespace; containers that share that look for it

state=""
trap 'state=off' TERM INT USR1   # the cloud's button, and `poweroff`
trap 'state=reboot' HUP USR2     # `reboot`

cp /run/lab/ssh_host_* /etc/ssh/
bash /run/lab/firstboot.sh keys
set -m   # or everything started with & would ignore Ctrl-C, in the users' sessions too
/usr/sbin/sshd -D -e -f /run/lab/sshd_config &
echo "-----BEGIN SSH HOST KEY KEYS-----"; cat /run/lab/ssh_host_*.pub; echo "-----END SSH HOST KEY KEYS-----"
bash /run/lab/firstboot.sh data &

# `wait` returns when a trap has run; without children it would return at once, for ever.
while [ -z "$state" ]; do
  kill -0 "${idle:-1000000}" 2>/dev/null || { sleep infinity & idle=$!; }
  wait -n || true
done

# As a machine that goes down: everybody is asked, then the rest is ended with the namespace.
trap '' TERM HUP INT USR1 USR2
kill -TERM -1 2>/dev/null || true
for ((waited_ms = 0; waited_ms < STOP_GRACE_MS; waited_ms += pause_ms)); do
  pause_ms=$((waited_ms < 1000 ? 50 : 250))   # to look costs
  others=0
  for status in /proc/[0-9]*/status; do
    letter=Z
    { read -r _ && read -r _ && read -r _ letter _; } < "$status" 2>/dev/null || continue
    [ "$status" = /proc/1/status ] || [ "$letter" = Z ] || others=1
  done
  [ "$others" = 1 ] || break
  printf -v pause '0.%03d' $pause_ms
  sleep $pause || true
done
[ "$state" = off ] || exit 10
exit 0
