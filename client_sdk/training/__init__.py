"""Local training on one client: matrix factorisation in numpy, full or low-rank, and the negatives it needs."""

from __future__ import annotations

from client_sdk.local_state.client_state import ClientState
from client_sdk.training.base import ClientHalf, LocalResult, TrainingConfig
from client_sdk.training.factors import FactorHalf
from client_sdk.training.fair import FairConfig
from client_sdk.training.local import train_locally
from client_sdk.training.lowrank import train_lowrank
from client_sdk.training.mf import LocalUpdate, MFConfig, init_user_factor, train_full
from client_sdk.training.negatives import draw_negatives
from client_sdk.training.pfedclr import PFedCLRConfig
from client_sdk.training.registry import client_half

__all__ = [
    "ClientHalf",
    "FactorHalf",
    "FairConfig",
    "LocalResult",
    "LocalUpdate",
    "MFConfig",
    "ClientState",
    "PFedCLRConfig",
    "TrainingConfig",
    "client_half",
    "draw_negatives",
    "init_user_factor",
    "train_full",
    "train_locally",
    "train_lowrank",
]
