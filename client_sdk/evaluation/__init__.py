"""How good a model is: leave-one-out or full ranking, and the controls to compare with."""

from __future__ import annotations

from client_sdk.evaluation.controls import popularity_control, popularity_full_control, random_control
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

__all__ = [
    "Candidates",
    "EvaluationResult",
    "RankingResult",
    "candidates_of",
    "evaluate",
    "evaluate_full",
    "evaluate_full_scores",
    "evaluate_scores",
    "hit_ratio",
    "ndcg",
    "popularity_control",
    "popularity_full_control",
    "random_control",
    "rank_all",
    "ranks_of",
    "sample_candidates",
]
