#!/usr/bin/env bash
# The README's two commands on fresh machines: Debian roots of debootstrap, over three MPIs.
#   tests/lab/portability_test.sh [--roots NAME,...] [--keep]     as root
#     --roots   bookworm (Debian 12, Open MPI 4.1), trixie (Debian 13, Open MPI 5.0) and mpich
#               (Debian 12, MPICH 4.0); all three unless named
#     --keep    leave the roots in place; each is removed when it is done otherwise
# What HEAD holds is tested. Bases, packages of apt and pip, Horovod's wheels and logs stay in
# ${RN50_ROOTS:-~/.cache/rn50/roots}. A root has mounts and processes of its own (unshare): they end
# with this script, however it ends.
set -euo pipefail
cd "$(dirname "$0")/../.."

store=${RN50_ROOTS:-$HOME/.cache/rn50/roots}
root_gb=5  # of one root, with what it takes from the caches
limit_s=3600 # of one command in a root: a build of Horovod on a busy machine, with room
# What shows another Python, NumPy, compiler or MPI at work; README's second command runs them.
tests=(tests/train/test_{mxnet_import,mpi_library,types,optimizer}.py tests/launch/test_launchers.py
  tests/ranks/test_collectives.py
  tests/ranks/test_launch.py::test_smoke_from_images_to_a_clean_log
  tests/faults/test_resume.py::test_{stopped_in_order,a_spent_budget}_and_resumed_is_uninterrupted
  tests/faults/test_matrix.py
  # Of the faults a rank that stands still.
  -k "'not test_matrix or SIGSTOP and mpirun and mid-epoch'")

say() { printf '[portability %4d s] %s\n' "$SECONDS" "$*" >&2; }
fail() {
  printf 'portability_test: error: %s\n' "$*" >&2
  exit 2
}
suite_of() { if [ "$1" = mpich ]; then echo bookworm; else echo "$1"; fi; }
# A machine that people have: Python without venv, and on one an MPI that is not the default.
packages_of() { echo python3; if [ "$1" = mpich ]; then printf '%s\n' mpich libmpich-dev; fi; }

roots=bookworm,trixie,mpich
keep=
while [ $# -gt 0 ]; do
  case "$1" in
    --roots)
      [ -n "${2:-}" ] || fail "--roots: a value expected, found none"
      roots=$2
      shift
      ;;
    --keep) keep=1 ;;
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *) fail "unknown argument $1; --roots NAME,... or --keep expected" ;;
  esac
  shift
done
IFS=, read -ra names <<<"$roots"
for name in "${names[@]}"; do
  case "$name" in
    bookworm | trixie | mpich) ;;
    *) fail "--roots: bookworm, trixie or mpich expected, found ${name:-an empty name}" ;;
  esac
done

[ "$(id -u)" = 0 ] || fail "root expected (chroot and mounts), found user $(id -un)"
unshare --mount --pid --fork true 2>/dev/null ||
  fail "a mount and a process namespace expected, found that unshare may make none here"
