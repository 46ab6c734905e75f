"""The first federation, docs/your-own-data.md and the guides run; commands and settings of pages exist."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

import aggregator_service.cli
import client_sdk.cli
from aggregator_service.settings import Settings
from client_sdk import AsyncClient, Client, Identity, MemoryStore, Operator, task_request
from client_sdk.torch import arrays_of
from client_sdk.training.arrays import ArraysRound
from protocols.messages import Schedule
from protocols.recipes.registry import recipe
from tests.support.forked_programs import forked_commands
from tests.support.needs import required
from tests.support.pages import cells, end_group, environment, hushrec, named_blocks, terminal, wait_for
from tests.support.server import AggregatorProcess, free_port, running_aggregator
from tests.support.tasks import TRIAL, TRUSTING, SmallTask, interactions, new_client

DOCS = Path(__file__).parents[3] / "docs"
TUTORIAL, OWN_DATA = DOCS / "tutorials" / "first-federation.md", DOCS / "your-own-data.md"
COSTS = DOCS / "what-encryption-costs.md"
PAGES = [*sorted(TUTORIAL.parent.glob("*.md")), COSTS, DOCS / "deploy.md"]
APPS = {"hushrec": client_sdk.cli.app, "hushrec-server": aggregator_service.cli.app}


def command_lines(text: str) -> list[str]:
    """The commands of a page's shell blocks, continuation lines joined, without substitutions and redirections."""
    found = []
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            plain = re.sub(r"\$\([^)]*\)", "x", line.strip())
            plain = re.sub(r"^(\w+=\S+ )+", "", re.sub(r"\s[12]?>.*$", "", plain))
            if plain.startswith(("hushrec ", "hushrec-server ")):
                found.append(plain)
    return found


def run(command: str) -> str:
    program, *words = shlex.split(command)
    done = CliRunner().invoke(APPS[program], words)
    assert done.exit_code == 0, f"{command}: {done.output}"
    return done.stdout


# --- federations: every party in shells, as a reader starts them -----------------------------------------------------


