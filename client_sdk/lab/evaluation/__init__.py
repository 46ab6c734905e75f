"""Evaluation of models: leave-one-out, full ranking and rating errors, and controls to compare them with."""

from __future__ import annotations

from client_sdk.lab.evaluation.controls import ControlRow as ControlRow
from client_sdk.lab.evaluation.controls import ControlTable as ControlTable
from client_sdk.lab.evaluation.controls import RatingErrors as RatingErrors
from client_sdk.lab.evaluation.controls import controls as controls
from client_sdk.lab.evaluation.controls import popularity_control as popularity_control
from client_sdk.lab.evaluation.controls import ranking_controls as ranking_controls
from client_sdk.lab.evaluation.controls import rating_controls as rating_controls
from client_sdk.lab.evaluation.controls import rating_errors as rating_errors
from client_sdk.lab.evaluation.full_ranking import RankingResult as RankingResult
from client_sdk.lab.evaluation.full_ranking import rank_all as rank_all
from client_sdk.lab.evaluation.leave_one_out import Candidates as Candidates
from client_sdk.lab.evaluation.leave_one_out import EvaluationResult as EvaluationResult
from client_sdk.lab.evaluation.leave_one_out import candidates_of as candidates_of
from client_sdk.lab.evaluation.leave_one_out import evaluate as evaluate
from client_sdk.lab.evaluation.leave_one_out import evaluate_full as evaluate_full
from client_sdk.lab.evaluation.leave_one_out import evaluate_full_scores as evaluate_full_scores
from client_sdk.lab.evaluation.leave_one_out import evaluate_scores as evaluate_scores
from client_sdk.lab.evaluation.leave_one_out import hit_ratio as hit_ratio
from client_sdk.lab.evaluation.leave_one_out import ndcg as ndcg
from client_sdk.lab.evaluation.leave_one_out import ranks_of as ranks_of
from client_sdk.lab.evaluation.leave_one_out import sample_candidates as sample_candidates
