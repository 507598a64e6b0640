#!/usr/bin/env bash
# Makes a Debian base image without a registry: debootstrap, and this machine's own certificates.
#   scripts/container_base.sh IMAGE [ENGINE [SUITE [MIRROR]]]
#     as root; ENGINE podman (default) or docker; SUITE bookworm
set -euo pipefail
image=${1:?a name for the image expected, such as localhost/rn50-base:bookworm}
engine=${2:-podman}
suite=${3:-bookworm}
mirror=${4:-http://deb.debian.org/debian}
command -v debootstrap >/dev/null || {
  echo "container_base: error: debootstrap expected, found none (apt-get install debootstrap)" >&2
  exit 2
}
root=$(mktemp -d "${TMPDIR:-/tmp}/rn50-base.XXXXXX")
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "$mirror" >&2
# Behind a proxy with a certificate of its own apt and pip must trust it in the image as well.
changes=()
if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
  cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
  chroot "$root" update-ca-certificates >&2
  changes=(--change 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt'
    --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt')
fi
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" -c . | "$engine" import "${changes[@]}" - "$image"
