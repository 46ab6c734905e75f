"""Makes the JSON test vectors again: `python -m tests.vectors.generate`. It uses no secret key or randomness.

Every file is one object: `about`, and lists of cases. Bytes are lowercase hex, large integers are decimal strings,
floats are written so that they read back exactly. A case with `error` must be refused with an error of that name.

The inputs of the cases stand in the files only. The modules beside this one have a function for each list of cases:
its parameters name the inputs of a case, and it returns all else (`common.vectors`). After a deliberate change run
the generator and read the difference; the body of a case that must be refused is an input, to be mended by hand where
its layout changed. To add a case, write its inputs into the file and run the generator; to add a file, write `about`
and the inputs, and register functions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.vectors import basics, identities, privacy, receipts, recipes, rounds, sums
from tests.vectors.common import FILES, remade

MODULES = (basics, identities, privacy, receipts, recipes, rounds, sums)
"""They register what makes each file."""


def render(name: str) -> str:
    """Return the text of a vector file, made again."""
    return json.dumps(remade(name), indent=1, ensure_ascii=False, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    return bytes(value).hex() if isinstance(value, bytes | memoryview) else value.tolist()


if __name__ == "__main__":
    for file_name in FILES:
        (Path(__file__).parent / file_name).write_text(render(file_name), encoding="utf-8")
