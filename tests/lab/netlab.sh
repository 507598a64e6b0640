#!/usr/bin/env bash
# Emulated hosts on one machine: network namespaces h1..hN (10.77.0.1..N), each on a link of a given
# rate and one-way delay, so that what crosses a network can be measured without one. Needs root.
#
#   tests/lab/netlab.sh run HOSTS RATE_MBIT DELAY_US -- COMMAND...   up, COMMAND on h1, down
#   tests/lab/netlab.sh up HOSTS RATE_MBIT DELAY_US                  rate 0: unlimited
#   tests/lab/netlab.sh exec -- COMMAND...                           on h1 of the lab that is up
#   tests/lab/netlab.sh down
#   tests/lab/netlab.sh check                                        can this machine do it?
#
# COMMAND may be `rn50 launch|bench ...`: Open MPI finds the hosts by itself, one rank on each.
#   tests/lab/netlab.sh run 4 1000 250 -- rn50 bench allreduce --ranks 4
#   tests/lab/netlab.sh run 2 300 100 -- rn50 bench overlap --launcher gloo system.nodes=2 system.ranks_per_node=1
# RN50_NETLAB_PIN=1 gives each host one core of its own (more hosts than cores: they share).
#
# With a delay frames pass a small switch of ours (netlab_switch.c; few kernels on clouds and in
# containers have netem); with delay 0 a bridge, and tbf for the rate.
set -euo pipefail

STATE=${RN50_NETLAB_STATE:-/run/rn50-netlab}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SUBNET=10.77.0
PREFIX=rn50-h       # namespaces rn50-h1, rn50-h2, ...; host names h1, h2, ...
HUB=rn50-hub        # the bridge's own: no firewall of this machine, such as Docker's, is asked

fail() { echo "netlab: error: $*" >&2; exit 2; }

usage() { sed -n '2,/^set /p' "$0" | sed -e '/^set /d' -e 's/^# \{0,1\}//'; exit "$1"; }

number() { [[ $2 =~ ^[0-9]+$ ]] || fail "$1: a whole number expected, found '$2'"; }

check() {
    [[ $(id -u) == 0 ]] || fail "root expected, found user $(id -un)"
    local tool
    for tool in ip tc unshare; do
        command -v "$tool" >/dev/null || fail "$tool expected (package iproute2, util-linux), found none"
    done
    ip netns add rn50-probe 2>/dev/null || fail "network namespaces expected, the kernel refuses one"
    ip netns del rn50-probe
}

make_switch() {
    [[ -c /dev/net/tun ]] || fail "/dev/net/tun expected (for a delay), found none"
    command -v "${CC:-cc}" >/dev/null || fail "a C compiler expected (for a delay), found none"
    "${CC:-cc}" -O2 -o "$STATE/switch" "$HERE/netlab_switch.c"
}

start_switch() { # HOSTS RATE_MBIT DELAY_US
    make_switch
    "$STATE/switch" "$@" >"$STATE/switch.out" 2>"$STATE/switch.err" &
    echo $! >"$STATE/switch.pid"
    # Real-time, where allowed: a switch that waits for a core adds to every delay.
    chrt -f -p 50 "$(<"$STATE/switch.pid")" 2>/dev/null || true
    local _
    for _ in $(seq 100); do
        grep -q ready "$STATE/switch.out" && return
        sleep 0.02
    done
    fail "the switch did not start: $(<"$STATE/switch.err")"
}

connect_by_switch() { # HOST
    ip link set "netlab$1" netns "$PREFIX$1"
    ip -n "$PREFIX$1" link set "netlab$1" name e0
    ip -n "$PREFIX$1" link set e0 address "02:4e:4c:00:00:$(printf %02x "$1")"
}

connect_by_bridge() { # HOST RATE_MBIT
    ip -n "$HUB" link add "port$1" type veth peer name e0 netns "$PREFIX$1"
    ip -n "$HUB" link set "port$1" master bridge up
    if [[ $2 != 0 ]]; then
        # Less than 128k of burst halves the rate: segments come in bursts of 64 KB.
        local shape=(root tbf rate "$2mbit" burst 128k latency 50ms)
        tc -n "$PREFIX$1" qdisc add dev e0 "${shape[@]}"
        tc -n "$HUB" qdisc add dev "port$1" "${shape[@]}"
    fi
}

