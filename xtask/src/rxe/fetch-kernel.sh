#!/bin/sh
# SPDX-License-Identifier: MIT
# Downloads Debian's kernel and unpacks what the guest needs into the current
# directory: boot/vmlinuz-*, and modules. Nothing is installed.
#
# Older packages leave the archive, so the name is asked for, not written here.
set -eu
package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: *\(linux-image-[0-9].*\)/\1/p' | head -n 1)
if [ -z "$package" ]; then
    echo "apt knows no linux-image-amd64; apt-get update may help" >&2
    exit 1
fi
# Root's apt drops its rights for downloads, and would warn that this directory is not its user's.
apt-get download -q -o APT::Sandbox::User=root "$package"
modules='./lib/modules/*/kernel'
dpkg-deb --fsys-tarfile "$package"_*.deb | tar x --wildcards \
    './boot/vmlinuz-*' './lib/modules/*/modules.builtin' \
    "$modules/drivers/virtio/*" "$modules/drivers/char/virtio_console.ko*" \
    "$modules/drivers/infiniband/core/*" "$modules/drivers/infiniband/sw/*" \
    "$modules/drivers/net/*.ko*" "$modules/fs/*" "$modules/net/*" "$modules/crypto/*"
rm "$package"_*.deb
find . -name '*.ko.xz' -exec xz --decompress {} +
