"""The organiser's commands on files: key, certificates, and errors that say what to do."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from re import fullmatch

import httpx
import pytest
from typer.testing import CliRunner

from client_sdk.cli import app
from client_sdk.cli.membership import certificate_choice
from client_sdk.organiser import Organiser
from client_sdk.organiser.app import create_issuer
from client_sdk.organiser.organiser import TrialOrganiser
from client_sdk.rounds.certificates import Issuer, request_for
from client_sdk.store.identity import Identity
from protocols.codec import b64decode
from protocols.crypto.certificates import Certificate, CertifiedRole
from protocols.errors import ParameterError


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_certify_answers_a_request_file(tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path / "organiser"))
    status, key, _ = run("organiser", "init", *folder)
    assert status == 0
    assert run("organiser", "key", *folder) == (0, key, "")
    request = tmp_path / "ann.request.json"
    request.write_text(request_for(Identity.generate(), "movies", "member").model_dump_json())
    status, out, err = run("organiser", "certify", str(request), "--subject", "ann", *folder)
    assert status == 0, err
    assert json.loads(out)["organiser_key"] == key.strip()
    assert "ann" in run("organiser", "list", "--scope", "movies", *folder)[1]


def test_a_revoked_subject_is_certified_again_after_readmit(tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path / "organiser"))
    run("organiser", "init", *folder)
    of_ann = ("--scope", "movies", "--subject", "ann", *folder)
    request = tmp_path / "ann.request.json"
    certify = ("organiser", "certify", str(request), "--subject", "ann", *folder)
    request.write_text(request_for(Identity.generate(), "movies", "member").model_dump_json())
    assert run(*certify)[0] == 0
    assert run("organiser", "revoke", *of_ann, "-o", str(tmp_path / "movies.revoked"))[0] == 0
    request.write_text(request_for(Identity.generate(), "movies", "member").model_dump_json())
    status, out, err = run(*certify)
    assert (status, out, "hushrec organiser readmit" in " ".join(err.split())) == (1, "", True)
    assert run("organiser", "readmit", *of_ann)[:2] == (0, "ann can be certified again in scope movies\n")
    assert run(*certify)[0] == 0
    status, _, err = run("organiser", "readmit", *of_ann)
    assert (status, "no certificate of subject 'ann' was revoked" in " ".join(err.split())) == (1, True)


@pytest.mark.parametrize("role", ["holder", "committee"])
def test_certify_gives_no_role_that_is_not_stated(tmp_path: Path, role: CertifiedRole) -> None:
    folder = ("--folder", str(tmp_path / "organiser"))
    run("organiser", "init", *folder)
    request = tmp_path / "eve.request.json"
    request.write_text(request_for(Identity.generate(), "movies", role).model_dump_json())
    certify = ("organiser", "certify", str(request), "--subject", "eve", *folder)
    for stated in ((), ("--role", "member"), ("--role", "committee" if role == "holder" else "holder")):
        status, out, err = run(*certify, *stated)
        assert (status, out) == (1, "")
        assert f"the client asks for the role {role}" in " ".join(err.split())
        assert f"hushrec organiser certify --role {role}" in " ".join(err.split())
    assert "eve" not in run("organiser", "list", "--scope", "movies", *folder)[1]
    status, out, err = run(*certify, "--role", role)
    assert status == 0, err
    assert Certificate.decode(b64decode(json.loads(out)["certificate"])).role == role
    assert "unknown role 'chair'" in run(*certify, "--role", "chair")[2]


def test_certify_reports_a_missing_or_wrong_request_file(tmp_path: Path) -> None:
    status, _, err = run("organiser", "certify", str(tmp_path / "missing.json"), "--subject", "ann")
    assert status == 1
    assert err.startswith("error: cannot read the certificate request")
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    status, _, err = run("organiser", "certify", str(wrong), "--subject", "ann")
    assert status == 1
    assert "hushrec certificate request" in err


def test_missing_key_names_the_command_that_creates_it(tmp_path: Path) -> None:
    status, _, err = run("organiser", "key", "--folder", str(tmp_path / "missing"))
    assert status == 1
    assert "does not exist" in err
    assert "hushrec organiser init" in " ".join(err.split())


def test_serve_prints_its_scopes_and_address_and_answers_there(tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path / "organiser"))
    run("organiser", "init", *folder)
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


def test_serve_on_a_used_port_says_so(tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path / "organiser"))
    run("organiser", "init", *folder)
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        status, out, err = run("organiser", "serve", "--scope", "movies", "--port", str(port), *folder)
    assert (status, out) == (1, "")
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in err
    assert "--port" in err
    assert "issuing" not in err


@pytest.mark.parametrize("days", ["100000000", "3651", "inf", "nan", "0"])
def test_certify_refuses_a_validity_that_no_certificate_has(tmp_path: Path, days: str) -> None:
    folder = ("--folder", str(tmp_path / "organiser"))
    run("organiser", "init", *folder)
    request = tmp_path / "eve.request.json"
    request.write_text(request_for(Identity.generate(), "movies", "member").model_dump_json())
    status, out, err = run("organiser", "certify", str(request), "--subject", "eve", "--days", days, *folder)
    assert (status, out) == (2, "")
    assert "Invalid value for '--days': must be at" in err
    assert "eve" not in run("organiser", "list", "--scope", "movies", *folder)[1]
    status, _, err = run("organiser", "serve", "--scope", "movies", "--days", days, *folder)
    assert (status, "--days" in err) == (2, True)


def test_an_organiser_refuses_a_validity_that_no_certificate_has(tmp_path: Path) -> None:
    made = Organiser.create(tmp_path / "organiser")
    eve = Identity.generate()
    with pytest.raises(ParameterError, match=r"3650 days"):
        made.certify("movies", "eve", eve.public_key, eve.mailbox_key, lifetime=10**13)
    with pytest.raises(ParameterError, match=r"3650 days"):
        create_issuer(made, scopes=["movies"], lifetime=10**13)
    assert made.held("movies") == []


def test_list_and_show_print_certificates_that_an_earlier_version_made_valid_for_ever(tmp_path: Path) -> None:
    made = Organiser.create(tmp_path / "organiser")
    eve = Identity.generate()
    made.issued.record("movies", "member", "eve", eve.public_key, eve.mailbox_key, 8_641_795_511_460)
    status, out, err = run("organiser", "list", "--scope", "movies", "--folder", str(tmp_path / "organiser"))
    assert (status, err) == (0, "")
    assert "after the year 9999" in out


@pytest.mark.parametrize("scope", ["", "s" * 101])
def test_codes_and_serve_refuse_a_scope_that_no_certificate_can_have(tmp_path: Path, scope: str) -> None:
    folder = ("--folder", str(tmp_path / "organiser"))
    run("organiser", "init", *folder)
    for command in ("codes", "serve"):
        status, out, err = run("organiser", command, "--scope", scope, *folder)
        assert (status, out) == (1, "")
        assert "the name of a scope must have 1 to 100 bytes" in err


def test_issuer_from_the_environment_is_only_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "http://127.0.0.1:8100"
    monkeypatch.setenv("HUSHREC_ISSUER", address)
    issued = TrialOrganiser("movies").issue(request_for(Identity.generate(), "movies", "member"))
    path = tmp_path / "ann.json"
    path.write_text(issued.model_dump_json())
    assert certificate_choice(None, address, None, None) is None  # such as a client that has enrolled before
    assert certificate_choice(path, address, None, None) == issued
    assert certificate_choice(None, address, "movies", "hoc_x") == Issuer(address, "movies", "hoc_x")
    with pytest.raises(ParameterError, match="--issuer needs --scope and --code"):
        certificate_choice(None, address, None, "hoc_x")
    with pytest.raises(ParameterError, match="--certificate or --issuer, not both"):
        certificate_choice(path, "http://127.0.0.1:9", None, None)
