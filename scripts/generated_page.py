"""Rewrite or check a generated page of the documentation; for the scripts that make one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

__all__ = ["ROOT", "rewrite_or_check"]

ROOT: Final = Path(__file__).parents[1]


def rewrite_or_check(page: Path, text: str, script: str, description: str | None, arguments: list[str] | None) -> int:
    """Write `text` to `page`, or compare them with `--check`; 1 when `--check` finds a difference, else 0.

    script: file name of the script that made the text. arguments: of the command line; None for the program's own.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if the page differs")
    if not parser.parse_args(arguments).check:
        page.write_text(text, encoding="utf-8")
        return 0
    current = page.exists() and page.read_text(encoding="utf-8") == text
    if not current:
        print(f"{page.name} is out of date; run: python scripts/{script}")
    return int(not current)