class Federation:
    """The organiser and the server of the first federation, in `folder`, and its blocks with ports that are free."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = environment()
        self.environment = own | forked_commands(folder / "bin", own["PATH"])
        self.server, self.organiser = free_port(), free_port()
        self.page = self.blocks(TUTORIAL)

    def blocks(self, page: Path, **more: str) -> dict[str, str]:
        """The named blocks of a page, of two rounds over 130 items. more: texts and what replaces them."""
        changes = {"rounds=6": "rounds=2", "items=40": "items=130", **more}
        for old, new in (("8000", self.server), ("8100", self.organiser)):
            changes |= {f"{before}{old}": f"{before}{new}" for before in ("127.0.0.1:", "--port ")}
        return named_blocks(page, changes)

    def prepare(self, page: Mapping[str, str], folder: Path, left_out: str = r" serve\b") -> None:
        """Run the commands of the organiser and the operator in this process, but those that match `left_out`."""
        for line in (page["organiser"] + page["operator"]).replace("\\\n", " ").splitlines():
            command = re.sub(r"\$\(cat (\S+)\)", lambda found: (folder / found[1]).read_text().strip(), line)
            command, _, kept = command.partition(" > ")
            if not re.search(left_out, command):
                (folder / (kept or "shown.txt")).write_text(run(command))

    def play(self, script: str, folder: Path) -> str:
        """Play the third terminal in `folder` to its end; return what it printed."""
        with ExitStack() as stack:
            third = subprocess.Popen(
                ["bash", "-ec", script], cwd=folder, env=self.environment, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, start_new_session=True, close_fds=False,
            )  # fmt: skip
            stack.callback(third.wait, 30)
            stack.callback(end_group, third.pid)
            out, err = third.communicate(timeout=400)
        logs = "\n".join(f"{path.name}: {path.read_text()}" for path in self.folder.rglob("*.log"))
        assert third.returncode == 0, out + err + logs
        return out


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("federation"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.folder)
        made.prepare(made.page, made.folder)
    serving = (made.page[party].splitlines()[-1] for party in ("organiser", "operator"))
    with (
        terminal(f"{next(serving)} --scope shop", made.folder, "organiser.log", made.environment),
        terminal(next(serving), made.folder, "operator.log", made.environment),
    ):
        for port in (made.organiser, made.server):
            wait_for(port, made.folder)
        yield made


@pytest.fixture(scope="module")
def played(federation: Federation) -> str:
    """What the third terminal of the first federation has printed, to its end."""
    page = federation.page
    assert list(page) == ["setup", "organiser", "operator", "holder", "program", "members", "recommend"]
    (federation.folder / "cem.py").write_text(page["program"])
    return federation.play(f"{page['holder']}{page['members']}wait\n{page['recommend']}", federation.folder)


def test_the_first_federation_ends_with_recommendations(federation: Federation, played: str) -> None:
    # the table of `hushrec recommend`, whose columns are place, item and score
    recommended = [int(item) for item in re.findall(r"^\D*\d+\D+(\d+)\D+\d+\.\d+\D*$", played, re.MULTILINE)]
    assert len(recommended) == 5 and not set(range(8)) & set(recommended), played
    cem = [int(item) for item in played.splitlines()[-1].split()]
    assert len(cem) == 5 and not {0, 1, 4, 5, 8, 9, 12, 13} & set(cem), played
    log = (federation.folder / "ann.log").read_text()
    assert [row for row in cells(log) if "rounds" in row[0]] == [["rounds completed", "2"], ["rounds missed", "0"]], log
    assert "sums can be opened by its members" in log and "the task ended: complete" in log
    assert ["members given keys", "3"] in cells((federation.folder / "keyring.log").read_text())
    shown = (federation.folder / "organiser.log").read_text()
    assert f"issuing certificates for movies, shop at http://127.0.0.1:{federation.organiser}; " in shown
    assert (federation.folder / "holder/hushrec/identity.key").stat().st_mode & 0o777 == 0o600


def test_what_a_member_of_the_first_federation_can_ask_for(federation: Federation, played: str) -> None:
    def ask(member: str, *arguments: str) -> tuple[int, str, str]:
        return hushrec(*arguments, COLUMNS="200", XDG_DATA_HOME=str(federation.folder / member))

    status, fingerprint, _ = ask("ann", "keyring", "fingerprint")
    assert (status, fingerprint) == (0, ask("holder", "keyring", "fingerprint")[1])
    assert fingerprint.strip() in played
    status, _, err = ask("ann", "keyring", "serve", "--task", "movies")
    assert status == 1 and "not its key holder" in err
    titles = federation.folder / "titles.csv"
    titles.write_text("item,title\n" + "".join(f"{item},Film [{item}]\n" for item in range(130)))
    status, out, err = ask("ann", "recommend", "-k", "5", "--titles", str(titles))
    assert status == 0, err
    rows = cells(out)
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    assert all(row[2] == f"Film [{row[1]}]" for row in rows)
    scores = [float(row[3]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    status, offline, err = ask("ann", "recommend", "-k", "5", "--titles", str(titles), "--offline")
    assert (status, offline) == (0, out)
    assert "is used: no update was asked for" in err
    assert ask("ann", "recommend", "-k", "0")[0] == 1
    status, out, err = ask("ann", "evaluate", "--held-out", "18", "--held-out", "19", "-k", "200")
    assert status == 0, err
    found = [row[1:4] for row in cells(out)]
    assert found == [["full ranking", "2", "1.0000"], ["99 sampled negatives", "2", "1.0000"]]
    status, _, err = ask("ann", "evaluate", "--held-out", "2")
    assert status == 1 and "held-out item 2 is in the interactions file" in err
    assert ask("ann", "evaluate", "--held-out", "130")[0] == 1
    url = f"http://127.0.0.1:{federation.server}"
    status, out, err = ask("ann", "doctor", "--url", url)
    assert status == 0 and f"{url} is ready" in out, err


def test_a_federation_over_the_file_recommends_by_its_own_ids(federation: Federation, folder: Path) -> None:
    """The first federation with what the page changes: the catalogue, and the members with their files."""
    changes = {"-r items=130": "--items items.csv", "server-data": str(federation.folder / "server-data")}
    tutorial, page = (federation.blocks(page, movies="shop", **changes) for page in (TUTORIAL, OWN_DATA))
    assert list(page) == ["prepare", "members"]
    subprocess.run(["bash", "-euc", page["prepare"]], cwd=folder, env=environment(), check=True, timeout=60)
    for shared in ("organiser", "organiser.pub"):
        (folder / shared).symlink_to(federation.folder / shared)
    federation.prepare(tutorial, folder, r" (init|serve)\b")
    out = federation.play(tutorial["holder"] + page["members"], folder)
    found = re.findall(r"│ \d +│ +(B\d{3}) │", out)
    own = (folder / "member-1.csv").read_text().split()[1:]
    assert len(found) == 5, out
    assert len(own) > 5 and not set(own) & set(found)


# --- the commands of pages, in this process --------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_and_settings_of_a_page_exist(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = page.read_text(encoding="utf-8")
    known = {f"HUSHREC_{name.upper()}" for name in Settings.model_fields} | {"HUSHREC_ISSUER"}
    assert set(re.findall(r"HUSHREC_[A-Z_]+", text)) <= known
    lines = command_lines(text)
    assert lines
    for line in lines:
        program, *words = shlex.split(line)
        command = [word for word in words[:2] if re.fullmatch(r"[a-z][a-z-]*", word)]
        for known_words in (command, command[:1]):
            done = CliRunner().invoke(APPS[program], [*known_words, "--help"])
            if done.exit_code == 0:
                break
        assert done.exit_code == 0, line
        for option in (word for word in words if word.startswith("-")):
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", done.stdout), f"{option}: {line}"
        if page == COSTS:
            run(line)


OWN_DATA_PAGE = OWN_DATA.read_text(encoding="utf-8").partition("## 6. ")[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files of docs/your-own-data.md: 100 users, among them ann, and 130 items."""
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((100, 130)) < 0.15)
    names = ["ann", *(f"user-{number}" for number in range(1, 100))]
    rows = [
        f"{names[user]},B{item:03d},{1 + (user * item) % 9 / 2},{1577836800 + rng.integers(10**6)}"
        for user, item in zip(users, items, strict=True)
    ]
    (tmp_path / "ratings.csv").write_text("\n".join(["user_id,item_id,rating,timestamp", *rows]) + "\n")
    table = [row.replace(",", "\t") for row in rows]
    for name, part in (("train.tsv", table[::2]), ("test.tsv", table[1::2])):
        (tmp_path / name).write_text("\n".join(["user_id\titem_id\trating\ttimestamp", *part]) + "\n")
    clicks = [f"{row % 40},2014-04-01T10:{row % 60:02d}:09.277Z,21453{row % 90},0" for row in range(300)]
    (tmp_path / "clicks.dat").write_text("\n".join(clicks) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    return tmp_path


def test_commands_of_the_page_on_own_data(folder: Path) -> None:
    commands = command_lines(OWN_DATA_PAGE)
    assert {command.split()[1] for command in commands} == {"data", "evaluate", "simulate"}
    for command in commands:
        out = run(command)
        if "--json" in command:
            assert set(json.loads(out)) >= {"points", "controls", "bytes_up", "recommendations"}
        else:
            assert out.startswith("read ") and "columns user=" in out
        if "--sizes" in command:
            assert [row[0] for row in cells(out)][-1] == "the whole matrix (reveal_gram)"
            assert max(float(row[-1]) for row in cells(out)) == 1.0
        if "--recommend ann" in command:
            (line,) = (line for line in out.splitlines() if line.startswith("recommended to user ann: "))
            rows = (folder / "ratings.csv").read_text().splitlines()
            items, mine = set(line.partition(": ")[2].split(", ")), {row[4:8] for row in rows if row[:4] == "ann,"}
            assert len(items) == 10 and not items & mine
            assert all(re.fullmatch(r"B\d{3}", item) for item in items)
    assert (folder / "curve.svg").read_text().startswith("<svg")


def test_python_and_the_error_of_the_page_on_own_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long_form, curve = re.findall(r"^```python\n(.*?)^```", OWN_DATA_PAGE, re.MULTILINE | re.DOTALL)
    run_block(curve, {})
    out = capsys.readouterr().out
    assert out.startswith("read ") and "10 {'NDCG@20 full': " in out
    (folder / "jester.csv").write_text(f"2,-7.82,99,8.5{',99' * 9}\n1,99,99,0.5{',99' * 9}\n")
    assert hushrec("data", "show", "jester.csv")[0] == 1
    run_block(long_form, {})
    out = run("hushrec data show ratings.csv")
    assert out.startswith("read 3 rows, 2 users, 2 items from ratings.csv")
    assert "ratings from -7.82 to 8.5" in out
    (folder / "ratings.csv").write_text("user,item,rating\nann,B1,3\nbob,B1,good\nbob,,3\n,B1,3\n")
    (message,) = re.findall(r"^ratings.csv, line .*$", OWN_DATA_PAGE, re.MULTILINE)
    code, _, err = hushrec("data", "show", "ratings.csv")
    assert code == 1 and message in err


def test_a_simulated_curve_is_shown_beside_controls_with_a_verdict(folder: Path) -> None:
    out = run("hushrec simulate --dataset ratings.csv --rounds 5 --every 2 --users 20")
    assert [row[0] for row in cells(out)] == ["round 5", "control: popularity", "control: random"]
    assert "of 20 users" in out
    assert "Why privirec-k: " in out
    assert "Verdict: privirec-k after round 5 " in out
    command = "simulate --dataset ratings.csv --recipe colr --rounds 4 --every 2 --cohort 10"
    _, trained, progress = hushrec(*command.split())
    assert "round 0" in trained
    assert "Verdict: colr after round " in trained
    assert [line.partition(":")[0] for line in progress.splitlines()] == ["round 2 of 4", "round 4 of 4"]


# --- every Python block of the SDK's guides, against a real server ----------------------------------------------------


def blocks(*pages: str) -> dict[str, str]:
    """Name -> code of every block; each Python block of the pages has a name of its own."""
    text = "".join((DOCS / page).read_text(encoding="utf-8") for page in pages)
    found = re.findall(r"<!-- run: (\w+) -->\n```python\n(.*?)```", text, re.DOTALL)
    assert len(found) == len(dict(found)) == text.count("```python"), "a block is not run"
    return dict(found)


def run_block(text: str, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(text, "a block of the docs", "exec"), names)  # noqa: S102 - the project's own pages
    return names


def test_the_guides_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    unused = blocks("sdk.md", "configuration.md", "oneshot.md")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    chosen = [[f"film-{number}" for number in numbers] for numbers in interactions(3)]
    with running_aggregator(tmp_path / "data") as server:
        names: dict[str, Any] = {"url": server.url, "operator_token": server.operator_token, "items": chosen[0]}
        names["ids"] = tuple(f"film-{number}" for number in range(60))
        names["titles"] = tuple(f"Film {number}" for number in range(60))

        def run(name: str, scope: dict[str, Any]) -> None:
            run_block(unused.pop(name), scope)

        run("operator", names)
        names["certificate"] = names["organiser"].source()
        with Client(server.url, Identity.generate(), MemoryStore()) as third, ThreadPoolExecutor(2) as pool:
            holding = pool.submit(run, "holder", {**names, "items": chosen[1]})
            part = third.join(invitation=names["invitation"], certificate=names["certificate"])
            waiting = pool.submit(part.take_part, chosen[2])
            run("member", names)
            holding.result(timeout=60)
            assert len(waiting.result(timeout=60)) == 3
        assert [report.round for report in names["reports"]] == [1, 2, 3]
        assert names["item"] in set(names["ids"]) - set(chosen[0])
        run("titles", names)
        assert [f"film-{title.split()[1]}" for title in names["found"].titles] == list(names["found"].ids)
        for name in ("background", "later", "async", "policy", "errors"):
            run(name, names)
        names["interactions"] = interactions(1)[0]
        with Operator(server.url, server.operator_token) as operator:
            pin = names["organiser"].pin
            phones = operator.create_task(
                task_request("phones", "colr", "oneshot", None, names["parameters"], organiser=pin)
            )
            again = names["schedule"].model_copy(update={"follows": operator.task("movies").task_id})
            films = names["catalogue"]
            later = task_request("films", "colr", "ckks", again, names["parameters"], organiser=pin, catalogue=films)
            operator.create_task(later, films)
            names["committee_invitation"] = operator.invite(phones.task_id, role="committee").invitation
        for name in ("committee", "fleet"):
            run(name, names)
        asked: list[str] = []
        names["ask_user"] = lambda question: not asked.append(question)
        run("following", names)
        assert asked == ["Take part in films?"] and names["task"].terms.name == "films"
    assert not unused
    assert "403 forbidden" in capsys.readouterr().out
    assert names["user_factors"].shape == (8, 8)


# --- docs/own-model.md -----------------------------------------------------------------------------------------------


BLOCKS = blocks("own-model.md")
USERS, ROUNDS = 3, 2
PARAMETERS = {"shapes": {"w": [3, 2], "b": []}, "max_weight": 10, "reveal_weights": True, "clip": 2.0}


def train(arrays: dict[str, NDArray[np.float32]]) -> tuple[dict[str, NDArray[np.float32]], int]:
    return {name: array * 0 + 1 for name, array in arrays.items()}, 5


def test_loops_callback_and_event_loop_train_one_model(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # memberships are stored there by default
    Identity.generate().save("me.key")
    schedule = Schedule(rounds=ROUNDS, cohort_size=USERS, start_clients=USERS)
    request = task_request("my-model", "arrays", "masked", schedule, PARAMETERS, organiser=TRIAL.pin)
    task = SmallTask.of(operator, request, USERS)
    around = [
        "async def one():",
        "    async with AsyncClient(url, identity, policy=TRUSTING) as client:",
        "        task = await client.join('my-model', invitation=invitation, certificate=certificate)",
        *(f"        {line}" for line in BLOCKS["async"].splitlines()),
        "        return await task.arrays()",
        "arrays = asyncio.run(one())",
    ]
    with new_client(server.url) as client, ThreadPoolExecutor(USERS) as pool:

        def run(text: str, **more: Any) -> Future[dict[str, Any]]:
            names = {"url": server.url, "invitation": task.invitation, "certificate": TRIAL.source(), "train": train}
            names |= {"asyncio": asyncio, "AsyncClient": AsyncClient, "Client": Client, "TRUSTING": TRUSTING}
            names |= {"identity": Identity.generate(), **more}
            for name in ("invitation", "certificate"):
                text = text.replace(f"{name}=...", f"{name}={name}")
            return pool.submit(run_block, text, names)

        plays = run(BLOCKS["loop"]), run(BLOCKS["callback"], task=task.join(client)), run("\n".join(around))
        loop, callback, last = (play.result(timeout=120) for play in plays)
    assert [report.round for report in callback["reports"]] == [1, 2]
    np.testing.assert_allclose(last["arrays"]["w"], np.ones((3, 2)), atol=1e-4)
    np.testing.assert_array_equal(loop["arrays"]["w"], last["arrays"]["w"])
    assert loop["round"].number == ROUNDS and loop["new"]["b"] == 1.0


def test_the_block_of_pytorch() -> None:
    torch: Any = required("torch")
    model = torch.nn.Linear(3, 2)
    shapes = {name: array.shape for name, array in arrays_of(model).items()}
    made = recipe("arrays", {"shapes": shapes, "max_weight": 10, "reveal_weights": True})
    asked = ArraysRound(made, made.round_spec(bytes(32), 1), made.initial_state(bytes(32)))
    training = "model(torch.ones(4, 3)).sum().backward(); torch.optim.SGD(model.parameters(), 0.1).step()"
    names = {"model": model, "round": asked, "examples": 4, "torch": torch}
    run_block(BLOCKS["torch"].replace("...  # train", training), names)
    given = asked.result({})
    assert given.blocks[0].size == 9 and given.samples == 4
    np.testing.assert_allclose(given.blocks[0][:8], 0.4 * np.repeat([-0.4, -0.4], [2, 6]), atol=1e-6)
