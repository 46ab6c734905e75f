"""Local training on one client: the client side of each recipe, and the draws of negatives."""

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
    "ClientState",
    "FactorHalf",
    "FairConfig",
    "LocalResult",
    "LocalUpdate",
    "MFConfig",
    "PFedCLRConfig",
    "TrainingConfig",
    "client_half",
    "draw_negatives",
    "init_user_factor",
    "train_full",
    "train_locally",
    "train_lowrank",
]
