"""Every key of every results file: its pattern, its unit, its meaning and, where there is one, its target.

This is the only place where keys are described. `bench.targets` takes the targets from here and `bench.readme` the
tables of bench/README.md. A test checks that every committed key has a row and that every row has a committed key.
"""

from __future__ import annotations

from typing import Final

from bench.keys import Key, at_least, at_most

__all__ = ["TABLES", "TABLES_OF_FIDELITY", "rows_of"]

_SPREAD: Final = "{median,min,max}"
QUALITY_RECIPES: Final = {
    "filmtrust": ("colr", "fedmf", "privirec-k"),
    "gowalla": ("colr",),
    "ml-1m": ("colr",),
}
"""The federated recipes that bench/quality.py has measured on each set."""


def _paillier(bits: int) -> tuple[Key, ...]:
    key = f"{bits}-bit key"
    return (
        at_least(
            f"bits{bits}.encrypt_speedup_table", 400, "", f"{key}: phe's encryption time / ours, fixed-base table"
        ),
        at_least(f"bits{bits}.encrypt_speedup_pool", 4000, "", f"{key}: phe's encryption time / ours, filled pool"),
        at_least(f"bits{bits}.bytes_ratio", 40, "", f"{key}: bytes of phe's ciphertexts / bytes of our contribution"),
        at_least(f"bits{bits}.fold_speedup", 50, "", f"{key}: phe's time to fold a contribution / ours"),
        at_least(f"bits{bits}.decrypt_speedup", 40, "", f"{key}: phe's time to decrypt the sum / ours"),
    )


