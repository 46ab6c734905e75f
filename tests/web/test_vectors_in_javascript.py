"""hushrec.js reproduces every JSON vector, in Node and in Chromium."""

from __future__ import annotations

import functools
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import chromium
from tests.support.needs import required
from tests.vectors import generate

ROOT = Path(__file__).parents[2]
FILES = sorted(generate.FILES)


def test_every_vector_in_node() -> None:
    command = [required("node"), "--test", "--test-reporter=tap", "tests/web/vectors.test.mjs"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert f"# pass {len(FILES) + 1}" in ran.stdout


class _Quiet(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on localhost, which browsers trust with WebCrypto as they do https."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


_RUN = """async (names) => {
    const { run } = await import("/tests/web/vectors.mjs");
    const read = async (name) => (await fetch(`/tests/vectors/${name}`)).json();
    const results = {};
    for (const name of names) {
        try { results[name] = await run(name, read); } catch (error) { results[name] = String(error.stack); }
    }
    return results;
}"""


def test_every_vector_in_chromium() -> None:
    with served(ROOT) as url, chromium() as browser:
        page = browser.new_page()
        page.goto(f"{url}/examples/web/README.md")
        results = page.evaluate(_RUN, FILES)
    assert set(results) == set(FILES)
    assert all(isinstance(count, int) and count > 0 for count in results.values()), results


@pytest.mark.parametrize("name", ["masks.json", "model_digest.json", "certificates.json"])
def test_a_wrong_vector_fails(name: str) -> None:
    """The runner compares: one changed digit is found."""
    script = f"""
        import {{ readFileSync }} from "node:fs";
        import {{ run }} from "{ROOT.as_posix()}/tests/web/vectors.mjs";
        const read = async (file) => {{
            const text = readFileSync("{ROOT.as_posix()}/tests/vectors/" + file, "utf8");
            if (file !== "{name}") return JSON.parse(text);
            const at = text.search(/[0-9a-f]{{40}}|"elements": \\[\\s*"[0-9]/) + 30;
            const digit = text.slice(at).search(/[0-9]/) + at;
            return JSON.parse(text.slice(0, digit) + ((Number(text[digit]) + 1) % 10) + text.slice(digit + 1));
        }};
        await run("{name}", read);
    """
    command = [required("node"), "--input-type=module", "--eval", script]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode != 0, "the altered vector was accepted"
    assert re.search(r"is not|CertificateError", ran.stderr), ran.stderr[-1000:]
