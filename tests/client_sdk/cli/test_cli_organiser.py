"""The organiser's commands on files: key, certificates, and errors that say what to do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from re import fullmatch

import httpx
import pytest

from client_sdk.cli.membership import certificate_choice
from client_sdk.organiser import Organiser
from client_sdk.organiser.app import create_issuer
from client_sdk.organiser.organiser import TrialOrganiser
from client_sdk.rounds.certificates import Issuer, request_for
from client_sdk.store.identity import Identity
from protocols.codec import b64decode
from protocols.crypto.certificates import Certificate, CertifiedRole
from protocols.errors import ParameterError
from tests.support.pages import hushrec


@pytest.fixture
def folder(tmp_path: Path) -> tuple[str, str]:
    """The option of an organiser that was just created."""
    made = ("--folder", str(tmp_path / "organiser"))
    assert hushrec("organiser", "init", *made)[0] == 0
    return made


def asked(tmp_path: Path, role: CertifiedRole = "member") -> Path:
    """A file with the request of somebody new."""
    path = tmp_path / "request.json"
    path.write_text(request_for(Identity.generate(), "movies", role).model_dump_json())
    return path


def test_a_subject_is_certified_for_its_request_and_after_a_revocation_when_it_is_readmitted(
    tmp_path: Path, folder: tuple[str, str]
) -> None:
    of_ann = ("--scope", "movies", "--subject", "ann", *folder)
    certify = ("organiser", "certify", str(asked(tmp_path)), "--subject", "ann", *folder)
    status, out, err = hushrec(*certify)
    assert status == 0, err
    assert json.loads(out)["organiser_key"] == hushrec("organiser", "key", *folder)[1].strip()
    assert "ann" in hushrec("organiser", "list", "--scope", "movies", *folder)[1]
    assert hushrec("organiser", "revoke", *of_ann, "-o", str(tmp_path / "movies.revoked"))[0] == 0
    asked(tmp_path)  # with new keys
    status, out, err = hushrec(*certify)
    assert (status, out, "hushrec organiser readmit" in " ".join(err.split())) == (1, "", True)
    assert hushrec("organiser", "readmit", *of_ann)[:2] == (0, "ann can be certified again in scope movies\n")
    assert hushrec(*certify)[0] == 0
    status, _, err = hushrec("organiser", "readmit", *of_ann)
    assert (status, "no certificate of subject 'ann' was revoked" in " ".join(err.split())) == (1, True)


def test_certify_gives_no_role_that_is_not_stated(tmp_path: Path, folder: tuple[str, str]) -> None:
    certify = ("organiser", "certify", str(asked(tmp_path, "committee")), "--subject", "eve", *folder)
    for stated in ((), ("--role", "member"), ("--role", "holder")):
        status, out, err = hushrec(*certify, *stated)
        assert (status, out) == (1, "")
        assert "the client asks for the role committee" in " ".join(err.split())
        assert "hushrec organiser certify --role committee" in " ".join(err.split())
    assert "eve" not in hushrec("organiser", "list", "--scope", "movies", *folder)[1]
    status, out, err = hushrec(*certify, "--role", "committee")
    assert status == 0, err
    assert Certificate.decode(b64decode(json.loads(out)["certificate"])).role == "committee"
    assert "unknown role 'chair'" in hushrec(*certify, "--role", "chair")[2]


def test_serve_prints_its_scopes_and_address_and_answers_there(tmp_path: Path, folder: tuple[str, str]) -> None:
    command = (sys.executable, "-m", "client_sdk.cli", "organiser", "serve", *folder, "--port", "0")
    with subprocess.Popen([*command, "--scope", "movies", "--scope", "songs"], stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline().decode()
            found = fullmatch(r"issuing certificates for movies, songs at (http://127\.0\.0\.1:\d+); .*\n", line)
            assert found is not None, line
            shown = httpx.get(f"{found[1]}/v1/organiser", timeout=30)
            assert shown.json()["scopes"] == ["movies", "songs"]
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 130
        finally:
            process.kill()


def test_no_certificate_is_valid_for_ever_and_one_of_an_earlier_version_that_is_can_be_shown(tmp_path: Path) -> None:
    made, eve = Organiser.create(tmp_path / "organiser"), Identity.generate()
    with pytest.raises(ParameterError, match=r"3650 days"):
        made.certify("movies", "eve", eve.public_key, eve.mailbox_key, lifetime=10**13)
    with pytest.raises(ParameterError, match=r"3650 days"):
        create_issuer(made, scopes=["movies"], lifetime=10**13)
    assert made.held("movies") == []
    made.issued.record("movies", "member", "eve", eve.public_key, eve.mailbox_key, 8_641_795_511_460)
    status, out, err = hushrec("organiser", "list", "--scope", "movies", "--folder", str(tmp_path / "organiser"))
    assert (status, err) == (0, "")
    assert "after the year 9999" in out


def test_issuer_from_the_environment_is_only_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, path = "http://127.0.0.1:8100", tmp_path / "ann.json"
    monkeypatch.setenv("HUSHREC_ISSUER", address)
    issued = TrialOrganiser("movies").issue(request_for(Identity.generate(), "movies", "member"))
    path.write_text(issued.model_dump_json())
    assert certificate_choice(None, address, None, None) is None  # such as a client that has enrolled before
    assert certificate_choice(path, address, None, None) == issued
    assert certificate_choice(None, address, "movies", "hoc_x") == Issuer(address, "movies", "hoc_x")
    with pytest.raises(ParameterError, match="--issuer needs --scope and --code"):
        certificate_choice(None, address, None, "hoc_x")
    with pytest.raises(ParameterError, match="--certificate or --issuer, not both"):
        certificate_choice(path, "http://127.0.0.1:9", None, None)
