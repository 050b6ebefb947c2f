#!/bin/sh
# SPDX-License-Identifier: MIT
# The guest's first process. The initial file system holds this, busybox and
# modules. The root becomes the host's, read-only, under a layer in memory that
# takes what the guest writes; the job's directory is shared.
b=/bin/busybox

# qemu ends with twice the value and one.
finish() {
    $b mount -t devtmpfs dev /dev 2>/dev/null
    $b printf "\\$1" | $b dd of=/dev/port bs=1 seek=$((0xf4)) count=1 2>/dev/null
    $b poweroff -f
}
fail() {
    echo "guest: cannot start: $*"
    finish 040
}

$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r module; do
    $b insmod "/modules/$module" || fail "module $module"
done </modules/order

share=trans=virtio,version=9p2000.L,msize=524288
$b mount -t 9p -o $share,ro,cache=loose root /lower || fail "the host's files"
$b mount -t tmpfs -o size=75% layer /layer && $b mkdir /layer/upper /layer/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work overlay /new ||
    fail "the layer above the host's files"
$b mkdir -p /new/rxe-job
$b mount -t 9p -o $share,cache=none job /new/rxe-job || fail "the job's directory"
for directory in proc sys dev; do
    $b mount --move /$directory /new/$directory || fail "moving /$directory"
done
# Programs can be under /tmp, so it stays as it is.
$b mkdir -p /new/dev/shm /new/dev/pts
$b mount -t tmpfs shm /new/dev/shm
$b mount -t devpts pts /new/dev/pts
$b mount -t tmpfs run /new/run
# Open MPI refuses a host without a name.
$b hostname rxe-guest
$b ip link set lo up

# The nonce beside the status says that the job's own shell came to its end.
$b chroot /new /bin/sh -c '{
    sh /rxe-job/job.sh </dev/null
    echo "$? $(cat /rxe-job/nonce)" >/rxe-job/status
} 2>&1 | cat >/dev/vport0p1' || fail "the job's shell"
finish 020