mkdir -p "$store"/{apt,logs,pip,roots,wheels}
exec 9>"$store/.lock"
flock -n 9 || fail "$store is in use by another run"
free_gb=$(($(df --output=avail -k "$store" | tail -n 1) >> 20))
need_gb=$root_gb
if [ -n "$keep" ]; then need_gb=$((root_gb * ${#names[@]})); fi
[ "$free_gb" -ge "$need_gb" ] || fail "$store: $need_gb GB of disk expected, found $free_gb free"
if ! command -v debootstrap >/dev/null; then
  say "installing debootstrap (apt)"
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap; } \
    >"$store/logs/apt.log" 2>&1 || true
  command -v debootstrap >/dev/null ||
    fail "debootstrap expected, found none (apt-get install debootstrap; it lies in /usr/sbin)"
fi

child=
# shellcheck disable=SC2329 # a trap calls it
finish() {
  local code=$?
  trap '' INT TERM HUP
  # With the process that holds the namespaces goes all that runs and is mounted in them.
  if [ -n "$child" ]; then
    kill -KILL "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  if [ -z "$keep" ]; then rm -rf --one-file-system "${names[@]/#/$store/roots/}"; fi
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# apart NAME COMMAND...: with mounts and processes of its own, into the root's log.
apart() {
  local log=$store/logs/$1/log.txt code=0
  shift
  # In the background, so that a signal ends the wait. SIGKILL reaches all of it: setpriv's from
  # here to timeout and from there to unshare, --kill-child's from unshare, the kernel's from the
  # first process of a namespace.
  setpriv --pdeathsig KILL timeout -k 10 "$limit_s" setpriv --pdeathsig KILL \
    unshare --mount-proc --pid --ipc --fork --kill-child "$@" >>"$log" 2>&1 </dev/null &
  child=$!
  wait "$child" || code=$?
  child=
  return "$code"
}
# The first process of a root: it mounts what a machine has, and waits for orphans.
# shellcheck disable=SC2329 # exported
enter() {
  local store=$1 name=$2 suite=$3
  local root=$store/roots/$name
  shift 3
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  mount --rbind /sys "$root/sys"
  mount -t proc proc "$root/proc"
  mkdir -p "$root"/root/.cache/{pip,rn50} "$store/apt/$suite/partial" "$store/wheels/$name"
  mount --bind "$store/apt/$suite" "$root/var/cache/apt/archives"
  mount --bind "$store/pip" "$root/root/.cache/pip"
  mount --bind "$store/wheels/$name" "$root/root/.cache/rn50"
  chroot "$root" "$@"
}
export -f enter
# in_root NAME COMMAND...: as a new login of root would run it.
in_root() {
  local name=$1 variable
  shift
  local environment=(HOME=/root LANG=C.UTF-8 TERM=dumb USER=root
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
  for variable in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL; do
    if [ -n "${!variable:-}" ]; then environment+=("$variable=${!variable}"); fi
  done
  if compgen -G "$store/roots/$name/usr/local/share/ca-certificates/*.crt" >/dev/null; then
    environment+=({SSL_CERT_FILE,PIP_CERT}"=/etc/ssl/certs/ca-certificates.crt")
  fi
  printf '\n$ %s\n' "$*" >>"$store/logs/$name/log.txt"
  # Bash ignores SIGINT in what it starts in the background; a command of a login does not.
  # shellcheck disable=SC2016
  apart "$name" bash -euo pipefail -c 'enter "$@"' - "$store" "$name" "$(suite_of "$name")" \
    env -i --default-signal "${environment[@]}" "$@"
}

make_root() { # make_root NAME: from the kept base, with a clean checkout and the packages of its kind
  local name=$1
  local root=$store/roots/$name suite base
  suite=$(suite_of "$name")
  base=$store/$suite.tar
  if ! [ -f "$base" ]; then
    say "$name: debootstrap of $suite"
    apart "$name" tests/lab/debian_root.sh "$root" "$suite" || return
    tar -C "$root" -cf "$base.partial" . && mv "$base.partial" "$base" || return
  else
    mkdir "$root"
    tar -C "$root" -xf "$base" || return
  fi
  cp /etc/resolv.conf "$root/etc/" || return
  printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$(hostname)" >"$root/etc/hosts"
  mkdir -p "$root/root/rn50"
  git archive "$commit" | tar -C "$root/root/rn50" -x || return
  mapfile -t packages < <(packages_of "$name")
  say "$name: installing ${packages[*]}"
  in_root "$name" apt-get update -qq || return
  in_root "$name" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${packages[@]}"
}

# test_root NAME: a machine and the two commands; what is known of it goes to its folder of logs.
test_root() {
  local name=$1 begin_s smoke=1 smoke_s=0 tested=1 tested_s=0
  local root=$store/roots/$name logs=$store/logs/$name
  rm -rf --one-file-system "$root" "$logs"
  mkdir -p "$logs"
  if make_root "$name"; then
    say "$name: ./run_and_time.sh smoke seed=1"
    begin_s=$SECONDS
    in_root "$name" bash -c 'cd ~/rn50 && exec ./run_and_time.sh smoke seed=1' && smoke=0 || smoke=$?
    smoke_s=$((SECONDS - begin_s))
    if [ "$smoke" = 0 ]; then
      say "$name: make test TESTS=..."
      begin_s=$SECONDS
      in_root "$name" make -C /root/rn50 test TESTS="${tests[*]}" && tested=0 || tested=$?
      tested_s=$((SECONDS - begin_s))
    fi
    cp "$root"/root/rn50/results/smoke/*/{result,environment}.json \
      "$root"/root/rn50/results/smoke/*/stderr.log "$root/etc/debian_version" "$logs" 2>/dev/null || true
  fi
  local digest
  digest=$(sed -n 's/.*"weights_digest": "\([^"]*\)".*/\1/p' "$logs/result.json" 2>/dev/null || true)
  say "$name: smoke: exit code $smoke, $smoke_s s, digest ${digest:-?}; tests: exit code $tested, $tested_s s"
  digests+=("${digest:-?}")
  if [ -z "$keep" ]; then rm -rf --one-file-system "$root"; fi
  if [ "$smoke$tested" = 00 ]; then
    say "$name: done; its log: $logs/log.txt"
  else
    code=1
    tail -n 15 "$logs/log.txt" >&2
    say "$name: failed; its log: $logs/log.txt"
  fi
}

commit=$(git rev-parse --short HEAD)
if ! git diff --quiet HEAD --; then say "changes that are not committed are not tested"; fi
code=0
digests=()
for name in "${names[@]}"; do test_root "$name"; done
if [ "$(printf '%s\n' "${digests[@]}" | sort -u | wc -l)" != 1 ]; then
  say "smoke seed=1: one digest expected, found ${digests[*]}"
  code=1
fi
exit "$code"
