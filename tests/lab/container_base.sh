#!/usr/bin/env bash
# Makes a Debian base image without a registry, with tests/lab/debian_root.sh.
#   tests/lab/container_base.sh IMAGE [ENGINE [SUITE [MIRROR]]]
#     as root; ENGINE podman (default) or docker; SUITE bookworm (default) or trixie
set -euo pipefail
image=${1:?a name for the image expected, such as localhost/rn50-base:bookworm}
engine=${2:-podman}
suite=${3:-bookworm}
mirror=${4:-}
command -v debootstrap >/dev/null || {
  echo "container_base: error: debootstrap expected, found none (apt-get install debootstrap)" >&2
  exit 2
}
root=$(mktemp -d "${TMPDIR:-/tmp}/rn50-base.XXXXXX")
trap 'rm -rf "$root"' EXIT
"$(dirname "$0")/debian_root.sh" "$root" "$suite" ${mirror:+"$mirror"} >&2
changes=()
if compgen -G "$root/usr/local/share/ca-certificates/*.crt" >/dev/null; then
  changes=(--change 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt'
    --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt')
fi
tar -C "$root" -c . | "$engine" import "${changes[@]}" - "$image"
