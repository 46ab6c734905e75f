"""docs/masked.md: every test that it names exists, every attack has one, and its lengths are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from protocols.sums.masked import messages

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "masked.md").read_text(encoding="utf-8")


def test_every_test_that_the_page_names_exists() -> None:
    folders = (
        "protocols/sums/masked",
        "vectors",
        "client_sdk/rounds",
        "client_sdk/store",
        "simulation/lying_server",
        "aggregator_service/rounds",
    )
    files = [path for folder in folders for path in (ROOT / "tests" / folder).glob("test_*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named
    assert named <= set(re.findall(r"^def (test_\w+)\(", code, re.M))


def test_every_attack_is_on_the_page() -> None:
    folder = ROOT / "tests" / "protocols" / "sums" / "masked"
    attacks = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("test_masked_attacks*.py"))
    tried = set(re.findall(r"^def (test_\w+)\(", attacks, re.M)) - {"test_states_say_nothing"}
    assert len(tried) > 12
    assert tried <= set(re.findall(r"`(test_\w+)`", PAGE))


def test_the_lengths_on_the_page() -> None:
    """The column for n=100, k=22."""
    rows = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| ([\d,]+) \|$", PAGE, re.M))
    lengths = {name: int(value.replace(",", "")) for name, value in rows.items()}
    assert lengths["advertisement"] == messages.ADVERTISEMENT_BYTES
    assert lengths["shares"] == messages.share_bytes(22)
    assert lengths["inbox (download)"] == messages.inbox_bytes(100, 22)
    assert lengths["survivors (download)"] == messages.set_bytes(100)
    assert lengths["reply"] == messages.reply_bytes(22)
    assert f"64, {messages.confirmations_bytes(100):,}" in PAGE
