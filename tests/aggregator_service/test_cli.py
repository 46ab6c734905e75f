"""The command `hushrec-server`, tested while a server runs on the same data directory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from aggregator_service.storage.database import Database
from tests.support.api import Api, TestMember, TestTask, serving, signed_enrolment
from tests.support.forked import ForkedProcess
from tests.support.replicas import wait_until
from tests.support.server import free_port, running_aggregator
from tests.support.tasks import TRIAL
from tests.support.world import round_row


class Command:
    def __init__(self, data_dir: Path, run: Callable[..., str]) -> None:
        self.data_dir, self._run = data_dir, run

    def __call__(self, *arguments: str, status: int = 0) -> str:
        """Return the output of a command, or its error text if a failure is expected."""
        return self._run(*arguments, status=status)

    def token(self, *arguments: str) -> str:
        """Return the token that a command wrote to a file, as it does where its output is no terminal."""
        path = Path(self(*arguments).strip())
        assert path.stat().st_mode & 0o777 == 0o600
        return path.read_text().strip()


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., str]) -> Command:
    monkeypatch.setenv("HUSHREC_DATA_DIR", str(tmp_path / "data"))
    return Command(tmp_path / "data", run)


def test_a_task_and_its_rounds_are_operated_while_the_server_runs(command: Command) -> None:
    token = command.token("init")
    assert token.startswith("hro_")
    with running_aggregator(command.data_dir) as server:
        made = command(
            "task", "create", "movies", "--recipe", "fedmf", "--mechanism", "plain",
            "-r", "items=5", "-r", "dim=3", "-s", "cohort_size=2", "-s", "min_clients=2", "-s", "rounds=2",
        )  # fmt: skip
        task_id = json.loads(made)["task_id"]
        invitation = command("invite", "movies", "--uses", "3", "--expires-seconds", "7200").strip()
        (line,) = command("invitation", "list", "movies").splitlines()
        invitation_id, *rest = line.split("  ")
        assert (rest, invitation in line) == (["member", "used 0 of 3", "open for 2.0 hours"], False)
        assert command("member", "list", "movies") == ""
        api = Api(server.url, token)  # the token of `init` is good
        task = TestTask(api, api.http.get(f"/v1/tasks/{task_id}", headers=api.operator).json())
        enrolled = [api.http.post("/v1/enrolments", json=signed_enrolment(invitation)).json() for _ in range(2)]
        members = [TestMember(task, one["client_id"], one["token"]) for one in enrolled]
        task.wait_round(1, "collecting")  # the server noticed the task, which another process created
        assert "movies" in command("task", "list")
        output = command("round", "extend", "movies", "1", "--seconds", "600")
        assert output.startswith("movies  round 1  collecting  ")
        assert 600 < task.round(1)["seconds_left"] <= float(output.split("  ")[3].split()[0]) + 1
        assert "at most 604,800 seconds" in command("round", "extend", "movies", "1", "--seconds", "604800", status=1)
        assert "seconds" in command("round", "extend", "movies", "1", "--seconds", "0", status=1)
        assert "no such round" in command("round", "abort", "movies", "9", status=1)
        assert command("round", "abort", task_id, "1") == "movies  round 1  failed: aborted by an operator\n"
        assert "failed" in command("round", "extend", "movies", "1", "--seconds", "5", status=1)
        task.wait_round(2, "collecting")
        current = api.http.get(f"{task.path}/rounds/current", headers=members[0].auth)
        assert json.loads(command("task", "show", task_id))["members"] == 2
        assert "closed" in command("task", "close", "movies")
        # the command ends a long poll of the running server
        waiting = {**members[0].auth, "If-None-Match": current.headers["etag"]}
        woken = api.http.get(f"{task.path}/rounds/current?wait=10", headers=waiting)
        assert (woken.status_code, woken.json()["state"]) == (200, "failed")
        command("member", "revoke", "movies", members[0].client_id)
        assert members[0].get("").status_code == 401
        api.close()
    listed = command("member", "list", "movies").splitlines()
    assert listed == [
        f"{one.client_id}  member  {now}" for one, now in zip(members, ("revoked", "active"), strict=True)
    ]
    assert command("invitation", "revoke", "movies", invitation_id).strip().endswith("revoked")
    assert command("invitation", "list", "movies").strip().endswith("revoked")


def run_apart(arguments: list[str], environment: dict[str, str], output: IO[bytes]) -> ForkedProcess:
    """Start `hushrec-server` in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HUSHREC_")}
    return ForkedProcess("server", "aggregator_service.cli", arguments, kept | environment, output)


