#!/usr/bin/env bash
# Makes a Debian root file system as a tar archive: the base image where no image registry can be reached.
set -euo pipefail

if [ $# != 3 ] || [ "$1" = --help ]; then
  cat >&2 <<'USAGE'
usage: docker/root_filesystem.sh SUITE ARCHITECTURE OUT.tar

Needs mmdebstrap and a Debian mirror; for another architecture than this machine's also QEMU through binfmt_misc.

example:
  docker/root_filesystem.sh bookworm arm64 build/bookworm-arm64.tar
USAGE
  exit 2
fi
suite=$1 architecture=$2 out=$3

command -v mmdebstrap >/dev/null || {
  printf 'root_filesystem: wanted mmdebstrap; found none. Install it: sudo apt-get install mmdebstrap\n' >&2
  exit 3
}

# What official slim images leave out as well: nobody reads documentation in a build image.
partial=$out.partial
trap 'rm -f "$partial"' EXIT
mmdebstrap --format=tar --variant=minbase --architectures="$architecture" --include=ca-certificates \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-include=/usr/share/doc/*/copyright' --dpkgopt='path-exclude=/usr/share/locale/*' \
  "$suite" "$partial"
mv "$partial" "$out"
