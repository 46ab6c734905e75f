"""Evaluation of models: leave-one-out, full ranking and rating errors, and controls to compare them with."""

from __future__ import annotations

from client_sdk.lab.evaluation.controls import (
    ControlRow,
    ControlTable,
    RatingErrors,
    controls,
    popularity_control,
    ranking_controls,
    rating_controls,
    rating_errors,
)
from client_sdk.lab.evaluation.metrics import (
    Candidates,
    EvaluationResult,
    RankingResult,
    candidates_of,
    evaluate,
    evaluate_full,
    evaluate_full_scores,
    evaluate_scores,
    hit_ratio,
    ndcg,
    rank_all,
    ranks_of,
    sample_candidates,
)

__all__ = [
    "Candidates",
    "ControlRow",
    "ControlTable",
    "EvaluationResult",
    "RankingResult",
    "RatingErrors",
    "candidates_of",
    "controls",
    "evaluate",
    "evaluate_full",
    "evaluate_full_scores",
    "evaluate_scores",
    "hit_ratio",
    "ndcg",
    "popularity_control",
    "rank_all",
    "ranking_controls",
    "ranks_of",
    "rating_controls",
    "rating_errors",
    "sample_candidates",
]
