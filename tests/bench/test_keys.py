"""Every key that a benchmark writes is described once, and bench/README.md shows what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import readme
from bench._report import FACTS
from bench.key_tables import TABLES, TABLES_OF_FIDELITY, rows_of
from bench.keys import Key, at_least, faults, row_of
from bench.page import read_results
from bench.systems import SYSTEMS
from bench.targets import TARGETS

RESULTS = read_results(Path(readme.__file__).parent / "results")


@pytest.mark.parametrize("script", sorted(RESULTS))
def test_every_committed_key_is_described(script: str) -> None:
    keys = [key for key in RESULTS[script] if not key.startswith(FACTS)]
    assert keys
    assert [key for key in keys if row_of(key, rows_of(script)) is None] == []


def test_every_row_describes_a_committed_key() -> None:
    described = {row_of(key, rows_of(script)) for script, figures in RESULTS.items() for key in figures}
    assert {row.pattern for rows in TABLES.values() for row in rows if row not in described} == set()


def test_every_system_has_tables_and_every_target_a_full_key() -> None:
    assert set(TABLES_OF_FIDELITY) == set(SYSTEMS)
    with pytest.raises(KeyError):
        rows_of("fidelity-unknown")
    for targets in TARGETS.values():
        assert not any(set(target.key) & set("{[<") for target in targets)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("fold_{seeded,expanded}_ms", "fold_expanded_ms", "fold_ms"),
        ("cpu_s[_min,_max]", "cpu_s", "cpu_s_median"),
        ("cpu_s[_min,_max]", "cpu_s_max", "cpuxs"),
        ("<row>.ratio", "fedmf.ratio", "a.b.ratio"),
        ("<run>.hr10", "ml1m.colr.rank4.ckks.hr10", "hr10"),
    ],
)
def test_patterns(pattern: str, matching: str, other: str) -> None:
    row = Key(pattern, "", "")
    assert row.matches(matching)
    assert not row.matches(other)


def test_the_first_row_that_matches_describes_a_key() -> None:
    rows = (Key("<run>.paper.hr10", "", "published"), Key("<run>.hr10", "", "ours"))
    assert row_of("a.paper.hr10", rows) == rows[0]
    assert row_of("a.hr10", rows) == rows[1]
    assert row_of("a.ndcg10", rows) is None


def test_a_key_is_missed_whatever_the_size() -> None:
    rows = (
        at_least("fold.n300.gb_per_s", 1.0, "", "a size with a target"),
        Key("{fold,unmask}.n<clients>.{gb_per_s,cpu_s}", "", "every size"),
    )
    named = ["fold.n300.gb_per_s", "fold.n300.cpu_s", "unmask.n1000.cpu_s"]
    assert faults(["fold.n2.gb_per_s", "fold.n2.cpu_s", "unmask.n2.cpu_s"], named, rows) == []
    assert faults(["fold.n2.gb_per_s", "fold.n2.cpu_s"], named, rows) == ["key unmask.n1000.cpu_s is absent"]
    assert faults(["fold.n2.gb_per_s", "unmask.n2.cpu_s"], named, rows) == ["key fold.n300.cpu_s is absent"]
    assert faults(["fold.n2.mb_per_s"], [], rows) == ["key fold.n2.mb_per_s is not described"]


def test_the_tables_of_the_readme_are_those_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert readme.main(["--check"]) == 0, "run: python -m bench.readme"
    assert capsys.readouterr().out == ""


def test_a_table_has_a_target_column_only_where_there_are_targets() -> None:
    assert (
        readme.table([Key("a", "ms", "time")]) == "| key | meaning | unit |\n| --- | --- | --- |\n| `a` | time | ms |\n"
    )
    assert readme.table([at_least("b", 30, "", "speed-up")]).endswith("| `b` | speed-up | | >= 30 |\n")


def test_the_tables_are_rewritten_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text("text\n" + "".join(f"<!-- keys: {name} -->\nold\n<!-- end -->\n" for name in TABLES))
    monkeypatch.setattr(readme, "README", page)
    assert readme.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().out
    assert readme.main([]) == 0
    assert readme.main(["--check"]) == 0
    assert page.read_text().startswith("text\n<!-- keys: ckks -->\n| key |")
    assert "old\n" not in page.read_text()


def test_a_page_must_mark_every_table() -> None:
    with pytest.raises(ValueError, match="marks the tables"):
        readme.with_tables("<!-- keys: ckks -->\n<!-- end -->\n")
