"""The command that installs an extra names the place that this installation came from."""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any

import pytest

from client_sdk.cli.install import install_command

WHEEL = "https://releases.example.org/hushrec-0.1.0-py3-none-any.whl"
SOURCE = {"url": "https://example.org/hushrec.git", "vcs_info": {"vcs": "git", "commit_id": "1f" * 20}}


class Installed:
    version = "0.1.0"

    def __init__(self, origin: dict[str, Any] | None) -> None:
        self._origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._origin is None else json.dumps(self._origin)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'hushrec[ckks]==0.1.0'"),
        ({"url": "file:///src/hush%20rec", "dir_info": {"editable": True}}, "pip install -e '/src/hush rec[ckks]'"),
        ({"url": "file:///src/hushrec", "dir_info": {}}, "pip install '/src/hushrec[ckks]'"),
        ({"url": WHEEL, "archive_info": {}}, f"pip install 'hushrec[ckks] @ {WHEEL}'"),
        (SOURCE, f"pip install 'hushrec[ckks] @ git+https://example.org/hushrec.git@{'1f' * 20}'"),
    ],
)
def test_an_extra_comes_from_where_the_installation_came_from(
    origin: dict[str, Any] | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: {"hushrec": Installed(origin)}[name])
    assert install_command("ckks") == command


def test_this_installation_names_a_place_that_exists() -> None:
    assert install_command().startswith("pip install ")
    assert "[" not in install_command()
