#!/usr/bin/env bash
# Sets up a clone of this checkout with another Python and runs the part of the tests that depends on it most: packages,
# commands, vectors, files, HTTP.
#
#   scripts/other_python.sh 3.13          the interpreter is python3.13 of the PATH, or pyenv's
#   scripts/other_python.sh --list        the supported versions that this machine has, except that of .venv
set -euo pipefail

cd "$(dirname "$0")/.."
SUPPORTED=(3.11 3.12 3.13)
TESTS=(tests/scripts tests/vectors tests/client_sdk/api tests/client_sdk/cli/test_cli_basics.py tests/client_sdk/lab/data
    tests/aggregator_service/test_deploy.py tests/aggregator_service/test_alerts.py tests/aggregator_service/test_docs.py
    tests/aggregator_service/observability tests/aggregator_service/dashboard/test_facts.py)

interpreter() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/"python$1"; do
        if [[ $("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) == "$1" ]]; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

if [[ ${1:-} == --list ]]; then
    here=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    for version in "${SUPPORTED[@]}"; do
        if [[ $version != "$here" ]] && interpreter "$version" >/dev/null; then echo "$version"; fi
    done
    exit
fi

version=${1:?which version? see: $0 --list}
python=$(interpreter "$version") || {
    echo "no Python $version here" >&2
    exit 1
}
work=$(mktemp -d "${TMPDIR:-/tmp}/hushrec-python.XXXXXX")
trap 'rm -rf "$work"' EXIT
git clone --quiet --no-hardlinks . "$work/hushrec"
cd "$work/hushrec"
PYTHON=$python make --no-print-directory setup
existing=()
for path in "${TESTS[@]}"; do if [[ -e $path ]]; then existing+=("$path"); fi; done
.venv/bin/python -m pytest -q -n logical --maxprocesses 8 --dist loadfile "${existing[@]}"