def test_the_first_start_writes_a_token_once_and_not_to_its_log(tmp_path: Path) -> None:
    data, output = tmp_path / "data", tmp_path / "output"
    for written in (1, 0):
        with output.open("wb") as file:
            server = run_apart(["serve"], {"HUSHREC_DATA_DIR": str(data), "HUSHREC_PORT": str(free_port())}, file)
            try:
                wait_until(lambda: "running on" in output.read_text(), "the server has started")
                server.terminate()
                assert server.wait(30) == 0
            finally:
                server.kill()  # no effect if it has already ended
        assert "hro_" not in output.read_text()
        assert output.read_text().count("operator token (given once") == written
    (path,) = data.glob("*.token")
    assert path.stat().st_mode & 0o777 == 0o600
    token = path.read_text().strip()
    assert token.startswith("hro_")
    assert token.encode() not in b"".join(path.read_bytes() for path in data.glob("hushrec.db*"))


def test_a_token_is_printed_on_a_terminal_only(tmp_path: Path) -> None:
    """With a terminal as its output, `init` prints the token; the file is for pipes and logs, or where it is named."""
    terminal, end = os.openpty()
    with os.fdopen(end, "wb") as output:
        assert run_apart(["init"], {"HUSHREC_DATA_DIR": str(tmp_path / "data")}, output).wait(60) == 0
    assert os.read(terminal, 1000).startswith(b"hro_")
    assert not list((tmp_path / "data").glob("*.token"))
    os.close(terminal)


def test_a_named_token_file_replaces_what_was_there(command: Command, tmp_path: Path) -> None:
    shown, link = tmp_path / "shown", tmp_path / "link"
    shown.write_text("other")
    shown.chmod(0o644)
    link.symlink_to(shown)
    assert command("init", "--token-file", str(shown)) == f"{shown}\n"
    assert shown.stat().st_mode & 0o777 == 0o600
    token = shown.read_text()
    for again in (("init",), ("token", "create", "ada")):  # the first token would be lost, and stay valid
        refused = command(*again, "--token-file", str(shown), status=1)
        assert f"{shown} holds the token of 'admin'" in refused
    assert shown.read_text() == token
    command("token", "create", "ada", "--token-file", str(tmp_path / "ada"))
    command("token", "rotate", "admin", "--token-file", str(shown))
    assert shown.read_text() != token
    before = shown.read_text()
    command("token", "rotate", "ada", "--token-file", str(link))
    assert not link.is_symlink()
    assert shown.read_text() == before
    inside = shown / "folder" / "file"
    refused = command("token", "create", "bob", "--token-file", str(inside), status=1)
    assert refused == f"hushrec-server: cannot create the folder {inside.parent} for the token: Not a directory\n"
    assert [line.split("  ")[0] for line in command("token", "list").splitlines()] == ["ada", "admin"]


def test_the_first_token_goes_into_a_folder_that_is_missing(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "etc" / "hushrec" / "admin.token"
    assert command("init", "--token-file", str(path)) == f"{path}\n"
    assert path.read_text().startswith("hro_")
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)


