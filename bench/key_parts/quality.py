"""Keys of the results of recipes: quality, and the papers' figures."""

from __future__ import annotations

from typing import Final

from bench.keys import Key, at_least, at_most

__all__ = ["TABLES"]

_SETS: Final = ("filmtrust", "gowalla", "gowalla-wide", "made", "ml-100k", "ml-1m")
"""The sets on which bench/quality.py has measured the recipes."""
_RECOMMENDED: Final = ("colr-started", "fedmf-started", "pfedclr-started", "privirec-k")
RATED: Final = ("filmtrust", "made-jokes", "ml-100k", "ml-1m")
"""The sets on which bench/rating_quality.py has measured RFRec."""
_FULL: Final = "NDCG@20 over all items"


TABLES: Final[dict[str, tuple[Key, ...]]] = {
    "quality": (
        *(
            at_least(
                f"{data}.{recipe}.ndcg20_over_popularity", 1.05, "", f"{data}: {_FULL} of {recipe} / of popularity"
            )
            for data in _SETS
            for recipe in _RECOMMENDED
        ),
        *(
            at_least(f"{data}.best_over_central_full", 0.97, "", f"{data}: {_FULL}, the best federated / central")
            for data in _SETS
        ),
        *(
            at_least(f"{data}.auto_over_best_full", 0.95, "", f"{data}: {_FULL}, the recipe of `auto` / the best")
            for data in _SETS
        ),
        *(
            at_least(f"{data}.best_over_central", 0.97, "", f"{data}: the best federated HR@10 / the best central one")
            for data in _SETS
        ),
        Key("<set>.<recipe>.{ndcg20,hr10}_over_popularity", "", "the same for other recipes, and among 99 negatives"),
        Key("<set>.<name>.ndcg20_over_central", "", f"{_FULL} / that of the best central model"),
        Key(
            "<set>.<name>.{ndcg20,hr10_full,recall20}",
            "",
            "over all items that a user does not have; mean over the seeds",
        ),
        Key("<set>.<name>.{hr10,ndcg10}", "", "among 99 sampled negatives; mean over the seeds"),
        Key("<set>.<name>.ndcg20_error", "", "standard error of one seed's NDCG@20"),
        Key(
            "<set>.<name>.{ndcg20,hr10_full,recall20,hr10,ndcg10,ndcg20_error}_spread",
            "",
            "standard deviation between the seeds",
        ),
        Key("<set>.<name>.seeds", "", "number of seeds"),
    ),
    "rating_quality": (
        *(
            at_most(f"{data}.rfrec.{metric}_over_means", 1.0, "", f"{data}: {metric} of rfrec / of user and item means")
            for data in RATED
            for metric in ("mae", "rmse")
        ),
        *(
            at_most(f"{data}.rfrec.{metric}_over_central", 1.03, "", f"{data}: {metric} of rfrec / of a central model")
            for data in RATED
            for metric in ("mae", "rmse")
        ),
        Key("<set>.<name>.{mae,rmse}", "", "mean over the seeds, in units of the ratings"),
        Key("<set>.<name>.{mae,rmse}_spread", "", "standard deviation between the seeds"),
        Key("<set>.<name>.seeds", "", "number of seeds"),
    ),
    "privirec_service": (
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
