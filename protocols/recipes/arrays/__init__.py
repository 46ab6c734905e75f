"""Federated averaging of any named arrays: the model of an application, whatever it is."""

from __future__ import annotations
