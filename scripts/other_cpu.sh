#!/usr/bin/env bash
# Runs the test vectors as on an older processor: numpy without its optional instructions, OpenBLAS with the kernels of a
# Pentium 4. States, sums and ciphertexts must be the same bytes; floats as near as the vectors say.
#
#   scripts/other_cpu.sh
set -euo pipefail

cd "$(dirname "$0")/.."
features=$(.venv/bin/python -c '
import numpy
print(",".join(numpy.show_config("dicts")["SIMD Extensions"].get("found", [])))')
echo "numpy without: ${features:-nothing, it found no optional instructions}"
env OPENBLAS_CORETYPE=Prescott NPY_DISABLE_CPU_FEATURES="$features" \
    .venv/bin/pytest -q -n logical --maxprocesses 4 tests/vectors tests/protocols/recipes
