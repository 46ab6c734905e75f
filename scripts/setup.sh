#!/bin/sh
# Makes .venv in the checkout: the locked dependencies (hashes checked), then the project itself, editable.
# A second run returns at once while requirements.lock, pyproject.toml and this script are unchanged.
#
#   PYTHON=python3.12 scripts/setup.sh    choose the interpreter (default: the first usable one of CANDIDATES)
set -eu

cd "$(dirname "$0")/.."
VENV=.venv
STAMP=$VENV/.setup-stamp
LOG=$VENV/setup.log
CANDIDATES="python3 python3.13 python3.12 python3.11"
PACKAGES="aggregator_service client_sdk protocols bench tests"

say() { printf 'setup: %s\n' "$*"; }

fail() {
    printf 'setup: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '         %s\n' "$line" >&2; done
    exit 1
}

# The checkout's path is part of the stamp, because a virtual environment does not survive being moved.
fingerprint() { { pwd -P; cat requirements.lock pyproject.toml scripts/setup.sh; } | cksum; }

# Prints "3.12" for a working interpreter that is new enough, nothing otherwise.
version_of() {
    "$1" -c 'import sys
if sys.version_info >= (3, 11): print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

# Debian and Ubuntu split venv's ensurepip into a package of its own.
has_venv() { "$1" -c 'import venv, ensurepip' >/dev/null 2>&1; }

# Every version the lock is tested with: newer ones may lack wheels, so they are the last resort.
is_tested() { case "$1" in 3.11 | 3.12 | 3.13) return 0 ;; *) return 1 ;; esac; }

find_python() {
    lacking_venv=
    untested=
    for candidate in ${PYTHON:-$CANDIDATES}; do
        version=$(version_of "$candidate")
        if [ -z "$version" ]; then
            continue
        elif ! has_venv "$candidate"; then
            lacking_venv=${lacking_venv:-$version}
        elif is_tested "$version"; then
            FOUND=$candidate
            return
        else
            untested=${untested:-$candidate}
        fi
    done
    if [ -n "$untested" ]; then
        say "only $untested ($(version_of "$untested")) found; the tested versions are 3.11, 3.12 and 3.13"
        FOUND=$untested
    elif [ -n "$lacking_venv" ]; then
        fail "Python $lacking_venv is here, but not its venv support (ensurepip). On Debian or Ubuntu:" \
            "sudo apt-get install python$lacking_venv-venv"
    elif [ -n "${PYTHON:-}" ]; then
        fail "PYTHON=$PYTHON is not a working Python 3.11 or newer"
    else
        fail "no Python 3.11 or newer found (looked for: $CANDIDATES). On Debian 12+ or Ubuntu 24.04+:" \
            "sudo apt-get install python3 python3-venv" \
            "On Ubuntu 22.04:" \
            "sudo apt-get install python3.11 python3.11-venv"
    fi
}

# pip's chatter goes to the log; on failure its last lines are what the reader needs.
quietly() {
    if ! "$@" >>"$LOG" 2>&1; then
        tail -n 15 "$LOG" >&2
        fail "this step failed: $*" "the whole log: $LOG"
    fi
}

# An explicit PYTHON of another version than the environment's means: make it anew.
wants_other_python() {
    [ -n "${PYTHON:-}" ] && [ "$(version_of "$PYTHON")" != "$(version_of $VENV/bin/python)" ]
}

fresh() {
    [ -f "$STAMP" ] && [ -x $VENV/bin/hushrec ] && [ "$(cat "$STAMP")" = "$(fingerprint)" ] &&
        ! wants_other_python
}

# Scripts carry the absolute path of their interpreter, so an environment that was moved or copied is of no use.
belongs_here() {
    grep -qF "$(pwd -P)/$VENV/bin/python" $VENV/bin/pip 2>/dev/null && $VENV/bin/pip --version >/dev/null 2>&1
}

# uv installs the same files, hashes checked, in a fraction of pip's time. It is in the lock like everything else.
install_uv() {
    sed -n '/^uv==/,/^    # via/p' requirements.lock >$VENV/uv.lock
    $VENV/bin/python -m pip install --disable-pip-version-check --no-input --only-binary :all: --require-hashes \
        -r $VENV/uv.lock >>"$LOG" 2>&1
}

make_venv() {
    find_python
    say "making $VENV with $FOUND ($(version_of "$FOUND"))"
    rm -rf $VENV
    "$FOUND" -m venv $VENV || fail "$FOUND could not make a virtual environment (message above)"
}

if fresh; then
    exit 0
fi
if ! belongs_here || wants_other_python; then
    make_venv
fi
rm -f "$STAMP"
: >"$LOG"
started=$(date +%s)
say "installing $(grep -c '^[a-z]' requirements.lock) locked packages"
if install_uv; then
    install() { quietly $VENV/bin/uv pip install --python $VENV/bin/python --no-progress --compile-bytecode "$@"; }
else
    say "uv cannot be installed: pip takes a minute or two"
    install() { quietly $VENV/bin/python -m pip install --disable-pip-version-check --no-input "$@"; }
fi
install --only-binary :all: --require-hashes -r requirements.lock
say "installing the project"
install --no-deps --no-build-isolation --editable .
# Where PYTHONDONTWRITEBYTECODE is set, every process would compile all it imports: 2 s of a server's start.
quietly $VENV/bin/python -m compileall -q $PACKAGES
fingerprint >"$STAMP"
say "ready in $(($(date +%s) - started)) s: $VENV/bin/hushrec, $VENV/bin/hushrec-server"
