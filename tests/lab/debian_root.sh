#!/usr/bin/env bash
# Makes a folder with a minimal Debian in it: debootstrap, and this machine's own certificates.
#   tests/lab/debian_root.sh FOLDER SUITE [MIRROR]     as root; SUITE bookworm or trixie
set -euo pipefail
folder=${1:?a new folder expected}
suite=${2:?a Debian suite such as bookworm expected}
mirror=${3:-http://deb.debian.org/debian}
debootstrap --variant=minbase --include=ca-certificates "$suite" "$folder" "$mirror"
# Behind a proxy with a certificate of its own apt and pip must trust it in there as well.
if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
  cp /usr/local/share/ca-certificates/*.crt "$folder/usr/local/share/ca-certificates/"
  chroot "$folder" update-ca-certificates
fi
rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/*