def test_lists_are_printed_as_json(command: Command) -> None:
    command("init")
    command(*COLR, "-r", "items=5")
    command("invite", "x", "--uses", "3")
    (task,) = json.loads(command("task", "list", "--json"))
    assert task == json.loads(command("task", "show", "x"))
    assert task["waiting_for"] == "the key holder: none has enrolled, and without its keys no member can contribute"
    (invitation,) = json.loads(command("invitation", "list", "x", "--json"))
    assert (invitation["role"], invitation["used"], invitation["uses"]) == ("member", 0, 3)
    (token,) = json.loads(command("token", "list", "--json"))
    assert (token["name"], token["role"], token["expires_seconds"]) == ("admin", "admin", None)
    with running_aggregator(command.data_dir) as server:
        api = Api(server.url, command("token", "create", "test", "--role", "admin").strip())
        api.create_task("y", cohort=2).enrol(2)
        api.close()
    members = json.loads(command("member", "list", "y", "--json"))
    assert [one["client_id"] for one in members] == [
        line.split()[0] for line in command("member", "list", "y").splitlines()
    ]
    assert all(len(one["identity_key"]) == 43 for one in members)  # as organiser list --json has it


def test_tokens_are_created_listed_rotated_and_revoked(command: Command) -> None:
    first = command.token("init")
    made = command("token", "create", "grafana", "--role", "read-only", "--expires-days", "90").strip()
    assert made.startswith("hro_")  # as `invite` prints the invitation: a file made with > holds the token
    listed = command("token", "list").splitlines()
    assert [line.split("  ")[:2] for line in listed] == [["admin", "admin"], ["grafana", "read-only"]]
    assert [line.split("  ")[3] for line in listed] == ["does not expire", "expires in 90.0 days"]
    assert "already" in command("token", "create", "grafana", status=1)
    assert command("token", "rotate", "grafana").strip() not in ("", made)
    assert not (command.data_dir / "grafana.token").exists()
    assert "revoked" in command("token", "revoke", "grafana")
    assert "no operator's token" in command("token", "revoke", "grafana", status=1)
    assert command.token("init") != first  # another admin, admin-2
    assert [line.split("  ")[0] for line in command("token", "list").splitlines()] == ["admin", "admin-2"]


@pytest.mark.parametrize(
    ("options", "recipe", "chosen"),
    [
        (
            ("--items", "100", "--clients", "400", "--interactions", "8000"),
            "privirec-k",
            {"components": 4, "item_exponent": 0.3125, "krylov": True},
        ),
        ((), "colr", {"rank": 4}),
        (("--ratings",), "rfrec", {"item_bias": "means", "user_penalty": 3.0}),
        (("--epsilon", "8", "--budget", "0.004"), "privirec-k", {"components": 20, "iterations": 3}),
        (("--epsilon", "8", "--delta", "1e-4", "--mechanism", "ckks"), "colr", {"item_bias": "counts", "rank": 4}),
    ],
)
def test_the_advised_command_creates_a_task(
    command: Command, options: tuple[str, ...], recipe: str, chosen: dict[str, object]
) -> None:
    command("init")
    size = ("--items", "50", "--clients", "40", "--interactions", "400")
    printed = command("task", "advise", *size, *options)
    assert printed.startswith(f"{recipe}: ")
    words = printed.splitlines()[-1].replace("NAME", "films").replace("KEY", TRIAL.pin.key).split()[1:]
    view = json.loads(command(*words))
    assert view["recipe"]["name"] == recipe
    assert view["recipe"]["parameters"].items() >= chosen.items()
    of_degrees = "--clients" in options  # 3 groups of 133, in which an item has 27 owners
    assert view["schedule"]["cohort_size"] == (399 if of_degrees else 40)
    assert ("groups" in view["mechanism"]["parameters"]) == of_degrees
    said = [line for line in printed.splitlines() if line.startswith("what the sums say: ")]
    assert said and all(line.removeprefix("what the sums say: ") in view["warnings"] for line in said)


