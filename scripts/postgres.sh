#!/bin/sh
# A throw-away PostgreSQL for the tests, in a directory of its own, on a free port of this machine.
#
#   scripts/postgres.sh start DIR    start it; prints the URL for HUSHREC_TEST_POSTGRES
#   scripts/postgres.sh stop DIR     stop it at once, as a power cut would
#   scripts/postgres.sh again DIR    start it again, on the same port
#   scripts/postgres.sh programs     print the folder of PostgreSQL's programs; fail if there is none
set -eu

say() { printf 'postgres: %s\n' "$*" >&2; }

# Debian keeps initdb and pg_ctl out of the path, one directory a version.
find_programs() {
    for folder in $(ls -d /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql*/bin 2>/dev/null | sort -rV); do
        if [ -x "$folder/initdb" ] && [ -x "$folder/pg_ctl" ]; then
            printf '%s' "$folder"
            return
        fi
    done
    if command -v initdb >/dev/null 2>&1 && command -v pg_ctl >/dev/null 2>&1; then
        dirname "$(command -v initdb)"
    fi
}

programs() {
    bin=$(find_programs)
    if [ -z "$bin" ]; then
        say "cannot find PostgreSQL's programs initdb and pg_ctl; on Debian or Ubuntu: apt-get install postgresql"
        exit 1
    fi
}

# PostgreSQL refuses to run as root: then the user that its package made does it.
as_owner() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=postgres --regid=postgres --init-groups "$@"
    else
        "$@"
    fi
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start() {
    programs
    mkdir -p "$1"
    if [ "$(id -u)" = 0 ]; then
        chown postgres "$1"
    fi
    free_port >"$1/port"
    cd "$1"
    as_owner "$bin/initdb" -D "$1/data" -U postgres -A trust -E UTF8 --locale=C >"$1/initdb.log"
    run "$1"
    printf 'postgresql://postgres@127.0.0.1:%s/postgres\n' "$(cat "$1/port")"
}

run() {
    as_owner "$bin/pg_ctl" -D "$1/data" -l "$1/data/log" -w -t 60 \
        -o "-p $(cat "$1/port") -c listen_addresses=127.0.0.1 -c unix_socket_directories=''" start >&2
}

again() {
    programs
    cd "$1"
    run "$1"
}

stop() {
    programs
    cd "$1"
    as_owner "$bin/pg_ctl" -D "$1/data" -m immediate -w stop >&2
}

case "${1:-}" in
    start | stop | again) "$1" "${2:?a directory}" ;;
    programs) programs && printf '%s\n' "$bin" ;;
    *) say "usage: scripts/postgres.sh start|stop|again DIR, or programs"; exit 2 ;;
esac
