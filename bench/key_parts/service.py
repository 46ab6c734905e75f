"""Keys of the results of the service: load, memory, scaling, cost of encryption, local training."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bench.keys import Key, at_least, at_most

__all__ = ["TABLES"]


def _twice(*rows: Key) -> tuple[Key, ...]:
    """Each row, and the same for requests with X-Forwarded-For."""
    also = (replace(row, pattern=f"forwarded.{row.pattern}", meaning="the same behind a proxy") for row in rows)
    return *rows, *also


_SPREAD: Final = "{median,min,max}"

TABLES: Final[dict[str, tuple[Key, ...]]] = {
    "overhead": (
        at_most("fedmf.ours.ratio", 1.4, "", "contribution / float32 plaintext, the full matrix"),
        at_most("seconds", 600, "s", "time to measure the whole table"),
        Key(
            "<row>.<way>.ratio",
            "",
            "contribution / plaintext; an entry of Top-K is 8 bytes of plaintext, value and index",
        ),
        Key("<row>.<way>.ciphertext_kb", "KiB", "size of one contribution"),
        Key("<row>.<way>.plaintext_kb", "KiB", "size of its plaintext"),
        Key("<row>.<way>.client_seconds", "s", "sum of the client's steps"),
        Key("<row>.<way>.client_{seal,open}_seconds", "s", "one step of the client"),
        Key("<row>.<way>.server_seconds", "s", "the server's work for one of `clients` clients"),
        Key("<row>.<way>.scaled", "bool", "whether the row was measured on a sample and multiplied"),
        Key("clients", "", "contributions of one sum"),
        Key("repetitions", "", "repetitions of each timed step"),
        Key("phe_key_bits", "bits", "size of the Paillier key"),
        Key("phe_sample", "", "values that phe was measured on; null: every value"),
    ),
    "federated_evaluation": (
        Key("<recipe>.<mechanism>.bytes", "bytes", "a contribution to a sum that trains, without evaluation"),
        Key("<recipe>.<mechanism>.more_bytes", "bytes", "what a measurement adds to it"),
        Key("<recipe>.client_ms", "ms", "a client's processor time for the contribution's values, not sealed"),
        Key("<recipe>.measuring_ms", "ms", "what a measurement adds to it"),
        Key("{items,dim,repetitions}", "", "size of the model; repetitions of each timed step"),
    ),
    "memory": (
        at_most("peak_rss_ratio", 1.2, "", "server's peak memory, 500 clients / 50 clients"),
        Key("peak_rss_mib_{50,500}", "MiB", "peak memory of the API process and its worker together"),
        Key("peak_rss_{api,workers}_mib_{50,500}", "MiB", "peak memory of each"),
        Key("seconds_{50,500}", "s", "from the first upload to the released aggregate"),
        Key("fold_rest_s_{50,500}", "s", "from the last acknowledged upload to the released aggregate"),
        Key("contribution_bytes", "bytes", "size of one contribution"),
        at_most(
            "fold_worker.peak_bodies", 8, "", "peak memory of a fold or merge above an idle worker / bytes of a body"
        ),
        Key("fold_worker.<mechanism>.{fold,merge}_bodies", "", "the same for one mechanism"),
        Key("fold_worker.plain.release_bodies", "", "the same for a release in which the server computes the model"),
        Key("fold_worker.<mechanism>.body_bytes", "bytes", "size of a body: CoLR, rank 4, dim 32"),
        Key("fold_worker.<mechanism>.idle_mib", "MiB", "memory of the idle worker"),
        Key("fold_worker.items", "", "items of that task"),
    ),
    "scaling": (
        at_least("fold.n300.m1000000.gb_per_s", 1.5, "GB/s", "300 contributions of 4 MB folded, a core"),
        at_least("fold.n1000.m100000.gb_per_s", 1.0, "GB/s", "1,000 contributions of 400 kB folded, a core"),
        Key("fold.n<clients>.m<values>.gb_per_s", "GB/s", "bytes / processor seconds of a fold"),
        Key("{fold,unmask}.n<clients>.m<values>.cpu_s[_min,_max]", "s", "processor time to fold or to unmask a round"),
        Key("{fold,unmask}.n<clients>.m<values>.path_s[_min,_max]", "s", "the same along the critical path"),
        Key("{fold,unmask}.n<clients>.m<values>.wall_s[_min,_max]", "s", "the same by the clock"),
        Key("fold.n<clients>.m<values>.bytes", "bytes", "contributions of the round"),
        Key("unmask.n<clients>.m<values>.masks", "", "masks that are removed"),
        Key(
            "workers.<kind>.{fold,unmask}.cpu_s[_min,_max]",
            "s",
            "all jobs of all workers; `<kind>`: `{here,local,dask}{1,2,4}`",
        ),
        Key(
            "workers.<kind>.{fold,unmask}.path_s[_min,_max]",
            "s",
            "slowest part + merge, batch after batch: the time with one core for every worker",
        ),
        Key("workers.<kind>.{fold,unmask}.wall_s[_min,_max]", "s", "by the clock, on the cores of this machine"),
        Key("workers.<kind>.{fold,unmask}.speedup_{path,wall}", "", "time of one worker / time of this many"),
        Key("workers.{clients,values,masks}", "", "size of that round"),
        Key("units.secret_us.t<threshold>", "µs", "reconstruct a secret from `<threshold>` shares"),
        Key("units.pair_us", "µs", "agree on the mask key of a pair"),
        Key("units.merge_bytes_per_s", "bytes/s", "read, check, add and write partial sums"),
        Key("units.digest_bytes_per_s", "bytes/s", "SHA-256 alone"),
        Key("units.dispatch_ms.{local,dask}", "ms", "fold one contribution of 1,000 values, by the clock"),
        Key("units.{roster_bytes,reply_bytes}", "bytes", "data of a round of `units.clients` that a worker is given"),
        Key("units.collect_shares_ms", "ms", "time to read that data"),
        Key("units.{clients,masks,degree,threshold}", "", "size of that round"),
    ),
    "service": (
        *_twice(
            at_most(
                "round10k.server_cpu_ms_per_client", 6.0, "ms", "server's processor time for a client's whole visit"
            ),
            at_most("round10k.whole_s", 90, "s", "10,000 clients, from the first enrolment to the release"),
            at_most("round10k.wall_s", 30, "s", "10,000 clients, from the opened round to its release"),
            at_least("round10k.exact", 1, "bool", "10,000 clients: values within the predicted error, counts exact"),
            at_most("round10k.peak_rss_ratio", 1.2, "", "server's peak memory, 10,000 clients / 1,000 clients"),
            at_least("uploads_per_second", 700, "1/s", "contributions of 10 KB, durable, 32 requests at once"),
            at_least("large.ours_mb_s", 400, "MB/s", "contributions of 4 MiB, durable, 4 requests at once"),
        ),
        Key("[forwarded.]round1k.exact", "bool", "the same for 1,000 clients"),
        Key("[forwarded.]round1k.{wall,whole}_s", "s", "the same times for 1,000 clients"),
        Key("[forwarded.]round1k.server_cpu_ms_per_client", "ms", "the same for 1,000 clients"),
        Key("[forwarded.]round{1k,10k}.{enrol,envelopes,poll,upload,fold_rest}_s", "s", "each step"),
        Key("[forwarded.]round{1k,10k}.{enrol,poll,upload}_p{50,95,99}_ms", "ms", "latencies of a step's requests"),
        Key("[forwarded.]round{1k,10k}.server_cpu_s", "s", "processor time of the server"),
        Key(
            "[forwarded.]round{1k,10k}.peak_rss[_api,_workers]_mb",
            "MiB",
            "peak memory of all processes, or of one kind",
        ),
        Key("[forwarded.]round{1k,10k}.{max,predicted}_error", "", "largest error of the sum, and its bound"),
        Key("[forwarded.]round{1k,10k}.{clients,survivors,connections}", "", "size of the round and of the load"),
        Key("[forwarded.]round{1k,10k}.contribution_bytes", "bytes", "size of one contribution"),
        Key("[forwarded.]uploads.p{50,95,99}_ms", "ms", "from the first byte to the answer, 32 requests at once"),
        Key(
            "[forwarded.]large.{ours,stored,discarded}_mb_s[_min,_max]",
            "MB/s",
            "median rate of the batches, and its range: the service, and two routes of the bare application",
        ),
        Key("[forwarded.]{large,uploads}.body_bytes", "bytes", "size of a body"),
        Key("[forwarded.]{large,uploads}.connections", "", "requests at once"),
        Key(
            "certificates.enrol_cpu_ms[_without]",
            "ms",
            "server's processor time of an enrolment, with a certificate or without",
        ),
        Key("certificates.enrol_p50_ms[_without]", "ms", "from the request to the answer, 4 enrolments at once"),
        Key("certificates.issue_cpu_ms", "ms", "organiser's processor time to certify a member, new keys included"),
        Key(
            "certificates.roster_bytes[_without]",
            "bytes",
            "masked round's roster, and the same without its certificates",
        ),
        Key("certificates.roster_check_ms", "ms", "client's processor time to check every certificate of a roster"),
        Key("certificates.roster_check_again_ms", "ms", "the same in a later round, when they are known"),
        Key("certificates.roster_check_ms_without", "ms", "the same in a task without an organiser (`trust_roster`)"),
        Key("certificates.{enrolments,roster_members}", "", "size of these measurements"),
    ),
    "signatures": (
        Key("{ed25519,ours,library}.sign_us", "µs", "sign a request: Ed25519 alone, our profile, the whole RFC 9421"),
        Key("{ed25519,ours,library}.verify_us", "µs", "verify it"),
    ),
    "demo": (
        at_most("demo.seconds", 90, "s", "`make demo` after set-up, to its end"),
        at_most("demo.contribution_ms", 6, "ms", "the rounds of the plain run / contributions, measuring left out"),
        at_most(
            "demo.enrol_ms_per_client",
            20,
            "ms",
            "until the encrypted run's clients have certificate, membership, terms and keys / clients",
        ),
        at_most("setup.seconds", 30, "s", "`make setup` in a fresh clone, with this machine's index and cache"),
        at_most("cli.help_ms", 350, "ms", "`hushrec --help` as a process"),
        Key("demo.{seconds,contribution_ms,enrol_ms_per_client}_{min,max}", "", "spread over `demo.runs`"),
        Key("setup.seconds_{min,max}", "s", "spread over `setup.runs`"),
        Key("cli.help_ms_{min,max}", "ms", "spread over `cli.runs`"),
        Key("demo.hr10.{encrypted,plain,fedmf,popularity}", "", "HR@10 after the last round; the same in every run"),
        Key("demo.{clients,rounds,cohort}", "", "size of each run of the demo"),
        Key("{demo,setup,cli}.runs", "", "repetitions"),
    ),
    "training": (
        at_most("client_round_ms", 5, "ms", "median processor time of a client's round, FedMF (all 64 columns)"),
        at_most("client_round_ms_colr4", 5, "ms", "median processor time of a client's round, CoLR at rank 4"),
        at_most("colr1000.seconds", 600, "s", "60 clients x 1,000 rounds of CoLR in one process, wall time"),
        Key("client_round_ms_{colr1,colr16,scolr16}", "ms", "median processor time of a client's round, other recipes"),
        Key(f"client_round[_colr1,_colr4,_colr16,_scolr16]_ms_{_SPREAD}", "ms", "spread over `repetitions`"),
        Key("repetitions", "", "repetitions of each timed step"),
        Key("positives", "", "items in the history of the measured user"),
        Key("colr1000.cpu_seconds", "s", "processor time of the 1,000 rounds"),
        Key("colr1000.{rounds_run,clients}", "", "rounds that were run, and clients in each"),
        Key("colr1000.scaled", "bool", "whether fewer rounds were run and the times multiplied"),
        Key("colr1000.loss_{first,last}", "", "mean training loss of the first and of the last round"),
    ),
}
