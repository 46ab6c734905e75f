"""Evaluation of models: leave-one-out, full ranking and rating errors, and controls to compare them with."""

from __future__ import annotations

from client_sdk.lab.evaluation.controls import (
    ControlTable,
    controls,
    ranking_controls,
    rating_controls,
    rating_errors,
)
from client_sdk.lab.evaluation.full_ranking import rank_all
from client_sdk.lab.evaluation.leave_one_out import (
    candidates_of,
    evaluate,
    evaluate_full,
    evaluate_full_scores,
    evaluate_scores,
)

__all__ = [
    "ControlTable",
    "candidates_of",
    "controls",
    "evaluate",
    "evaluate_full",
    "evaluate_full_scores",
    "evaluate_scores",
    "rank_all",
    "ranking_controls",
    "rating_controls",
    "rating_errors",
]
