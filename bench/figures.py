"""Figures of the benchmarks: the registry (unit, target, meaning), what a script prints, results, table and page.

A script returns flat figures to `run`. `bench.run_all` keeps those of all scripts in one file, `results.json`, by
script, and writes a Markdown table and a page from it. A figure without an entry is in the JSON all the same.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench._report import Figure, write_figures

Results = dict[str, dict[str, Figure]]
RESULTS: Final = "results.json"


@dataclass(frozen=True)
class Entry:
    """A registered figure, or the figures that a pattern matches."""

    script: str
    """Script that writes it."""
    key: str
    """Key in the JSON of the script; `*` stands for any text."""
    unit: str
    """Unit; empty for a number without one."""
    target: str
    """Such as `<= 1.4`; empty for a figure without a target."""
    what: str
    always: bool = True
    """Whether each run writes it, with quick sizes and without peers."""

    def met(self, value: Figure) -> bool:
        """Whether there is no target, or `value` is a number within it."""
        sign, _, bound = self.target.partition(" ")
        if not isinstance(value, int | float):
            return not sign
        return not sign or (value <= float(bound) if sign == "<=" else value >= float(bound))

    def values(self, figures: Mapping[str, Figure]) -> dict[str, Figure]:
        """The measured figures that this entry describes, by key."""
        return {key: value for key, value in figures.items() if fnmatchcase(key, self.key)}


_ENTRIES: Final[dict[str, list[Entry]]] = {}


def figure(
    name: str, unit: str = "", target: str = "", what: str = "", always: bool = True, **axes: Iterable[object]
) -> None:
    """Register the figure `<script>.<key>`, once for each combination of the axes.

    axes: for example `size=(2048, 3072)` for a name and words with `{size}`.
    """
    for combination in product(*axes.values()):
        filled = dict(zip(axes, combination, strict=True))
        script, _, key = name.format(**filled).partition(".")
        entry = Entry(script, key, unit, target, what.format(**filled), always)
        _ENTRIES.setdefault(script, []).append(entry)


# --- The figures. Names: `<script>.<key>`; `*` matches any text

_BITS: Final = (2048, 3072)
_ROUTES: Final = ("", "forwarded.")
_ERRORS: Final = ("mae", "rmse")
_RATED: Final = ("filmtrust", "made-jokes", "ml-100k", "ml-1m")
_SETS: Final = ("filmtrust", "gowalla", "gowalla-wide", "made", "ml-100k", "ml-1m")
_RECOMMENDED: Final = ("privirec-k",)
_MASKED_ROUNDS: Final = ("round1000", "step1000", "groups4")

# --- sums, beside TenSEAL, phe and Flower
figure("ckks.upload_ratio_compact", "", "<= 1.1", "contribution / float32 plaintext, set `compact`")
figure("ckks.upload_ratio_standard", "", "<= 1.4", "contribution / float32 plaintext, set `standard`, seeded")
figure("ckks.encrypt_speedup_seeded", "", ">= 8", "TenSEAL's encrypt and serialise / ours, seeded")
figure("ckks.fold_speedup_expanded", "", ">= 30", "TenSEAL's deserialise and add / our fold, expanded")
figure("ckks.fold_speedup_seeded", "", ">= 3", "TenSEAL's deserialise and add / our fold, seeded")
figure("ckks.check_and_fold_speedup_expanded", "", "", "TenSEAL's fold / our check and fold; TenSEAL checks nothing")
for _set, _bound in (("standard", "<= 1e-6"), ("compact", "<= 1e-4")):
    figure(f"ckks.max_error_{_set}", "", _bound, "largest error of the opened sum")
    figure(f"ckks.predicted_error_{_set}", "", _bound, "bound of that error, computed by the planner")
figure("ckks.encrypt_*_ms_median", "ms", "", "a client seals one contribution")
figure("ckks.check_*_ms_median", "ms", "", "the server checks one contribution on arrival")
figure("ckks.fold_*_ms_median", "ms", "", "the server folds one contribution")
figure("paillier.bits{b}.encrypt_speedup_pool", "", ">= 4000", "phe's encryption / ours, filled pool, {b}-bit", b=_BITS)
figure("paillier.bits{b}.bytes_ratio", "", ">= 40", "phe's ciphertexts / our contribution, bytes, {b}-bit", b=_BITS)
figure("paillier.bits{b}.fold_speedup", "", ">= 50", "phe's fold of a contribution / ours, {b}-bit", b=_BITS)
figure("paillier.bits{b}.decrypt_speedup", "", ">= 40", "phe's decryption of the sum / ours, {b}-bit", b=_BITS)
figure("paillier.bits{b}.exact", "", ">= 1", "the opened sum equals that of the fixed-point values", b=_BITS)
figure("paillier.bits*_ms_median", "ms", "", "our time; `fold`: for one contribution")
figure("masked.server_speedup_vs_flower", "", ">= 30", "Flower's server time for a round / ours", always=False)
figure("masked.share_speedup_vs_flower", "", ">= 10", "Flower's share stage of a client / ours", always=False)
figure("masked.quantise_speedup_vs_flower", "", ">= 5", "Flower's `quantize` / ours with checks", always=False)
figure("masked.bytes_per_value", "bytes", "<= 4.1", "masked vector / number of values, 32-bit ring")
figure("masked.mask_fraction_of_aes", "", ">= 0.6", "AES-128-CTR alone / deriving and adding the same masks")
figure("masked.server*_ms", "ms", "", "the server's time for a round, and for its stages")
figure("masked.client_*_ms", "ms", "", "a client's median time for one stage")
figure("oneshot.bytes_per_value", "bytes", "<= 4.2", "contribution / number of values, sums of 28 bits")
figure("oneshot.share_bytes", "bytes", "<= 100000", "rest of an upload: shares for a committee of 5, key, signature")
figure("oneshot.client_messages", "", "<= 1", "messages of a client in a round")
figure("oneshot.client_ratio_masked", "", "<= 1", "a client's time for its round / a masked client's")
figure("oneshot.fold_gigabytes_per_second", "GB/s", ">= 1.5", "contribution bytes folded on one core")
figure("oneshot.exact", "", ">= 1", "the opened sum equals that of the fixed-point values")
figure("oneshot.member_ms_per_client", "ms", "", "one member of the committee, for one client")
figure("oneshot.member_bytes_per_client", "bytes", "", "what a member downloads for one client")
figure("overhead.fedmf.ckks.ratio", "", "<= 1.4", "CKKS contribution / float32 plaintext, the full matrix")
figure("overhead.seconds", "s", "<= 600", "time to measure the whole table")
figure("overhead.*.oneshot.member_ms", "ms", "", "one member of the committee, for one client")

for _case in ("arrays", "colr", "counts", "fedmf", "privirec-k"):
    _of = f"privacy_audit.{_case}"
    figure(f"{_of}.lower_bound", "", "<= 4", "epsilon that canaries show, 95 % confidence; claim 4")
    figure(f"{_of}.{{b}}_lower_bound", "", ">= 4", "the same, one defence broken", b=("no_noise", "no_clip"))
    figure(f"{_of}.variance_epsilon", "", "<= 4", "epsilon that the noise's variance shows, 99.9 % confidence")
    figure(f"{_of}.missing_share_epsilon", "", ">= 4", "the same, 1 of 4 honest clients adds no noise")
figure(
    "privacy_attacks.{a}.{h}", what="share of what an observer is after: {a}",
    h=("no_noise", "epsilon8", "epsilon4", "epsilon1", "chance"), a=("constants", "rows", "touches", "weights"),
)  # fmt: skip
_TRACED: Final = ("ml-100k", "long", "short")
figure("exposure.read", "", "<= 0", "largest share of clients whose list a solver reads from the sums of advised tasks")
figure("exposure.told", "", "<= 0", "the same by sums of training, told which items one client alone has")
figure(
    "exposure.half_above_others.{sums}", "", "<= 0.02", sums=("privirec-k", "trained"),
    what="most that sums add for who knows half of a list to what the lists of all others say",
)  # fmt: skip
figure("exposure.auc_above_popularity", "", "<= 0.02", "most that the sums add to the area under the curve of counts")
figure(
    "next_item.ml-100k.next.over_central",
    "",
    ">= 1.05",
    "NDCG@20 with the sum of next items / of the best central EASE",
)
figure("sasrec.ml-100k.next.over_sasrec", "", ">= 0.95", "NDCG@20 with the sum of next items / of tuned SASRec")
figure("next_item.ml-100k.shuffled.gain", "", "<= 0.02", "what the sum adds to NDCG@20 where times are shuffled")
figure("next_item.{d}.member", what="area under the curve of members by what follows what, {d}", d=_TRACED)
figure("next_item.{d}.member_iterations", what="the same by the iterations, {d}", d=_TRACED)
figure(
    "next_item.ml-100k.promoted.1",
    "",
    "<= 0.02",
    "users with an item that one member of 943 promotes in their first 20",
)
figure("next_item.ml-100k.promoted.*", what="the same, other numbers of liars")
figure("next_item.order", "", "<= 0.1", "how much more often the order of a member's items is guessed than of others")
figure(
    "robust.cost.*.server_ratio",
    "",
    "<= 1.2",
    "server's time of a masked round of so many clients, with groups / without",
)
figure("robust.cost.*.contribution_ratio", "", "<= 1", "bytes of a contribution, the same")
figure("robust.cost.*.neighbours_ratio", "", "", "neighbours of a client, the same")
_PRIVIREC: Final = ("privirec-k", "privirec")
figure("robust.*.{r}.checked.aimed.1.share", "", "<= 0.02",
       "users with the promoted item in their first 20, {r}, one member lies in the sums after the degrees",
       always=False, r=_PRIVIREC)  # fmt: skip
figure("robust.*.{r}.groups{g}.degrees.1.share", "", "<= 0.02",
       "the same, {r}, one member lies in all sums, degrees in {g} groups",
       always=False, r=_PRIVIREC, g=(3, 5))  # fmt: skip
figure("robust.*.{r}.checked.degrees.1.share", what="the same, {r}, degrees in one sum", always=False, r=_PRIVIREC)
figure("robust.*.{r}.groups{g}.degrees.5.share", what="the same, {r}, five members lie, degrees in {g} groups",
       always=False, r=_PRIVIREC, g=(3, 5))  # fmt: skip
figure("robust.*.{r}.{d}.aimed.1.share", "", "<= 0.02", "users with the promoted item, {r}, one member lies, {d}",
       always=False, r=("colr", "arrays"), d=("groups3", "groups5"))  # fmt: skip
figure("robust.*.{r}.checked.{lie}.share", what="the same, {r}, one sum, {lie}",
       always=False, r=("colr", "arrays"), lie=("aimed.1", "aimed.5", "always.1"))  # fmt: skip
figure("robust.*.{r}.groups{g}.{lie}.share", what="the same, {r} in {g} groups, {lie}",
       always=False, r=("colr", "arrays"), g=(3, 5), lie=("always.1", "always.2", "aimed.5", "aimed.60"))  # fmt: skip
figure("robust.*.colr-anew.groups5.aimed.1.share", what="the same, groups drawn anew in each round, as once",
       always=False)  # fmt: skip
figure("robust.*.counts.*.aimed.*.share", what="the same, ranked by summed counts", always=False)
figure("robust.*.{r}.*.{lie}.ndcg20", what="NDCG@20, {r}, {lie}",
       always=False, r=_PRIVIREC, lie=("none.0", "noise.1", "flood.1"))  # fmt: skip
figure("degrees.*.groups{g}.gain", what="area by the degrees of {g} groups, less that by all", always=False, g=(3, 5))
figure("robust.*.{r}.checked.{lie}.refused", what="sizes with which a sum is refused, {r}, {lie}",
       always=False, r=_PRIVIREC, lie=("noise.1", "flood.1"))  # fmt: skip
_NOISY: Final = ("colr", "privirec-k")
figure("privacy_cost.{r}.cpu_ratio", "", "<= 1.3", "client's time for a round, noise / no noise, {r}", r=_NOISY)
figure(
    "privacy_cost.{r}.clients*.contribution_ratio", "", "", "to train, encode and mask, noise / no noise, {r}", r=_NOISY
)
figure("privacy_cost.{r}.bytes_ratio", "", "<= 1.002", "bytes, noise / no noise, {r}", r=_NOISY)
# --- rounds over HTTP, memory, load
figure("masked_round.{n}.exact", "", ">= 1", "the released sum is exact", always=False, n=_MASKED_ROUNDS)
figure("masked_round.step1000.server_ms_per_client", "ms", "<= 10", "server's processor time per client", always=False)
figure("masked_round.round1000.peak_rss_ratio", "", "<= 1.2", "server's peak, 1,000 / 200 clients", always=False)
figure("masked_round.*.wall_s", "s", "", "wall time of the round")
figure("masked_round.*.server_cpu_s", "s", "", "processor time of the server")
figure("oneshot_round.server_ratio_masked", "", "<= 0.3", "server's time, 10 % of the clients gone / a masked round")
figure("oneshot_round.round1000.wall_ratio_masked", "", "<= 0.4", "wall time / a masked round, none gone", always=False)
figure("oneshot_round.round10k.exact", "", ">= 1", "10,000 clients: the released sum is exact", always=False)
figure("oneshot_round.round10k.peak_rss_ratio", "", "<= 1.2", "server's peak, 10,000 / 1,000 clients", always=False)
figure("oneshot_round.*.server_cpu_s", "s", "", "processor time of the server")
figure("arrays.own_model_protocol_speedup_vs_flower", "", ">= 30", "Flower's server / ours, in memory", always=False)
figure("arrays.whole.server_speedup_vs_flower", "", "", "Flower's SuperLink / our server, whole rounds", always=False)
figure("arrays.whole.*.wall_s", "s", "", "wall time of a whole round", always=False)
figure("arrays.own_model_bytes_ratio_vs_flower", "", "<= 0.55", "bytes that a client sends / Flower's", always=False)
for _kind in ("masked", "oneshot"):
    figure(f"arrays.{_kind}.many.vectors", "", "<= 4", "server's peak memory over idle / size of the model")
    figure(f"arrays.{_kind}.peak_rss_ratio", "", "<= 1.2", "server's peak memory, many clients / few")
for _kind in ("plain", "oneshot"):
    figure(f"arrays.large.{_kind}.peak_rss_gb", "GB", "<= 2.5", "server's peak memory, 100 million values")
figure("arrays.largest_error_of_bound", "", "<= 1", "largest error of a value of a mean / its bound, of all rounds")
figure("arrays.*.client_cpu_s", "s", "", "processor time of one client without training")
figure("arrays.*.server_cpu_s", "s", "", "processor time of the server")
_KINDS: Final = ("numbers", "text")
figure(
    "reading.{kind}.time_ratio",
    "",
    "<= 1.2",
    "our seconds / polars' for the same interactions, ids: {kind}",
    kind=_KINDS,
)
figure("reading.{kind}.cpu_ratio", "", "", "the same of processor seconds, ids: {kind}", kind=_KINDS)
figure("reading.{kind}.peak_of_file", "", "<= 4", "peak of memory / size of the file, ids: {kind}", kind=_KINDS)
figure("reading.*.seconds", "s", "", "10 million rows of CSV, from the file to interactions by user")
figure("memory.fold_worker.peak_bodies", "", "<= 8", "peak of a fold or merge above an idle worker / a body")
figure("scaling.fold.n300.m1000000.gb_per_s", "GB/s", ">= 1.5", "300 contributions of 4 MB folded", always=False)
figure("scaling.fold.n1000.m100000.gb_per_s", "GB/s", ">= 1", "1,000 contributions of 400 kB folded", always=False)
figure("sizing.*.server_cpu_s", "s", "", "processor time of the server for one round")
figure("sizing.kept.*.blobs_bytes", "B", "", "blobs after so many masked rounds of 6 members, 100 rounds kept")
figure("sizing.kept.*.database_bytes", "B", "", "file of the database after so many masked rounds of 6 members")
figure("sizing.kept.bytes_per_round", "B", "", "rows that stay of a round that is no longer kept")
figure("sizing.*.enrol_cpu_ms_per_member", "ms", "", "processor time of the server to enrol a member")
for _route in _ROUTES:
    _behind = ", behind a proxy" if _route else ""
    figure(f"service.{_route}round10k.server_cpu_ms_per_client", "ms", "<= 6", f"a client's whole visit{_behind}")
    figure(f"service.{_route}round10k.whole_s", "s", "<= 90", f"10,000 clients, from enrolment to release{_behind}")
    figure(f"service.{_route}round10k.wall_s", "s", "<= 30", f"10,000 clients, from open to release{_behind}")
    figure(f"service.{_route}round10k.exact", "", ">= 1", f"10,000 clients: the sum is right{_behind}")
    figure(f"service.{_route}round10k.peak_rss_ratio", "", "<= 1.2", f"peak memory, 10,000 / 1,000 clients{_behind}")
    figure(f"service.{_route}uploads_per_second", "1/s", ">= 700", f"contributions of 10 KB, durable{_behind}")
    figure(f"service.{_route}large.ours_mb_s", "MB/s", ">= 400", f"contributions of 4 MiB, durable{_behind}")
figure("floor.poll_ratio", "", "<= 2.0", "a poll that finds nothing new / a GET of plain FastAPI, processor time")
figure("floor.contribution_ratio", "", "<= 2.2", "a contribution of 10 KB / a PUT of plain FastAPI, processor time")
figure("floor.visit_ratio", "", "<= 3.0", "enrolment, envelope, poll and contribution / three PUTs and a GET")
figure("floor.*_ms", "ms", "", "the server's processor time for a request")
figure("large_round.n*.exact", "", ">= 1", "the released sums add up to what all clients sent, one server killed")
figure("large_round.n*.server_cpu_ms_per_client", "ms", "<= 5", "all servers, from the opening of the round to its end")
figure("large_round.n*.upload_cpu_ms_per_client", "ms", "", "the same while clients send: polls and an upload")
figure("large_round.n*.floor_ratio", "", "", "that / as many requests of plain FastAPI, in the same run")
figure("large_round.n*.floor_ms", "ms", "", "these of plain FastAPI")
figure("large_round.n*.peak_mib", "MiB", "<= 400", "most memory of one process of a server")
figure(
    "large_round.two.capacity_ratio",
    "",
    ">= 1.7",
    "what two servers can serve / what one can, processor time",
    always=False,
)
for _servers in ("one", "two"):
    figure(f"large_round.{_servers}.server_cpu_ms_per_client", "ms", "", "with so many that stay", always=False)
figure("overload.idle.kib_per_poll", "KiB", "", "memory of the server for a member that waits in a long poll")
figure("overload.idle.server_cpu_ms_per_s", "ms", "", "its processor time a second while 500 members wait")
figure("overload.idle.health_p99_ms", "ms", "", "99 of 100 health checks meanwhile")
figure("overload.*.lost", "", "<= 0", "acknowledged contributions that are not in the sum")
figure("overload.*.errors", "", "<= 0", "answers that are neither: done, nor: try again later")
figure("overload.*.refused", "", "", "contributions answered: try again later")
figure("overload.*.uploads_per_s", "1/s", "", "contributions of 4 MiB, durable")
figure("overload.*.upload_p50_ms", "ms", "", "half of the contributions take no longer")
figure("overload.*.poll_p50_ms", "ms", "", "half of the polls take no longer")
figure("overload.*.upload_p99_ms", "ms", "", "99 of 100 contributions take no longer")
figure("overload.*.poll_p99_ms", "ms", "", "99 of 100 polls take no longer")
figure("overload.*.peak_mib", "MiB", "", "most memory of the server")
figure("overload.*.server_cpu_ms_per_upload", "ms", "", "its processor time, with the polls beside")
figure("large_round.n*.*_peak_mib", "MiB", "", "most memory of a process: the server, a worker")
figure("demo.demo.seconds", "s", "<= 90", "`make demo` after set-up, to its end")
figure("demo.demo.contribution_ms", "ms", "<= 6", "rounds of the plain run / contributions, without measuring")
figure("demo.demo.enrol_ms_per_client", "ms", "<= 20", "until the clients have certificate, membership and keys")
figure("demo.setup.seconds", "s", "<= 30", "`make setup` in a fresh clone", always=False)
figure("demo.cli.help_ms", "ms", "<= 350", "`hushrec --help` as a process")

# --- experiments
for _data in _SETS:
    figure(f"quality.{_data}.{{r}}.ndcg20_over_popularity", "", ">= 1.05", "{r} / popularity, NDCG@20", r=_RECOMMENDED)
    figure(f"quality.{_data}.best_over_central_full", "", ">= 0.97", "best federated / central, NDCG@20 over all items")
    figure(f"quality.{_data}.auto_over_best_full", "", ">= 0.95", "recipe of `auto` / the best, NDCG@20 over all items")
    figure(f"quality.{_data}.best_over_central", "", ">= 0.97", "best federated HR@10 / best central one")
for _data in ("insteval", "ml-small"):
    figure(f"quality.{_data}.best_over_central_full", "", ">= 0.97", "best federated / central, NDCG@20 over all items")
    figure(f"quality.{_data}.auto_over_best_full", "", ">= 0.95", "recipe of `auto` / the best, NDCG@20 over all items")
for _data in _RATED:
    figure(f"rating_quality.{_data}.rfrec.{{m}}_over_means", "", "<= 1", "rfrec / user and item means", m=_ERRORS)
    figure(f"rating_quality.{_data}.rfrec.{{m}}_over_central", "", "<= 1.03", "rfrec / central", m=_ERRORS)
for _users, _epsilon, _bound in ((100_000, 4, ">= 0.97"), (100_000, 2, ">= 0.9"), (400_000, 2, ">= 0.98")):
    _what = f"NDCG@20 of {_users:,} users at epsilon {_epsilon} / without noise"
    figure(f"privacy.ml-1m.users{_users}.privirec.eps{_epsilon}.kept", "", _bound, _what, always=False)
figure("privirec_service.ml100k.difference", "", "", "Recall@20, service - central; at most 0.002 in size")


# --- What a script prints, and what is kept of it


def entries(script: str) -> list[Entry]:
    """The figures of a script, in the order of their registration."""
    return _ENTRIES.get(script, [])


def absent(script: str, figures: Mapping[str, Figure]) -> list[str]:
    """The registered figures that a run of the script must write and did not."""
    return [entry.key for entry in entries(script) if entry.always and not entry.values(figures)]


def run(
    script: str, parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], Mapping[str, Figure]]
) -> None:
    """Run a script: print its registered figures and targets, and write all figures to `--json`, if it is given.

    measure: maps the options to the figures.
    """
    options = parser.parse_args()
    figures = measure(options)
    Console().print(table(script, figures))
    write_figures(options.json, figures)


def read_results(folder: Path) -> Results:
    """All results of a folder by script: those in `results.json`, and files of one script each (experiments)."""
    found: Results = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        found |= content if path.name == RESULTS else {path.stem: content}
    return found


def write_results(folder: Path, results: Mapping[str, Mapping[str, Figure]]) -> None:
    """Put the results into `results.json`; those of other scripts stay."""
    path = folder / RESULTS
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**kept, **results}, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


def rows(results: Mapping[str, Mapping[str, Figure]]) -> list[tuple[str, str, str, str, str]]:
    """(script, key, value with unit, target, what it is) of each registered figure that was measured."""
    found = []
    for script in sorted(results):
        for entry in entries(script):
            for key, value in entry.values(results[script]).items():
                target = f"{entry.target}{'' if entry.met(value) else ', missed'}"
                found.append((script, key, f"{shown(value)} {entry.unit}".strip(), target, entry.what))
    return found


def markdown(results: Mapping[str, Mapping[str, Figure]]) -> str:
    lines = ["| benchmark | figure | value | target | meaning |", "|---|---|---:|---|---|"]
    lines += [f"| {s} | `{key}` | {value} | {target} | {what} |" for s, key, value, target, what in rows(results)]
    return "# Results of the benchmarks\n\n" + "\n".join(lines) + "\n"


def table(script: str, figures: Mapping[str, Figure], meaning: bool = False) -> Table:
    """The registered figures of a script, to print; those that miss their target are red. meaning: in a last column."""
    made = Table("figure", "value", "target", *(["meaning"] if meaning else []), title=script, title_justify="left")
    for _, *cells in rows({script: figures}):
        made.add_row(*cells[: len(made.columns)], style="red" if cells[2].endswith("missed") else "")
    return made


def page(results: Mapping[str, Mapping[str, Figure]], failures: Mapping[str, str], subtitle: str) -> str:
    """One self-contained HTML page: a table per script, and the reason where it failed, by script."""
    console = Console(record=True, file=StringIO(), width=180)
    console.print(subtitle, highlight=False)
    for script in sorted({*results, *failures}):
        own = table(script, results.get(script, {}), meaning=True)
        console.print(own if own.row_count else script)
        console.print(failures.get(script, ""), style="red", markup=False)
    return console.export_html()


def shown(value: Figure) -> str:
    """Four digits of a number, without an exponent where it can be read; other values as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