TABLES: Final[dict[str, tuple[Key, ...]]] = {
    "ckks": (
        at_most("upload_ratio_compact", 1.1, "", "seeded contribution / float32 plaintext, set `compact`"),
        at_most("upload_ratio_standard", 1.4, "", "seeded contribution / float32 plaintext, set `standard`"),
        at_most("upload_ratio_public", 4.0, "", "contribution / float32 plaintext, public-key mode (set `precise`)"),
        at_least("encrypt_speedup_seeded", 8.0, "", "TenSEAL's encrypt + serialise time / ours, seeded, `standard`"),
        at_least("encrypt_speedup_public", 4.0, "", "TenSEAL's encrypt + serialise time / ours, public-key mode"),
        at_least(
            "fold_speedup_expanded", 30.0, "", "TenSEAL's deserialise + add time / our fold, expanded, `standard`"
        ),
        at_least("fold_speedup_seeded", 3.0, "", "TenSEAL's deserialise + add time / our fold, seeded, `standard`"),
        at_most("max_error_standard", 1e-6, "", "largest error of the opened sum, set `standard`"),
        at_most("predicted_error_standard", 1e-6, "", "bound of that error, computed by the planner"),
        at_most("max_error_compact", 1e-4, "", "largest error of the opened sum, set `compact`"),
        at_most("predicted_error_compact", 1e-4, "", "bound of that error, computed by the planner"),
        Key("encrypt_speedup_{compact,precise}", "", "the seeded speed-up of the other sets"),
        Key("fold_speedup_public", "", "the fold's speed-up on public-key contributions"),
        Key(
            "check_and_fold_speedup_expanded",
            "",
            "TenSEAL's fold time / (our check + our fold); TenSEAL checks nothing",
        ),
        Key(f"encrypt_<form>_ms_{_SPREAD}", "ms", "a client's time to seal one contribution"),
        Key(f"fold_<form>_ms_{_SPREAD}", "ms", "the server's time to fold one contribution"),
        Key(f"check_<form>_ms_{_SPREAD}", "ms", "the server's time to check one contribution on arrival"),
        Key(f"round_key_{{generate,sign,verify}}_ms_{_SPREAD}", "ms", "public-key mode: the key pair of one round"),
        Key(f"round_key_check_sum_ms_{_SPREAD}", "ms", "public-key mode: the holder's check of the opened slots"),
        Key("round_key_{bytes,secret_bytes}", "bytes", "a round's signed public key; the stored secret key"),
        Key("fold_expanded_gigabytes_per_second", "GB/s", "contribution bytes folded on one core"),
        Key("{max,rms,predicted}_error_{precise,public,standard_expanded}", "", "the errors of the other forms"),
        Key("rms_error_{compact,standard}", "", "root mean square error of the opened sum"),
        Key("upload_ratio_{precise,standard_expanded,tenseal}", "", "contribution / float32 plaintext, other forms"),
        Key("clients", "", "contributions of one sum"),
        Key("values", "", "values of one contribution"),
        Key("repetitions", "", "repetitions of each timed step"),
    ),
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
        Key("<row>.<way>.client_{encrypt,serialise,decrypt}_seconds", "s", "one step of the client"),
        Key("<row>.<way>.server_seconds", "s", "sum of the server's steps, for one of `clients` clients"),
        Key("<row>.<way>.server_{deserialise,fold}_seconds", "s", "one step of the server, for one client"),
        Key("<row>.<way>.scaled", "bool", "whether the row was measured on a sample and multiplied"),
        Key("clients", "", "contributions of one sum"),
        Key("repetitions", "", "repetitions of each timed step"),
        Key("phe_key_bits", "bits", "size of the Paillier key"),
        Key("phe_sample", "", "values that phe was measured on; null: every value"),
    ),
    "paillier": (
        *_paillier(2048),
        *_paillier(3072),
        Key("bits{2048,3072}.table_seconds", "s", "time to make the fixed-base table, once for each key and process"),
        Key(
            "bits{2048,3072}.exact",
            "bool",
            "whether the opened sum equals the sum of fixed-point values to the last bit",
        ),
        Key("bits{2048,3072}.encrypt_speedup_crt", "", "phe's encryption time / ours with the secret key"),
        Key(
            "bits{2048,3072}.check_and_fold_speedup", "", "phe's fold time / (our check + our fold); phe checks nothing"
        ),
        Key("bits{2048,3072}.max_error", "", "largest error of the opened sum"),
        Key("bits{2048,3072}.predicted_error", "", "bound of that error, computed by the planner"),
        Key("bits{2048,3072}.contribution_bytes", "bytes", "size of our contribution"),
        Key("bits{2048,3072}.phe_bytes", "bytes", "size of phe's ciphertexts for the same values"),
        Key("bits{2048,3072}.ciphertexts", "", "ciphertexts of one contribution"),
        Key("bits{2048,3072}.values_per_ciphertext", "", "values packed into one ciphertext"),
        Key("bits{2048,3072}.{encrypt,fold,decrypt}_phe_seconds", "s", "phe's time for all values"),
        Key(
            f"bits{{2048,3072}}.{{encrypt_table,encrypt_pool,encrypt_crt,fold,check,decrypt}}_ms_{_SPREAD}",
            "ms",
            "our time; `fold`: for one contribution",
        ),
        Key("bits{2048,3072}.phe_values_measured", "", "values that phe was measured on"),
        Key("clients", "", "contributions of one sum"),
        Key("values", "", "values of one contribution"),
        Key("repetitions", "", "repetitions of each timed step"),
    ),
    "masked": (
        at_least("server_speedup_vs_flower", 30, "", "Flower's server time for a round / ours"),
        at_least("share_speedup_vs_flower", 10, "", "Flower's time for a client's share stage / ours"),
        at_most("bytes_per_value", 4.1, "bytes", "size of a masked vector / number of values, 32-bit ring"),
        at_least(
            "mask_fraction_of_aes",
            0.6,
            "",
            "time of AES-128-CTR for 23 streams / time to derive, make and add the same masks",
        ),
        at_least("quantise_speedup_vs_flower", 5, "", "Flower's `quantize` time / ours with checks and clipping"),
        Key("server_ms", "ms", "the server's time for a round"),
        Key("server_{advertise,share,contribute,confirm,unmask}_ms", "ms", "the server's time for one stage"),
        Key(
            "client_{advertise,share,encode,contribute,confirm,unmask}_ms", "ms", "a client's median time for one stage"
        ),
        Key("flower_server_ms", "ms", "Flower's server time for a round"),
        Key(
            "flower_client_{advertise,share,contribute,unmask}_ms", "ms", "Flower's; `contribute` includes quantisation"
        ),
        Key(f"[flower_]quantise_ms_{_SPREAD}", "ms", "a client's quantisation"),
        Key("mask_fraction_of_aes_server", "", "the same fraction for the 276 streams that the server removes at most"),
        Key("mask_threads_speedup", "", "wall time to add those masks in one thread / in two threads"),
        Key("aes_gigabytes_per_second", "GB/s", "AES-128-CTR alone"),
        Key("masks_gigabytes_per_second", "GB/s", "masks derived, made and added"),
        Key("flower_bytes_per_value", "bytes", "Flower's upload / number of values"),
        Key("flower_max_error_of_mean", "", "largest error of Flower's mean"),
        Key("predicted_error_of_mean", "", "bound of the error of our mean, computed by the planner"),
        Key("{clients,values,dropouts,rounds}", "", "size of a round, clients that drop out, rounds measured"),
    ),
    "federated_evaluation": (
        Key("<recipe>.<mechanism>.bytes", "bytes", "a contribution to a sum that trains, without evaluation"),
        Key("<recipe>.<mechanism>.more_bytes", "bytes", "what a measurement adds to it"),
        Key("<recipe>.client_ms", "ms", "a client's processor time for the contribution's values, not sealed"),
        Key("<recipe>.measuring_ms", "ms", "what a measurement adds to it"),
        Key("{items,dim,repetitions}", "", "size of the model; repetitions of each timed step"),
    ),
    "oneshot": (
        at_most("bytes_per_value", 4.2, "bytes", "size of a contribution / number of values, sums of 28 bits"),
        at_most("share_bytes", 100_000, "bytes", "the rest of an upload: shares for a committee of 5, key, signature"),
        at_most("client_messages", 1, "", "messages of a client in a round"),
        at_most("client_ratio_masked", 1.0, "", "a client's time for its whole round / a masked client's"),
        at_least("fold_gigabytes_per_second", 1.5, "GB/s", "contribution bytes folded on one core"),
        at_least("exact", 1, "bool", "whether the opened sum equals the sum of the fixed-point values"),
        Key("client_ratio_masked_uncertified", "", "the ratio if the masked client checks no certificate"),
        Key(f"client_ms_{_SPREAD}", "ms", "a client's time for its whole round"),
        Key(f"masked_client[_uncertified]_ms_{_SPREAD}", "ms", "a masked client's time for its whole round"),
        Key("fold_ms", "ms", "the server's time to fold one contribution"),
        Key("decode_seconds", "s", "time from the members' sums of shares to the opened sum"),
        Key("member_ms_per_client", "ms", "time of one member of the committee for one client"),
        Key("member_bytes_per_client", "bytes", "what one member of the committee downloads for one client"),
        Key("{values,clients,round_clients}", "", "size of the plan, clients of the measured round"),
    ),
    "masked_round": (
        at_least("round1000.exact", 1, "bool", "1,000 clients over HTTP: the released sum is exact in the ring"),
        at_most("round1000.peak_rss_ratio", 1.2, "", "server's peak memory, 1,000 clients / 200 clients"),
        Key("round100.peak_rss_ratio", "", "the same in a quick run, 100 clients / 40 clients"),
        Key("round<clients>.exact", "bool", "whether the released sum is exact in the ring"),
        Key("round<clients>.wall_s", "s", "wall time of the round"),
        Key("round<clients>.server_cpu_s", "s", "processor time of the server"),
        Key("round<clients>.asked", "", "clients in the cohort"),
        Key("round<clients>.survivors", "", "clients whose contribution is in the sum"),
        Key("round<clients>.neighbours", "", "k, neighbours of a client"),
        Key("round<clients>.threshold", "", "t, shares that reconstruct a secret"),
        Key("round<clients>.peak_rss[_api,_workers]_mib", "MiB", "peak memory of all processes, or of one kind"),
        Key("round<clients>.bytes_{up,down}_per_client", "bytes", "traffic of one client in all stages"),
        Key("round<clients>.contribution_bytes", "bytes", "size of one masked vector"),
    ),
    "quality": (
        *(
            at_least(f"{data}.{recipe}.hr10_over_popularity", 1.05, "", f"{data}: HR@10 of {recipe} / of popularity")
            for data in ("filmtrust", "gowalla", "ml-1m")
            for recipe in QUALITY_RECIPES[data]
        ),
        Key("<set>.<recipe>-started.hr10_over_popularity", "", "the same after a spectral start, one seed"),
        Key("<set>.best_over_central", "", "the best federated HR@10 / the best central one; the goal is 0.97"),
        Key("<set>.<name>.{hr10,ndcg10}", "", "mean over the seeds"),
        Key("<set>.<name>.{hr10,ndcg10}_spread", "", "standard deviation between the seeds"),
        Key("<set>.<name>.seeds", "", "number of seeds"),
    ),
    "privirec-service": (
        Key("ml100k.service.{recall20,ndcg20}", "", "GF-CF from the service's sums; each device scores its own row"),
        Key("ml100k.central.{recall20,ndcg20}", "", "exact float64 singular vectors of the rows that were summed"),
        Key("ml100k.everyone.{recall20,ndcg20}", "", "exact float64 singular vectors of all rows"),
        Key("ml100k.difference", "", "Recall@20, service - central; at most 0.002 in size"),
        Key("ml100k.difference_ndcg20", "", "NDCG@20, service - central"),
        Key("ml100k.service.{enrol_s,wall_s,seconds_a_sum}", "s", "enrolment; all sums; the mean of one sum"),
        Key("ml100k.service.bytes_{up,down}", "bytes", "traffic of all clients"),
        Key("ml100k.service.bytes_{up,down}_a_client_and_sum", "bytes", "traffic of one client in one sum, mean"),
        Key("ml100k.service.predicted_error", "", "bound of the error of a summed entry"),
        Key("ml100k.{clients,users_ranked}", "", "enrolled clients; users with test items"),
        Key("ml100k.survivors_{first,last}", "", "clients in the first and in the last sum"),
        Key("ml100k.gone", "", "share of the clients that left before the last sum"),
        Key("ml100k.{rounds,rounds_failed}", "", "rounds, and how many of them failed"),
        Key("ml100k.clipped", "", "uploaded values that were clipped"),
        Key("ml100k.{components,columns,iterations}", "", "parameters of the recipe"),
    ),
    "memory": (
        at_most("peak_rss_ratio", 1.2, "", "server's peak memory, 500 clients / 50 clients"),
        Key("peak_rss_mib_{50,500}", "MiB", "peak memory of the API process and its worker together"),
        Key("peak_rss_{api,workers}_mib_{50,500}", "MiB", "peak memory of each"),
        Key("seconds_{50,500}", "s", "from the first upload to the released aggregate"),
        Key("contribution_bytes", "bytes", "size of one contribution"),
    ),
    "scaling": (
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
        Key("units.dispatch_ms.{local,dask}", "ms", "run an empty job, by the clock"),
        Key("units.{roster_bytes,reply_bytes}", "bytes", "data of a round of `units.clients` that a worker is given"),
        Key("units.collect_shares_ms", "ms", "time to read that data"),
        Key("units.{clients,masks,degree,threshold}", "", "size of that round"),
    ),
    "service": (
        at_least("ingest_fraction", 0.6, "", "rate of 4.2 MB contributions / a bare server's that discards them"),
        at_least("control_fraction", 0.5, "", "rate of polls / a bare FastAPI route's"),
        at_least("round10k.exact", 1, "bool", "10,000 clients: values within the predicted error, counts exact"),
        at_most("round10k.peak_rss_ratio", 1.2, "", "server's peak memory, 10,000 clients / 1,000 clients"),
        Key("round1k.exact", "bool", "the same for 1,000 clients"),
        Key("round{1k,10k}.wall_s", "s", "from the opened round to its release"),
        Key("round{1k,10k}.whole_s", "s", "from the first enrolment to the release"),
        Key("round{1k,10k}.{enrol,envelopes,poll,upload,fold_rest}_s", "s", "each step"),
        Key("round{1k,10k}.{enrol,poll,upload}_p{50,95,99}_ms", "ms", "latencies of a step's requests"),
        Key("round{1k,10k}.server_cpu_s", "s", "processor time of the server"),
        Key("round{1k,10k}.peak_rss[_api,_workers]_mb", "MiB", "peak memory of all processes, or of one kind"),
        Key("round{1k,10k}.{max,predicted}_error", "", "largest error of the sum, and its bound"),
        Key("round{1k,10k}.{clients,survivors,connections}", "", "size of the round and of the load"),
        Key("round{1k,10k}.contribution_bytes", "bytes", "size of one contribution"),
        Key("ingest.{ours,bare}_mb_s[_min,_max]", "MB/s", "median rate of the batches, and its range"),
        Key("ingest.{ours,bare}_{server,generator}_cpu_ms", "ms", "processor time for a body, of server and load"),
        Key("ingest.{ours,bare}_p{50,95,99}_ms", "ms", "from the first byte to the answer, 4 bodies at once"),
        Key("ingest.fold_ms_per_contribution", "ms", "fold and release of all contributions, afterwards"),
        Key("ingest.body_bytes", "bytes", "size of a body"),
        Key("ingest.{connections,repetitions,batch}", "", "size of the load"),
        Key("control.{poll,round,task,ledger}_fraction", "", "rate of this request / the bare route's"),
        Key("control.{bare,poll,round,task,ledger}_per_s", "1/s", "requests per second"),
        Key("control.{bare,poll,round,task,ledger}_server_cpu_us", "µs", "processor time of the server for a request"),
        Key("control.{bare,poll,round,task,ledger}_full_p{50,95,99}_ms", "ms", "latencies under full load"),
        Key("latency.{bare,poll,round}_p{50,95,99}_ms", "ms", "latencies at a fixed rate, from when a request was due"),
        Key("latency.rate_per_s", "1/s", "that rate"),
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
    "controls": (
        Key(
            "controls.<dataset>.<control>.[<candidates>.]{hr10,ndcg10,ndcg20,recall20,mae,rmse}",
            "",
            "what a control reaches by the same metric; `<candidates>`: `full_ranking` or `99_sampled_negatives`",
        ),
    ),
    "federation": (
        Key("<run>.{hr10,ndcg10}", "", "HR@10 and NDCG@10 after the last round"),
        Key("<run>.bytes_up", "bytes", "mean size of a contribution"),
        Key("<run>.aggregate_bytes", "bytes", "size of an aggregate, which every client may have to download"),
        Key("<run>.{train,seal,fold}_ms", "ms", "mean time for one client; the check on arrival counts as folding"),
        Key("<run>.open_ms", "ms", "mean time to open and absorb an aggregate"),
        Key("<run>.clipped", "", "uploaded values that were clipped, all rounds together"),
        Key(
            "<run>.negatives_replaced",
            "",
            "entries of the published negatives file that were not negatives and were drawn again",
        ),
        Key("<run>.loss_last", "", "mean training loss of the last round"),
        Key("<run>.{rounds,seed}", "", "rounds trained; seed"),
        Key("<run>.protocol", "text", "how training negatives are drawn: `clean`, `paper` or `paper_protocol`"),
        Key("<run>.seconds", "s", "wall time of the run"),
    ),
    "rfrec": (
        Key("<run>.{mae,rmse}", "stars", "errors of the ratings after the last sum"),
        Key("<run>.{mae,rmse}_held", "stars", "the same with predictions clipped to the range of ratings"),
        Key("<run>.epsilon_{value,round,total}", "", "privacy cost: of a coordinate, of a round, of all rounds"),
        Key("<run>.diverged_at", "", "sum in which training diverged; such a run has no errors"),
        Key("<run>.{sums,sums_in_all,iterations}", "", "sums taken; sums and iterations of the schedule"),
        Key("<run>.{devices,values}", "", "devices with ratings; values of a contribution"),
        Key("<run>.clipped_share", "", "share of the uploaded values that were clipped"),
        Key("<run>.seconds", "s", "wall time of the run"),
    ),
    "fair": (
        Key("<run>.{ndcg20,recall20}", "", "mean over the last ten of 20 turns"),
        Key("<run>.{last_turn,best_turn}", "", "NDCG@20 of the last and of the best of them"),
        Key("<run>.on_devices_<capacity>", "", "NDCG@20 of these devices with their own view of the model"),
        Key("<run>.turns", "", "turns trained"),
        Key("<run>.clipped", "", "uploaded values that were clipped"),
        Key("fair.<scheme>.client_peak_mb", "MB", "peak memory of a client's round"),
        Key("fair.<scheme>.view_mb", "MB", "size of a client's view of the model"),
        Key("<run>.seconds", "s", "wall time of the run"),
    ),
    "pfedclr": (
        Key("<run>.{hr10,ndcg10}_full", "", "the same metrics against all items"),
        Key("<run>.best_hr10", "", "best HR@10 of the curve"),
        Key("<run>.round<n>.{hr10,ndcg10}", "", "the curve"),
    ),
    "privirec": (
        Key("<run>.{ndcg20,recall20}", "", "over all users that have test items; `<run>.sample`: over the drawn users"),
        Key("<dataset>.users", "", "users that have test items"),
        Key("<run>.users", "", "users that were ranked"),
        Key("<run>.upload_bytes", "bytes", "upload of one client, all sums together, bit-packed"),
        Key("<run>.captured", "", "share of the exact subspace that the iteration found"),
        Key("<dataset>.ring{16,24,32}.max_error", "", "largest error of an entry of P Q against float64"),
        Key("<dataset>.ring{16,24,32}.gram_max_error", "", "largest error of an entry of P against float64"),
        Key("<dataset>.ring{16,24,32}.clipped", "", "values that were clipped; 0, because the bound is proven"),
        Key("<dataset>.gram.pairs", "", "item pairs with an entry other than 0"),
        Key("<dataset>.gram.single_user_pairs", "", "share of those pairs that come from one user alone"),
        Key("<dataset>.gram.users_exposed", "", "share of the users that have such a pair"),
        Key("<dataset>.degrees.single_user_items", "", "share of the items that one user alone has"),
        Key("<run>.seconds", "s", "wall time of the run"),
    ),
    "published": (
        Key(
            "<run>.paper.{hr10,ndcg10,ndcg20,mae,rmse}",
            "",
            "the published figure for the same run, where there is one",
        ),
    ),
}
"""Keys by table; a table has the name of its results file, except for those of `TABLES_OF_FIDELITY`."""

TABLES_OF_FIDELITY: Final[dict[str, tuple[str, ...]]] = {
    "colr": ("published", "controls", "federation"),
    "fair": ("published", "controls", "fair"),
    "pfedclr": ("published", "controls", "pfedclr", "federation"),
    "privirec": ("published", "controls", "privirec"),
    "rfrec": ("published", "controls", "rfrec"),
    "rfrecf": ("published", "controls", "rfrec"),
    "topk": ("published", "controls", "federation"),
}
"""The tables that describe `fidelity-<system>.json`, by system."""


def rows_of(script: str) -> tuple[Key, ...]:
    """The rows that describe the results file `<script>.json`; `KeyError` for a file that has none."""
    system = script.removeprefix("fidelity-")
    if system != script:
        return tuple(row for table in TABLES_OF_FIDELITY[system] for row in TABLES[table])
    if script == "masked":  # its option `--http` adds the figures of masked_round.py
        return TABLES["masked"] + TABLES["masked_round"]
    return TABLES[script]
