#!/bin/sh
# Regenerates requirements.lock: every extra but `mutants` and `peers`, all supported Pythons and platforms, hashes, no index address.
# uv lives in an environment of its own, so that the resolver never becomes a dependency of the project.
#
#   scripts/lock.sh              keep the locked versions that still fit
#   scripts/lock.sh --upgrade    take the newest versions (any uv pip compile option passes through)
set -eu

cd "$(dirname "$0")/.."
TOOLS=.venv-lock
if ! [ -x $TOOLS/bin/uv ]; then
    "${PYTHON:-python3}" -m venv $TOOLS
    $TOOLS/bin/pip install --quiet --disable-pip-version-check uv
fi
$TOOLS/bin/uv pip compile pyproject.toml --output-file requirements.lock --quiet \
    --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
    --custom-compile-command 'make lock' \
    --extra ckks --extra lab --extra server --extra organiser --extra demo --extra paillier --extra postgres --extra s3 --extra cluster --extra otel --extra plots --extra privacy --extra data --extra bench --extra dev "$@"
printf 'lock: %s packages in requirements.lock\n' "$(grep -c '^[a-z]' requirements.lock)"
