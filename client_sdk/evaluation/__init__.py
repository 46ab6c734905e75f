"""Evaluation of models: leave-one-out, full ranking and rating errors, and controls to compare them with."""

from __future__ import annotations

from client_sdk.evaluation.control_table import ControlRow, ControlTable
from client_sdk.evaluation.controls import (
    controls,
    popularity_control,
    popularity_full_control,
    random_control,
    random_full_control,
    ranking_controls,
)
from client_sdk.evaluation.drawn import DrawnControl, NegativeDraws, drawn_as_negative_control
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
    "ControlRow",
    "ControlTable",
    "DrawnControl",
    "EvaluationResult",
    "NegativeDraws",
    "PaperProtocol",
    "RankingResult",
    "RatingErrors",
    "candidates_of",
    "controls",
    "drawn_as_negative_control",
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
    "random_full_control",
    "rank_all",
    "ranking_controls",
    "ranks_of",
    "rating_controls",
    "rating_errors",
    "sample_candidates",
]
