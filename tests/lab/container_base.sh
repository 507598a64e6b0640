#!/usr/bin/env bash
# Writes a minimal Debian to standard output, for `docker import` or `podman import`; without a registry.
#   tests/lab/container_base.sh [SUITE [MIRROR]] | docker import - localhost/rn50-base:bookworm
#     as root; SUITE bookworm (default) or trixie
set -euo pipefail
suite=${1:-bookworm}
case "$suite" in
  -*)
    sed -n '2,4s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
esac
[ ! -t 1 ] || {
  echo "container_base: error: a pipe to \`docker import\` expected, found a terminal" >&2
  exit 2
}
command -v debootstrap >/dev/null || {
  echo "container_base: error: debootstrap expected, found none (apt-get install debootstrap)" >&2
  exit 2
}
root=$(mktemp -d "${TMPDIR:-/tmp}/rn50-base.XXXXXX")
trap 'rm -rf "$root"' EXIT
chmod 755 "$root" # the image's /, which every user of it passes
"$(dirname "$0")/debian_root.sh" "$root" "$suite" "${@:2}" >&2
if compgen -G "$root/usr/local/share/ca-certificates/*.crt" >/dev/null; then
  printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$root/etc/pip.conf"
fi
tar -C "$root" -c .
