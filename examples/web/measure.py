"""Bytes and milliseconds of a client in a browser: rounds with a page in Chromium beside the demo's fleet.

    python -m examples.web.measure [--items 60] [--rounds 3] [--clients 20] [--mechanism masked]

Needs Chromium and Playwright (`pip install playwright`), as the tests do. --items: more items than the page shows films
make contributions longer; 3706 are those of MovieLens-1M.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from examples.web.demo import WebDemo, running_demo

_SECONDS = 300
_START = """async () => {
    window.reports = [];
    document.addEventListener("hushrec:contribution", ({ detail }) => window.reports.push(detail));
    for (const box of [...document.querySelectorAll("#list input")].slice(0, 12)) box.click();
    document.getElementById("start").click();
}"""


def measure(demo: WebDemo, page: Page, rounds: int) -> list[dict[str, Any]]:
    """Let the page take part in `rounds` rounds and return its reports, in order of the rounds."""
    page.goto(demo.page.origin)
    page.get_by_text("Your device takes part when you say so.").wait_for()
    fleet = threading.Thread(target=demo.fleet.run, kwargs={"rounds": rounds})
    fleet.start()
    page.evaluate(_START)
    for _ in range(10 * _SECONDS):
        if page.evaluate("window.reports.length") >= rounds:
            break
        page.wait_for_timeout(100)
    fleet.join()
    return list(page.evaluate("window.reports"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, play the rounds and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=60)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mechanism", choices=("oneshot", "masked"), default="oneshot")
    given = parser.parse_args(arguments)
    browser_path = os.environ.get("HUSHREC_CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        shape = {"items": given.items}
        started = running_demo(Path(folder) / "server", 0, given.clients, given.rounds, shape, 120.0, given.mechanism)
        with started as demo:
            reports = measure(demo, browser.new_page(), given.rounds)
        print(f"Chromium {browser.version}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
        browser.close()
    for report in reports:
        times = ", ".join(f"{name} {milliseconds:.0f} ms" for name, milliseconds in report["times"].items())
        print(f"round {report['round']}: {report['bytes']:,} bytes of {len(report['steps']):,} values; {times}")
    return 0 if len(reports) == given.rounds else 1


if __name__ == "__main__":
    sys.exit(main())
