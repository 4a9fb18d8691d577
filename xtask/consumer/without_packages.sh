#!/bin/sh
# Runs a command as on a machine with Rust and a C compiler only: programs, libraries and headers of other packages are hidden
# from it, in a mount namespace that `unshare --mount` has made, with `--map-root-user` for an ordinary user.
set -eu
hidden=$(mktemp -d)
mount -t tmpfs tmpfs "$hidden"
for pattern in \
    'include/infiniband' 'include/rdma' 'include/valgrind' \
    'lib/*/libibverbs*' 'lib/*/librdmacm*' 'lib64/libibverbs*' 'lib64/librdmacm*' \
    'lib/*/pkgconfig' 'share/pkgconfig' 'bin/pkg-config' 'bin/pkgconf' 'bin/*-pkg-config' \
    'lib/llvm*' 'lib/*/libclang*' 'lib64/libclang*' 'bin/clang*' \
    'bin/ibv_*' 'bin/ib_*' 'bin/rping' 'bin/rdma*' 'bin/ucmatose' 'bin/udaddy' 'bin/udpong' 'bin/mckey' 'bin/cmtime' \
    'bin/rstream' 'bin/riostream' 'bin/rcopy' 'bin/rds-*' 'bin/ucx_*' \
    'bin/qemu-*' 'bin/valgrind*' 'bin/tshark' 'bin/busybox' 'bin/python3*' 'bin/node' 'bin/iperf*' 'bin/socat' 'bin/curl' \
    'bin/redis-*' 'bin/nc*' 'bin/memcached' 'sbin/nginx' 'bin/*aarch64*' 'bin/git' 'bin/strace' 'bin/gdb'; do
    for path in /usr/$pattern; do
        if [ -e "$path" ] && [ ! -c "$hidden/$path" ]; then
            mkdir -p "$hidden/${path%/*}"
            # A whiteout of overlayfs.
            mknod "$hidden/$path" c 0 0
        fi
    done
done
mount -t overlay overlay -o "lowerdir=$hidden/usr:/usr" /usr
export PATH="/usr/bin:/bin:${CARGO_HOME:-$HOME/.cargo}/bin"
exec "$@"