def test_advice_refuses_what_fits_nowhere(command: Command) -> None:
    movielens = ("--items", "1682", "--clients", "943", "--interactions", "100000")
    large = ("--items", "3706", "--clients", "100000", "--interactions", "11600000", "--epsilon", "2")
    masked = command("task", "advise", *movielens, "--budget", "0.014", "-m", "dropout=0.1")
    assert "--mechanism masked -m dropout=0.1 -s cohort_size=100" in masked and "clients = 100" in masked
    assert "sampling" not in masked.splitlines()[-1] and "cohorts take turns, so that many sums say in" in masked
    assert "in 3 groups it spoils little (-m groups=3 -s cohort_size=102 -s min_clients=" in masked
    alone = command("task", "advise", *movielens, "--budget", "0.014", "-m", "groups=1")
    assert "--mechanism masked -m groups=1 -s cohort_size=100" in alone and "in 3 groups" not in alone
    assert "--epsilon 2 --delta 3.16e-06 --client-sums 5" in command("task", "advise", *large)
    for size, wrong, words in (
        (movielens, ("--budget", "0.001"), "more than the budget"),
        (large, ("--mechanism", "plain"), "plain sums"),
        (large, ("--ratings",), "no recipe of ratings"),
        (large, ("--clients", "1"), "users"),
    ):
        assert words in command("task", "advise", *size, *wrong, status=1)


def test_advice_splits_the_sum_of_degrees_where_lists_are_long_enough(command: Command) -> None:
    """As many members of each group stay as of a whole cohort otherwise, so the same vectors are safe."""
    command("init")
    long = ("task", "advise", "--items", "1682", "--clients", "943", "--interactions", "100000")
    printed = command(*long)
    assert "the sum of item degrees is in 3 groups, so that one member that lies in it does not own an" in printed
    assert "3 sums of counts over 157 to 314 clients" in printed and "at most 117 are safe" in printed
    last = printed.splitlines()[-1]
    assert "--mechanism masked -m groups=3 -s cohort_size=942 -s rounds=6 -s min_clients=157 -s min_diff" in last
    words = last.replace("NAME", "films").replace("KEY", TRIAL.pin.key).split()[1:]
    assert json.loads(command(*words))["recipe"]["parameters"]["components"] == 39
    ordered = ("task", "advise", "--items", "1000", "--clients", "1000", "--interactions", "100000", "--times")
    words = command(*ordered).splitlines()[-1].replace("NAME", "next").replace("KEY", TRIAL.pin.key).split()[1:]
    assert json.loads(command(*words))["schedule"]["cohort_size"] == 999, "what is safe for 999, not for 1,000"
    short = ("--items", "1682", "--clients", "943", "--interactions", "20000")
    for options in (("-m", "groups=1"), short, ("--mechanism", "plain"), ("--epsilon", "4")):
        said = command(*long, *options)
        assert "the sum of item degrees is in" not in said and "groups=3" not in said.splitlines()[-1]


def test_advice_for_items_with_times_and_rounds_for_all_sums(command: Command) -> None:
    command("init")
    size = ("--items", "1682", "--clients", "943", "--interactions", "100000", "--times")
    printed = command("task", "advise", *size)
    assert "1,552 values says what follows what" in printed and "up to 115 equations" in printed
    assert "  3 x 38 vectors, as chosen; on those sets, too, as many as are safe: 0.26 MB a message, 0.80" in printed
    small = command("task", "advise", *size, "--budget", "0.1")
    assert "  3 x 8 vectors: 0.05 MB a message, 0.65 to 0.92" in small and "as chosen" not in small
    assert "3 x 16" not in small and "  5 x 256 vectors with reveal_gram, which give" in small
    words = printed.splitlines()[-1].replace("NAME", "films").replace("KEY", TRIAL.pin.key).split()[1:]
    assert json.loads(command(*words))["recipe"]["parameters"]["next_vectors"] == 32
    for rounds, said in (
        ("6", "7 sums, and 6 rounds leave no room for the last: say -s rounds=7, or leave them out with -r next_"),
        ("4", "7 sums, and 4 rounds end it before its model is whole: say -s rounds=7"),
    ):
        fewer = [f"rounds={rounds}" if word == "rounds=7" else word for word in words]
        assert said in command(*[word.replace("films", "few") for word in fewer], status=1)


