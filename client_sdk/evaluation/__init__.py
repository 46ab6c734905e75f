"""How good a model is: leave-one-out, full ranking or rating errors, and the controls to compare with."""

from __future__ import annotations

from client_sdk.evaluation.controls import popularity_control, popularity_full_control, random_control
from client_sdk.evaluation.drawn import (
    NegativeDraws,
    drawn_as_negative_control,
    drawn_as_negative_full_control,
)
from client_sdk.evaluation.full_ranking import RankingResult, rank_all
from client_sdk.evaluation.leave_one_out import (
    Candidates,
    EvaluationResult,
    candidates_of,
    evaluate,
    evaluate_full,
    evaluate_full_scores,
    evaluate_scores,
    sample_candidates,
)
from client_sdk.evaluation.metrics import hit_ratio, ndcg, ranks_of
from client_sdk.evaluation.paper_protocol import LEAK_WARNING, PaperProtocol, paper_protocol
from client_sdk.evaluation.ratings import RatingErrors, rating_controls, rating_errors

__all__ = [
    "LEAK_WARNING",
    "Candidates",
    "EvaluationResult",
    "NegativeDraws",
    "PaperProtocol",
    "RankingResult",
    "RatingErrors",
    "candidates_of",
    "drawn_as_negative_control",
    "drawn_as_negative_full_control",
    "evaluate",
    "evaluate_full",
    "evaluate_full_scores",
    "evaluate_scores",
    "hit_ratio",
    "ndcg",
    "paper_protocol",
    "popularity_control",
    "popularity_full_control",
    "random_control",
    "rank_all",
    "ranks_of",
    "rating_controls",
    "rating_errors",
    "sample_candidates",
]
