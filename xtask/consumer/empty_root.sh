#!/bin/sh
# A runner for cargo: runs a test program as nobody in an empty root folder, with its shared libraries and a `/tmp` only.
# As in a container without rdma-core, devices, `/proc` and privileges.
set -eu
program=$(realpath "$1")
shift
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
for file in "$program" $(ldd "$program" | grep -o '/[^ )]*'); do
    case $file in
    *ibverbs* | *rdmacm*)
        echo "$program is linked with $file" >&2
        exit 1
        ;;
    esac
    install -D "$file" "$root$file"
done
mkdir -p "$root/tmp" # The program may be below it.
chmod 1777 "$root/tmp"
chmod 755 "$root"
if [ "$(id -u)" = 0 ]; then
    chroot --userspec=65534:65534 --groups= "$root" "$program" "$@"
else
    unshare --user --root="$root" "$program" "$@"
fi