def _noisy(name: str, cohort: int, fewest: int) -> list[str]:
    given = ["-r", "items=50", "-s", f"cohort_size={cohort}", "-s", f"min_clients={fewest}", "-s", "rounds=10"]
    return ["task", "create", name, "--recipe", "colr", "--mechanism", "masked", *given]


NOISY = _noisy("x", 20, 15)


def test_a_privacy_budget_is_created_and_shown_with_what_is_spent(command: Command) -> None:
    command("init")
    made = json.loads(command(*NOISY, "--epsilon", "4", "--client-sums", "3", "--corrupt", "0.2", "--fixed-clip"))
    block = {"epsilon": 4.0, "delta": 1e-5, "clip": 1.0, "quantile": None, "most_items": 100}
    assert made["privacy"] == {**block, "rounds": 3, "corrupt": 0.2}
    spent = json.loads(command("task", "show", "x"))["spent"]
    assert (spent["largest_epsilon"], spent["most_sums"], spent["honest_clients"]) == (0.0, 3, 11)
    other = json.loads(command(*_noisy("y", 20, 15), "-s", "start_clients=400000", "--epsilon", "4"))
    assert other["privacy"]["delta"] == pytest.approx(400_000**-1.1)
    paper = json.loads(command("task", "create", "p", "--recipe", "colr", "-r", "items=50", "--variant", "paper"))
    assert paper["recipe"]["parameters"] == {"items": 50, "normalise": "touched", "reveal_touched": True}
    command(*_noisy("z", 20, 15))
    assert "spent" not in json.loads(command("task", "show", "z"))
    for name, cohort, fewest, epsilon, drowned in (("a", 20, 8, "0.5", 1), ("b", 20_000, 15_000, "30", 0)):
        made = json.loads(command(*_noisy(name, cohort, fewest), "--epsilon", epsilon))
        assert sum("noise drowns" in text for text in made["warnings"]) == drowned


COLR = ["task", "create", "x", "--recipe", "colr"]
MEASURED = [*COLR, "-r", "items=5", "--evaluate-every", "5"]
"""An encrypted task that is measured."""
WRONG: list[tuple[list[str], str]] = [
    (["task", "show", "nothing"], "no task"),
    (["member", "revoke", "x", "c_nobody"], "no such member"),
    (["invitation", "revoke", "x", "i_0"], "no such invitation"),
    (["task", "create", "x", "--recipe", "nope"], "fedmf"),
    (["task", "create", "X y", "--recipe", "fedmf", "-r", "items=5"], "name"),
    ([*COLR, "-r", "items"], "name=value"),
    ([*COLR, "-r", "itmes=5"], "itmes: unknown name; choose from: items"),
    ([*COLR, "-r", "items=5", "-s", "round=3"], "choose from: rounds"),
    ([*COLR, "-r", "items=5", "--keep", "best"], "need --evaluate-every"),
    ([*MEASURED, "--holdout", "first"], "--holdout is 'last' or a share"),
    ([*MEASURED, "--stop-after", "2"], "does not see the curve"),
    ([*NOISY, "--epsilon", "4", "--client-sums", "0"], "privacy: client-sums: must be at least 1"),
    ([*NOISY, "--delta", "1e-6"], "need --epsilon"),
]


def test_errors_are_one_line(command: Command) -> None:
    command("init")
    command(*COLR, "-r", "items=5")
    for arguments, word in WRONG:
        text = command(*arguments, status=1)
        assert word in text, arguments
        assert len(text.strip().splitlines()) == 1


