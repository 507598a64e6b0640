#!/usr/bin/env bash
# Renews requirements/py3xx.txt: what requirements.txt asks for and all that it brings along, newest
# versions with hashes, for each Python. `make locks`.
#   scripts/locks.sh [VERSION...]     default: 3.10 3.11 3.12 3.13
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -eq 0 ]; then set -- 3.10 3.11 3.12 3.13; fi
scratch=$(mktemp -d "${TMPDIR:-/tmp}/rn50-locks.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-.venv/bin/python}" -m venv "$scratch/uv"
"$scratch/uv/bin/python" -m pip install -q --disable-pip-version-check uv==0.13.9
# MXNet's wheel refuses NumPy 2, which train/mxnet_import.py makes it work with. Its other wishes stay.
cat >"$scratch/uv.toml" <<'METADATA'
[[dependency-metadata]]
name = "mxnet"
requires-dist = ["numpy>1.16.0", "requests>=2.20.0,<3", "graphviz>=0.8.1,<0.9.0"]
METADATA

compile() { # compile VERSION REQUIREMENTS [OPTION...]: every package, its versions and hashes
  "$scratch/uv/bin/uv" pip compile -q --python-version "$1" --python-platform x86_64-manylinux_2_28 \
    --config-file "$scratch/uv.toml" --only-binary :all: --generate-hashes --no-annotate \
    --no-header "${@:2}"
}

# In a lock the sections of requirements.txt follow each other, each with what it adds to those
# before it: set-up builds Horovod with the first, and an image does without the last.
for version in "$@"; do
  compile "$version" requirements.txt >"$scratch/all.txt"
  lock=$scratch/lock.txt
  echo "# Python $version, by make locks" >"$lock"
  for section in build run test; do
    case $section in
      build) sed '/^# To run/,$d' requirements.txt ;;
      run) sed '/^# To test/,$d' requirements.txt ;;
      test) cat requirements.txt ;;
    esac >"$scratch/part.txt"
    compile "$version" "$scratch/part.txt" -c "$scratch/all.txt" >"$scratch/part.lock"
    printf '\n# To %s\n' "$section" >>"$lock"
    awk 'NR == FNR { if (/==/) known[$1]; next } /==/ { new = !($1 in known) } new' \
      "$lock" "$scratch/part.lock" >>"$lock.new"
    cat "$lock.new" >>"$lock"
    rm "$lock.new"
  done
  mv "$lock" "requirements/py${version/./}.txt"
  echo "requirements/py${version/./}.txt: $(grep -c == "requirements/py${version/./}.txt") packages"
done
