#!/usr/bin/env bash
# Makes examples/web/hushrec/noble.js: ML-KEM-768 and SHAKE of the noble packages in one module, so that the JavaScript
# client needs no bundler and no import map, which workers do not have. Run it after a change of the versions below.
#
#   scripts/noble.sh            write the file
#   scripts/noble.sh --check    say whether the file is what the packages give
#
# Needs npm and the npm registry.
set -euo pipefail

post_quantum=0.7.1
hashes=2.4.0
esbuild=0.28.2
target=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/examples/web/hushrec/noble.js
work=$(mktemp -d "${TMPDIR:-/tmp}/hushrec-noble.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-fund --no-audit --no-save --prefix . \
    "@noble/post-quantum@$post_quantum" "@noble/hashes@$hashes" "esbuild@$esbuild"
cat >entry.js <<'END'
export { ml_kem768 } from "@noble/post-quantum/ml-kem.js";
export { shake128, shake256 } from "@noble/hashes/sha3.js";
END
{
    echo "/** ML-KEM-768 (FIPS 203) and SHAKE (FIPS 202) of @noble/post-quantum $post_quantum and @noble/hashes $hashes, made by"
    echo " * scripts/noble.sh and not to be edited. Their licence:"
    echo " *"
    sed 's/^/ * /; s/ *$//' node_modules/@noble/post-quantum/LICENSE
    echo " */"
    node_modules/.bin/esbuild entry.js --bundle --format=esm --target=es2022 --legal-comments=none --log-level=error
} >noble.js
if [[ ${1:-} == --check ]]; then
    cmp noble.js "$target" && echo "noble.js is what the packages give"
else
    cp noble.js "$target"
fi