def test_a_missing_database_is_an_error_and_creates_nothing(command: Command) -> None:
    text = command("task", "list", status=1)
    assert str(command.data_dir) in text
    assert "hushrec-server init" in text
    assert not command.data_dir.exists()


def test_a_server_that_stops_answers_long_polls(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (server, api), ThreadPoolExecutor(1) as pool:
        (member,) = api.create_task("quiet").enrol(1)
        path = f"{member.task.path}/rounds/current?wait=20"
        answer = pool.submit(api.http.get, path, headers=member.auth, timeout=90)
        time.sleep(0.5)  # the poll has probably started; if not, it gets no answer
        server.stop()
        with suppress(httpx.TransportError):
            assert answer.result().status_code == 204
        assert "Traceback" not in server.log()
        assert "graceful shutdown exceeded" not in server.log()


def test_a_task_with_an_evaluation_is_shown_with_its_curve(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command("init")
    made = command(
        "task", "create", "movies", "--recipe", "fedmf", "--mechanism", "plain", "-r", "items=5", "-r", "dim=3",
        "--evaluate-every", "5", "--holdout", "0.25", "--negatives", "3", "--keep", "best", "--stop-after", "3",
    )  # fmt: skip
    block = {
        "every": 5,
        "holdout": 0.25,
        "negatives": 3,
        "keep": "best",
        "stop_after": 3,
        "final_rounds": 0,
        "gate": 2.0,
    }
    assert json.loads(made)["evaluation"] == block
    for option, value in (("--gate", "0"), ("--final-rounds", "3")):
        ungated = command(*MEASURED[:2], f"without{option}", *MEASURED[3:], option, value)
        assert "gate" not in json.loads(ungated)["evaluation"]
    assert json.loads(command("task", "show", "movies"))["curve"] == []
    report = {"hr@10": 0.5, "ndcg@10": 0.25, "evaluated clients": 4.0, "evaluated model round": 5.0}
    with closing(Database(f"sqlite:///{command.data_dir / 'hushrec.db'}", 2)) as database, database.write() as session:
        task_id = json.loads(made)["task_id"]
        session.add(round_row(task_id, number=5, state="complete", report={}))
        session.add(round_row(task_id, number=6, state="complete", report=report))
    shown = json.loads(command("task", "show", "movies"))
    assert (shown["evaluation"], shown["curve"]) == (block, [report])
    assert not [text for text in shown["warnings"] if "signature" in text]
    monkeypatch.setenv("HUSHREC_SIGNATURES", "off")
    assert "Requests need no signature" in command("task", "show", "movies")


def test_help_parameters_prints_those_of_the_recipe_and_the_mechanism_wherever_it_stands(command: Command) -> None:
    for first, rest in ((("--recipe", "topk"), ()), ((), ("--recipe", "topk"))):
        text = command("task", "create", *first, "--help-parameters", *rest, "--mechanism", "masked")
        assert all(f"{name}: " in text for name in ("share", "corrupt", "min_difference"))
        assert "key_bits" not in text
    for row in (
        "items: whole number; at least 1, at most 5,000,000; required",
        "epochs: whole number or null; at least 1, at most 1,000; default null",
        "support: shared, own; default shared",
    ):
        assert f"  {row}\n" in text
    colr = command("task", "create", "--recipe", "colr", "--mechanism", "plain", "--help-parameters")
    assert "batch_size: whole number or null; at least 1, at most 1,000,000; default null; new tasks get 32\n" in colr
    wrong = command("task", "create", "--help-parameters", "--recipe", "colr", "--mechanism", "rot13", status=1)
    assert "unknown mechanism" in wrong


def test_a_wrong_value_of_an_option_is_told_in_our_words(command: Command) -> None:
    wrong = command("serve", "--port", "http", status=2)
    assert wrong.endswith("Invalid value for '--port': must be a whole number\n")
    assert command("serve", "--port", "65536", status=1) == "hushrec-server: HUSHREC_PORT: must be at most 65535\n"


def test_cohorts_are_split_into_groups_by_themselves_only_where_these_are_large_and_clients_send_the_same(
    command: Command,
) -> None:
    """Many groups say much of what each client has, and a masked client of a group has more neighbours."""
    command("init")

    def made(name: str, mechanism: str, *more: str, clients: int = 120, recipe: str = "colr") -> str:
        sizes = ("-s", f"cohort_size={clients}", "-s", "rounds=10", "-r", "items=50")
        return command("task", "create", name, "--recipe", recipe, "--mechanism", mechanism, *sizes, *more)

    def groups_of(name: str, *given: str, **more: Any) -> int:
        text = made(name, *given, **more)
        return int(json.loads(text[text.index("{") :])["mechanism"]["parameters"].get("groups", 1))

    assert groups_of("a", "masked") == groups_of("b", "oneshot") == 1
    assert groups_of("c", "masked", "-m", "groups=3", "-s", "min_clients=30") == 3
    assert groups_of("d", "oneshot", "-m", "groups=2", "-m", "tau=0") == 2
    large = made("e", "oneshot", clients=3000)
    assert "split into 3 groups" in large and '"tau": 1.5' in large
    assert groups_of("f", "oneshot", clients=10_000, recipe="fedmf") == 4
    assert groups_of("g", "oneshot", "-m", "groups=1", clients=3000) == 1
    assert groups_of("h", "masked", clients=3000) == groups_of("i", "oneshot", clients=2999) == 1
    assert groups_of("j", "oneshot", "-s", "min_clients=501", clients=3000) == 1
    assert groups_of("k", "oneshot", "-s", "sampling=uniform", clients=3000) == 1
    assert groups_of("l", "oneshot", "--data-set", "films", clients=3000) == 1
    assert groups_of("m", "oneshot", clients=3000, recipe="pfedclr") == 1
    for mechanism, said in (("oneshot", 1), ("masked", 0)):
        help_text = command("task", "create", "--recipe", "colr", "--mechanism", mechanism, "--help-parameters")
        assert help_text.count("new tasks get 1; from 3,000 clients on 3 or more") == said


def test_the_degrees_of_a_task_of_counts_are_split_by_themselves_where_groups_are_large(command: Command) -> None:
    """From 2,000 clients in a group on, and as many as items; over masked sums, too, which cost little more."""
    command("init")

    def made(clients: int, *more: str, mechanism: str = "masked", items: int = 50) -> tuple[str, int]:
        sizes = ("-s", f"cohort_size={clients}", "-s", "rounds=9", "-r", f"items={items}", "-r", "reveal_gram=true")
        name = f"t{len(names)}"
        names.append(name)
        text = command("task", "create", name, "--recipe", "privirec", "--mechanism", mechanism, *sizes, *more)
        return text, int(json.loads(text[text.index("{") :])["mechanism"]["parameters"].get("groups", 1))

    names: list[str] = []
    text, groups = made(6000)
    assert groups == 3 and "The first sum is split into 3 groups of clients" in text
    assert "sums of counts over 3 to 2,000 clients: each says how many of a group have an item" in text
    assert made(6000, mechanism="oneshot")[1] == made(300, "-m", "groups=3")[1] == 3
    assert made(5997)[1] == made(6000, items=2001)[1] == made(6001)[1] == made(6000, "-m", "groups=1")[1] == 1
    assert made(6000, "-s", "min_clients=1001")[1] == made(6000, "--data-set", "films")[1] == 1
    assert made(6000, mechanism="plain")[1] == 1
    for mechanism, said in (
        ("masked", "new tasks get 1; in privirec and privirec-k from 6,000"),
        ("oneshot", "in privirec and privirec-k from 6,000"),
    ):
        help_text = command("task", "create", "--recipe", "privirec", "--mechanism", mechanism, "--help-parameters")
        assert said in " ".join(help_text.split())
