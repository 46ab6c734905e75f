"""The public surface of the SDK: `__all__`, the tree of errors, and what errors say to do."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType

import pytest

import client_sdk
import protocols.errors
from client_sdk import Client, ClientOptions, Identity, MemoryStore, errors
from client_sdk.api.retry import RetryPolicy
from client_sdk.errors import ConnectionFailed, ContractBroken, GaveUp, LocalFileError
from protocols.errors import CodecError, EnvelopeError, KeyringError
from protocols.messages.base import PROBLEM_TYPES
from tests.support.server import free_port

ROOT = Path(__file__).parents[2]


def section(page: Path, heading: str) -> str:
    """Return the text below a heading of a page."""
    return page.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_every_public_name_is_listed_once_with_its_stability() -> None:
    """Type checkers and programs read the same list, and each of its lines says how stable the name is."""
    listed = (Path(client_sdk.__file__).parent / "__init__.pyi").read_text()
    imports = [line for line in listed.splitlines() if line.startswith("from ")]
    assert len(client_sdk.__all__) == len(set(client_sdk.__all__)) == len(imports)
    meanings = re.findall(r"^\| (\w+) \|", section(ROOT / "docs" / "sdk.md", "What stays"), re.M)
    assert {client_sdk.STABILITY[name] for name in client_sdk.__all__} == set(meanings) - {"word"}
    for name in client_sdk.__all__:
        if name not in ("Event", "Progress"):  # types, which have no name of their own
            assert getattr(client_sdk, name).__name__ == name
        assert getattr(client_sdk, name) is not None
    assert set(client_sdk.__all__) <= set(dir(client_sdk))
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        client_sdk.Cleint  # noqa: B018 - the access is the test


def test_a_device_loads_neither_the_laboratory_nor_mechanisms_that_its_tasks_do_not_use() -> None:
    code = "import sys\nfrom client_sdk import Client\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    ours = [name for name in loaded if name.partition(".")[0] == "client_sdk"]
    theirs = [name for name in loaded if name.partition(".")[0] == "protocols"]
    assert not {name for name in loaded if name.startswith("client_sdk.lab")} and "scipy" not in loaded
    assert len(ours) <= 40 and len(theirs) <= 60, (ours, theirs)


@pytest.mark.parametrize("module", [errors, protocols.errors], ids=lambda module: module.__name__)
def test_the_tree_in_the_docstring_shows_every_error(module: ModuleType) -> None:
    """And the status and the problem type of every problem."""
    shown = dict(re.findall(r"^[ │├└─]*── (\w+)(.*)$", module.__doc__ or "", re.MULTILINE))
    defined = {
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == module.__name__
    }
    assert defined - {"HushRecError"} == set(shown) - {"HushRecError"}
    for slug, (status, _) in PROBLEM_TYPES.items() if module is errors else ():
        assert shown[errors.PROBLEM_ERRORS[slug].__name__].split() == [str(status), slug]


def test_a_remedy_is_a_note_and_no_part_of_the_sentence() -> None:
    """An error can replace or leave out that of its class; one of several attempts keeps that of the last answer."""
    error = EnvelopeError("the envelope does not open")
    assert str(error) == "the envelope does not open"
    assert error.remedy is not None and error.remedy in "".join(traceback.format_exception(error))
    assert EnvelopeError.remedy != KeyringError.remedy
    assert LocalFileError("x", remedy="Free space.").__notes__ == ["Free space."]
    assert LocalFileError("x", remedy="").remedy is CodecError("x").remedy is None
    last = ContractBroken("GET", "https://example.org/v1", 503, "a page of a proxy")
    assert GaveUp(3, last).remedy == ContractBroken.remedy


def test_a_server_that_does_not_answer_is_named_in_plain_words() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with (
        Client(url, Identity.generate(), MemoryStore(), options=ClientOptions(RetryPolicy(attempts=1))) as client,
        pytest.raises(GaveUp) as caught,
    ):
        client.join(invitation="hri_x")
    asked = "is the server running, is the address right?"
    assert str(caught.value) == f"no answer from {url} after 1 attempt: connection refused; {asked}"
    assert caught.value.remedy == ConnectionFailed.remedy