up() { # HOSTS RATE_MBIT DELAY_US
    [[ $# == 3 ]] || usage 2
    number HOSTS "$1"; number RATE_MBIT "$2"; number DELAY_US "$3"
    (( $1 >= 1 && $1 <= 64 )) || fail "HOSTS: 1 to 64 expected, found $1"
    check
    [[ ! -e $STATE ]] || fail "a lab is up already: $STATE; tests/lab/netlab.sh down"
    mkdir -p "$STATE"
    trap down EXIT # half a lab is none
    if [[ $3 == 0 ]]; then
        ip netns add "$HUB"
        ip -n "$HUB" link add bridge type bridge
        ip -n "$HUB" link set bridge up
    else
        start_switch "$@"
    fi
    local i
    for i in $(seq "$1"); do
        ip netns add "$PREFIX$i"
        if [[ $3 == 0 ]]; then connect_by_bridge "$i" "$2"; else connect_by_switch "$i"; fi
        ip -n "$PREFIX$i" link set lo up
        ip -n "$PREFIX$i" addr add "$SUBNET.$i/24" dev e0
        ip -n "$PREFIX$i" link set e0 txqueuelen 1000 up
        # A connection keeps its rate over the pause between two collectives.
        ip netns exec "$PREFIX$i" sysctl -qw net.ipv4.tcp_slow_start_after_idle=0
        echo "h$i slots=1" >>"$STATE/hostfile"
        echo "$SUBNET.$i h$i" >>"$STATE/hosts"
    done
    echo "127.0.0.1 localhost" >>"$STATE/hosts"
    for i in $(seq "$1"); do
        mkdir -p "/etc/netns/$PREFIX$i"
        cp "$STATE/hosts" "/etc/netns/$PREFIX$i/hosts"
    done
    printf '#!/bin/sh\nexec "%s" rsh "$@"\n' "$HERE/netlab.sh" >"$STATE/agent"
    mkdir "$STATE/bin" # ssh [OPTIONS] HOST [OPTIONS] COMMAND, as horovodrun calls it
    cat >"$STATE/bin/ssh" <<END
#!/bin/bash
words=()
while ((\$#)); do case \$1 in -[opli]) shift 2 ;; *) words+=("\$1"); shift ;; esac; done
exec "$HERE/netlab.sh" rsh "\${words[@]}"
END
    chmod +x "$STATE/agent" "$STATE/bin/ssh"
    trap - EXIT
}

down() {
    local pid name
    # A namespace lives on while one of its sockets waits for a peer that is cut off: minutes. Its
    # link ends with the bridge.
    ip netns del "$HUB" 2>/dev/null || true
    for name in $(ip netns list | awk -v p="^$PREFIX" '$1 ~ p {print $1}'); do
        for pid in $(ip netns pids "$name"); do kill -9 "$pid" 2>/dev/null || true; done
        ip netns del "$name"
        rm -rf "/etc/netns/$name"
    done
    rmdir /etc/netns 2>/dev/null || true
    if [[ -s $STATE/switch.pid ]]; then
        kill "$(<"$STATE/switch.pid")" 2>/dev/null || true
    fi
    rm -rf "$STATE"
}

on_host() { # HOST COMMAND...: with its network, its host name and its own /etc/hosts
    local host=$1
    shift
    # RN50_NETLAB_PIN=1: host i on core i alone, as hosts do not lend each other their cores.
    local pin=()
    [[ ${RN50_NETLAB_PIN:-0} == 0 ]] || pin=(taskset -c $(((${host#h} - 1) % $(nproc --all))))
    # shellcheck disable=SC2016  # expanded by the inner shell
    exec "${pin[@]}" ip netns exec "$PREFIX${host#h}" unshare --uts \
        sh -c 'hostname "$0" && exec "$@"' "$host" "$@"
}

execute() { # COMMAND... on h1, Open MPI and Horovod set to use the lab
    [[ ${1:-} == -- ]] && shift
    [[ $# -gt 0 ]] || usage 2
    [[ -s $STATE/hostfile ]] || fail "no lab is up: tests/lab/netlab.sh up HOSTS RATE_MBIT DELAY_US"
    export OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent=$STATE/agent OMPI_MCA_plm_rsh_no_tree_spawn=1
    export OMPI_MCA_orte_default_hostfile=$STATE/hostfile OMPI_MCA_oob_tcp_if_include=$SUBNET.0/24
    export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=$SUBNET.0/24
    # At the end: sudo leaves out an environment that is activated.
    export HOROVOD_GLOO_IFACE=e0 RN50_HOSTS=$STATE/hostfile PATH=$STATE/bin:$PATH:${HERE%/tests/lab}/.venv/bin
    on_host h1 "$@"
}

run() { # HOSTS RATE_MBIT DELAY_US -- COMMAND...
    [[ $# -ge 5 && $4 == -- ]] || usage 2
    up "$1" "$2" "$3"
    trap down EXIT
    shift 4
    local code=0
    (execute "$@") || code=$?
    exit "$code"
}

case ${1:-} in
    up | down | run) "$@" ;;
    check) check && echo "netlab: ready" ;;
    exec) shift && execute "$@" ;;
    rsh) shift && on_host "$1" sh -c "${*:2}" ;; # what Open MPI calls instead of ssh
    -h | --help) usage 0 ;;
    *) usage 2 ;;
esac
