"""Keys of the results of sums: CKKS, Paillier, masked, one-shot."""

from __future__ import annotations

from typing import Final

from bench.keys import Key, at_least, at_most

__all__ = ["TABLES"]

_SPREAD: Final = "{median,min,max}"

_OWN_ROUNDS: Final = "{masked.few,masked.many,oneshot.few,oneshot.many,large.plain,large.oneshot}"
"""Rounds of bench/arrays.py."""

_ROUNDS: Final = "{masked,oneshot,masked_gone,oneshot_gone,round1k,round10k}"


def _paillier(bits: int) -> tuple[Key, ...]:
    key = f"{bits}-bit key"
    return (
        at_least(f"bits{bits}.encrypt_speedup_pool", 4000, "", f"{key}: phe's encryption time / ours, filled pool"),
        at_least(f"bits{bits}.bytes_ratio", 40, "", f"{key}: bytes of phe's ciphertexts / bytes of our contribution"),
        at_least(f"bits{bits}.fold_speedup", 50, "", f"{key}: phe's time to fold a contribution / ours"),
        at_least(f"bits{bits}.decrypt_speedup", 40, "", f"{key}: phe's time to decrypt the sum / ours"),
    )


TABLES: Final[dict[str, tuple[Key, ...]]] = {
    "ckks": (
        at_most("upload_ratio_compact", 1.1, "", "seeded contribution / float32 plaintext, set `compact`"),
        at_most("upload_ratio_standard", 1.4, "", "seeded contribution / float32 plaintext, set `standard`"),
        at_least("encrypt_speedup_seeded", 8.0, "", "TenSEAL's encrypt + serialise time / ours, seeded, `standard`"),
        at_least(
            "fold_speedup_expanded", 30.0, "", "TenSEAL's deserialise + add time / our fold, expanded, `standard`"
        ),
        at_least("fold_speedup_seeded", 3.0, "", "TenSEAL's deserialise + add time / our fold, seeded, `standard`"),
        at_most("max_error_standard", 1e-6, "", "largest error of the opened sum, set `standard`"),
        at_most("predicted_error_standard", 1e-6, "", "bound of that error, computed by the planner"),
        at_most("max_error_compact", 1e-4, "", "largest error of the opened sum, set `compact`"),
        at_most("predicted_error_compact", 1e-4, "", "bound of that error, computed by the planner"),
        Key("encrypt_speedup_{compact,precise}", "", "the seeded speed-up of the other sets"),
        Key(
            "check_and_fold_speedup_expanded",
            "",
            "TenSEAL's fold time / (our check + our fold); TenSEAL checks nothing",
        ),
        Key(f"encrypt_<form>_ms_{_SPREAD}", "ms", "a client's time to seal one contribution"),
        Key(f"fold_<form>_ms_{_SPREAD}", "ms", "the server's time to fold one contribution"),
        Key(f"check_<form>_ms_{_SPREAD}", "ms", "the server's time to check one contribution on arrival"),
        Key("fold_expanded_gigabytes_per_second", "GB/s", "contribution bytes folded on one core"),
        Key("{max,rms,predicted}_error_{precise,standard_expanded}", "", "the errors of the other forms"),
        Key("rms_error_{compact,standard}", "", "root mean square error of the opened sum"),
        Key("upload_ratio_{precise,standard_expanded,tenseal}", "", "contribution / float32 plaintext, other forms"),
        Key("clients", "", "contributions of one sum"),
        Key("values", "", "values of one contribution"),
        Key("repetitions", "", "repetitions of each timed step"),
    ),
    "paillier": (
        *_paillier(2048),
        *_paillier(3072),
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
            f"bits{{2048,3072}}.{{encrypt_pool,encrypt_crt,fold,check,decrypt}}_ms_{_SPREAD}",
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
            "client_{advertise,share,encode,contribute,confirm,unmask,open}_ms",
            "ms",
            "a client's median time for one stage",
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
    "masked_round": (
        at_least("round1000.exact", 1, "bool", "1,000 clients over HTTP: the released sum is exact in the ring"),
        at_most("round1000.peak_rss_ratio", 1.2, "", "server's peak memory, 1,000 clients / 200 clients"),
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
    "arrays": (
        at_least("own_model_server_speedup_vs_flower", 30, "", "Flower's server time for a round / ours, masked sums"),
        at_most("own_model_bytes_ratio_vs_flower", 0.55, "", "bytes that a client sends, masked sums / Flower's"),
        at_most("masked.many.vectors", 4, "", "server's peak memory over idle / size of the model, masked sums"),
        at_most("oneshot.many.vectors", 4, "", "the same, one-shot sums"),
        at_most("masked.peak_rss_ratio", 1.2, "", "server's peak memory, many clients / few, masked sums"),
        at_most("oneshot.peak_rss_ratio", 1.2, "", "the same, one-shot sums"),
        at_most("large.plain.peak_rss_gb", 2.5, "GB", "server's peak memory, 100 million values, plain sums"),
        at_most("large.oneshot.peak_rss_gb", 2.5, "GB", "the same, one-shot sums"),
        at_most("largest_error_of_bound", 1, "", "largest error of a value of a mean / its bound, of all rounds"),
        Key("oneshot_{server_speedup,bytes_ratio}_vs_flower", "", "the same for one-shot sums"),
        Key(f"{_OWN_ROUNDS}.clients", "", "clients in the cohort"),
        Key("flower.clients", "", "clients of Flower's rounds"),
        Key(f"{_OWN_ROUNDS}.survivors", "", "clients whose contribution is in the sum"),
        Key(f"{_OWN_ROUNDS}.client_cpu_s", "s", "processor time of one client without training, mean"),
        Key(
            f"{_OWN_ROUNDS}.client_{{seal,upload}}_s", "s", "wall time of a client's sealing and of its upload, median"
        ),
        Key(f"{_OWN_ROUNDS}.bytes_up_per_client", "bytes", "bodies that one client sends in the round"),
        Key(f"{_OWN_ROUNDS}.contribution_bytes", "bytes", "the contribution among them"),
        Key(f"{_OWN_ROUNDS}.server_cpu_s", "s", "processor time of the server"),
        Key(f"{_OWN_ROUNDS}.{{peak,idle}}_rss_mib", "MiB", "resident memory of the server and its worker"),
        Key(f"{_OWN_ROUNDS}.vectors", "", "peak memory over idle / size of the model"),
        Key(f"{_OWN_ROUNDS}.error_of_bound", "", "largest error of a value of the mean / its bound"),
        Key(
            "equality.{ckks,masked,oneshot,paillier,plain}.error_of_bound",
            "",
            "the same in one process, a small model, five clients",
        ),
        Key("flower.{small,large}.values", "", "lengths at which Flower was measured"),
        Key("flower.{small,large}.{server,client}_s", "s", "Flower's processor time there: server, one client"),
        Key("flower.{small,large}.contribution_bytes", "bytes", "size of Flower's masked vector there"),
        Key("flower.{server,client}_s", "s", "the same for the model, on the line through both"),
        Key("flower.contribution_bytes", "bytes", "the same"),
        Key("own_model_protocol_speedup_vs_flower", "", "Flower's server / ours at its larger length, no HTTP or disk"),
        Key("flower.large.our_protocol_s", "s", "our server's processor time there"),
        Key("values", "", "values of the model"),
        Key("large_values", "", "values of the large model"),
    ),
    "oneshot_round": (
        at_most("server_ratio_masked", 0.3, "", "server's time for a round of 1,000 clients, 10 % gone / a masked one"),
        at_most(
            "round1000.wall_ratio_masked", 0.4, "", "wall time of a round of 1,000 clients / a masked one, none gone"
        ),
        at_least("round10k.exact", 1, "bool", "10,000 clients: whether the released sum is exact"),
        at_most("round10k.peak_rss_ratio", 1.2, "", "server's peak memory, 10,000 clients / 1,000 clients"),
        Key(f"{_ROUNDS}.exact", "bool", "whether the released sum is exact"),
        Key(f"{_ROUNDS}.survivors", "", "clients whose contribution is in the sum"),
        Key(f"{_ROUNDS}.wall_s", "s", "wall time of the round; with `_gone` it includes a wait for the deadline"),
        Key(f"{_ROUNDS}.server_cpu_s", "s", "processor time of the server"),
        Key(f"{_ROUNDS}.peak_rss_mib", "MiB", "largest resident memory of the server and its workers"),
        Key(f"{_ROUNDS}.bytes_{{up,down}}_per_client", "bytes", "bodies of one client in the round"),
        Key(f"{_ROUNDS}.member_cpu_s", "s", "processor time of one member of the committee in the round"),
        Key(f"{_ROUNDS}.member_bytes", "bytes", "bodies that one member of the committee sent and received"),
    ),
}
