"""Fuzzes the decoders guided by coverage, with Atheris (libFuzzer): it keeps inputs that reach new code.

    .venv/bin/pip install atheris
    .venv/bin/python -m tests.fuzz.guided                     # the names of the decoders
    .venv/bin/python -m tests.fuzz.guided "masked roster"     # one of them, until it fails or is stopped
    .venv/bin/python -m tests.fuzz.guided "masked roster" -max_total_time=600 corpus/

Options and folders after the name are libFuzzer's. It starts from the valid body of `test_decoders.py`, and stops with
the input if a decoder raises another error than HushRec's, or needs more memory than -rss_limit_mb (1024).
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["protocols"]):
    from protocols.errors import HushRecError
    from tests.fuzz.test_decoders import decoders


def main(arguments: list[str]) -> None:
    """Fuzz the decoder that the first argument names; without one, print the names."""
    found = {decoder.name: decoder for decoder in decoders()}
    if not arguments:
        print("\n".join(found))
        return
    name, *options = arguments
    if name not in found:
        raise SystemExit(f"no decoder {name!r}; there are: {', '.join(found)}")
    decoder = found[name]

    def one_input(body: bytes) -> None:
        with suppress(HushRecError):
            decoder.read(body)

    with tempfile.TemporaryDirectory() as corpus:
        (Path(corpus) / "valid").write_bytes(decoder.valid)
        longest = f"-max_len={2 * len(decoder.valid) + 64}"
        atheris.Setup([sys.argv[0], "-rss_limit_mb=1024", longest, *options, corpus], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
