"""Runs the models of the protocols with Spin: every reachable state of an instance, or a state that breaks a claim.

An instance is a model (`*.pml`) with numbers: how many members, how many of them help the server, thresholds as the
protocols compute them. A mutant is an instance without some defences; `Instance.mutants` says which claim must break.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocols.sums.masked.neighbourhood import choose_neighbourhood, corrupt_clients, quorum
from protocols.sums.oneshot.plan import OneshotParameters

_FOLDER: Final = Path(__file__).parent
_SHARE: Final = 0.05  # `corrupt` of a masked task: one member of so few
_DEFENCE: Final = re.compile(r"^#define (\w+) +(\d+) /\*", re.MULTILINE)
_BROKEN: Final = re.compile(r"assertion violated (\w+)")
_STATES: Final = re.compile(r"^ *([0-9.e+]+) states, stored", re.MULTILINE)


@dataclass(frozen=True)
class Instance:
    """A model with numbers."""

    name: str
    model: str
    constants: Mapping[str, int]
    mutants: Mapping[str, str]
    """Defences to leave out, joined by "+" -> the claim that then breaks."""
    in_depth: tuple[str, ...] = ()
    """Defences that can be left out alone: another one is enough."""
    quick: bool = True
    """Whether `make test` runs it, too."""
    fails: str | None = None
    """The claim that does not hold with all defences, where an instance shows a limit."""


@dataclass(frozen=True)
class Outcome:
    """What a search found: the claim that breaks, or None after all `states` were visited."""

    broken: str | None
    states: int


def _round(members: int, dropout: float, helpers: int = 1, **constants: int) -> dict[str, int]:
    """The numbers of a masked round, as the protocol computes them; the last `helpers` members help the server."""
    near = choose_neighbourhood(members, _SHARE, dropout)
    return {
        "N": members,
        "K": near.degree,
        "T": near.threshold,
        "QUORUM": quorum(_SHARE, members),
        "CORRUPT": sum(1 << (members - 1 - place) for place in range(helpers)),
        "FEWEST_SURVIVORS": 3,
        "FEWEST": 2,
        **constants,
    }


def _sums(members: int, cohort: int, rounds: int, fewest: int, **constants: int) -> dict[str, int]:
    """The numbers of masked sums over several rounds; the last member helps the server."""
    tolerated = corrupt_clients(_SHARE, cohort)
    if any(quorum(_SHARE, n) != (n + tolerated) // 2 + 1 for n in range(3, cohort + 1)):
        raise ValueError("masked_sums.pml has another quorum than the protocol")
    common = {"MEMBERS": members, "COHORT": cohort, "ROUNDS": rounds, "FEWEST": fewest, "TOLERATED": tolerated}
    return {"CORRUPT": 1 << (members - 1), "DIFFERENCE": 3, "REPEATED": 0, **common, **constants}


def _committee(population: int, members: int, corrupt: int, rounds: int = 2) -> dict[str, int]:
    """The numbers of a one-shot committee; the last `corrupt` of the population help the server."""
    parameters = OneshotParameters(committee=members, corrupt=1)
    helpers = sum(1 << (population - 1 - place) for place in range(corrupt))
    most_new = 2 * parameters.threshold - members - parameters.corrupt - 1
    sizes = {"POPULATION": population, "COMMITTEE": members, "T": parameters.threshold, "ROUNDS": rounds}
    return {**sizes, "CORRUPT": helpers, "MOST_NEW": most_new}


INSTANCES: Final = (
    Instance(
        "round",  # everybody is everybody's neighbour
        "masked_round",
        _round(5, dropout=0.2),
        {
            "ONE_SHARE": "nobody_gives_away_both_secrets",
            "THRESHOLD": "nobody_gives_away_both_secrets",
            "ONE_SIGNATURE": "one_set_in_a_round",
            "NEIGHBOURS+ROSTER": "one_set_in_a_round",
            "BOUND_SIGNS": "one_set_in_a_round",
            "BOUND_MASKS": "told_the_same",
            "SELF_MASK": "no_sum_of_few",
        },
        in_depth=("ONE_ANSWER", "NEIGHBOURS", "ROSTER"),
    ),
    Instance(
        "round on a circle",  # two neighbours each
        "masked_round",
        _round(5, dropout=0.0),
        {"ONE_SHARE": "nobody_gives_away_both_secrets", "ROSTER": "one_set_in_a_round"},
    ),
    Instance(
        "round in two parts",  # two helpers, opposite each other, where the parameters are for one
        "masked_round",
        _round(6, dropout=0.0, CORRUPT=0b001001),
        {},
        fails="one_sum_in_a_round",
    ),
    Instance(
        "one set for a sum",
        "masked_sums",
        _sums(5, cohort=5, rounds=2, fewest=2),
        {"ONE_SET": "one_set_for_one_sum", "STORED_FIRST": "one_set_for_one_sum", "HELPERS": "no_sums_isolate_few"},
        quick=False,
    ),
    Instance(
        "sums that come back",
        "masked_sums",
        _sums(4, cohort=4, rounds=3, fewest=2),
        {"EARLIER": "one_set_for_one_sum"},
        quick=False,
    ),
    Instance(
        "difference of two",  # docs/security.md, "What is not promised"
        "masked_sums",
        _sums(5, cohort=4, rounds=2, fewest=3),
        {},
        fails="no_sums_isolate_few",
    ),
    Instance(
        "same data, other members",
        "masked_sums",
        _sums(5, cohort=4, rounds=2, fewest=1, REPEATED=1, DIFFERENCE=2),
        {"ONE_SET": "one_chain_of_sums", "STORED_FIRST": "one_chain_of_sums", "UNIVERSE": "one_chain_of_sums"},
    ),
    Instance(
        "same data, parts of the cohort",
        "masked_sums",
        _sums(5, cohort=5, rounds=3, fewest=1, REPEATED=1, DIFFERENCE=2),
        {"WHOLE_COHORT": "one_chain_of_sums", "HELPERS": "one_chain_of_sums"},
        quick=False,
    ),
    Instance(
        "committee",
        "committee",
        _committee(5, members=5, corrupt=2),
        {
            "ONE_SET+ONE_SUM": "one_sum_of_a_round",
            "ONE_SET": "no_sum_isolates_a_client",
            "STORED_FIRST": "no_sum_isolates_a_client",
            "REMEMBERS": "no_sum_isolates_a_client",
        },
        in_depth=("ONE_SUM", "SIGNATURES", "NEW_KEYS"),
        quick=False,
    ),
    Instance(
        "committee with 2t - c helpers",
        "committee",
        _committee(5, members=5, corrupt=3),
        {},
        fails="one_sum_of_a_round",
    ),
    Instance(
        "replaced members",
        "committee",
        {**_committee(5, members=3, corrupt=1), "STEADY": 1},
        {"NEW_MEMBERS": "no_sum_isolates_a_client"},
    ),
)


def defences(model: str) -> dict[str, int]:
    """Return the defences that a model can do without, and their bits."""
    return {name: int(bit) for name, bit in _DEFENCE.findall((_FOLDER / f"{model}.pml").read_text(encoding="utf-8"))}


def build(instance: Instance, spin: str, folder: Path) -> Path:
    """Return the program that searches the states of an instance, made in `folder`. Raises `RuntimeError`."""
    constants = [f"-D{name}={value}" for name, value in instance.constants.items()]
    for command in (
        [spin, *constants, "-a", str(_FOLDER / f"{instance.model}.pml")],
        # Parts in C hide from Spin which variables a step uses: no reduction of orders.
        ["gcc", "-O2", "-w", "-DSAFETY", "-DNOREDUCE", "-DCOLLAPSE", "-o", "search", "pan.c"],
    ):
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{instance.name}: {command[0]} failed:\n{done.stdout}{done.stderr}")
    return folder / "search"


def search(instance: Instance, program: Path, without: str = "") -> Outcome:
    """Return what a search of all states finds; without: the defences that are left out, joined by "+".

    Raises `RuntimeError` for a search that did not come to an end.
    """
    bits = defences(instance.model)
    removed = sum(bits[name] for name in without.split("+") if name)
    done = subprocess.run(
        [str(program), "-E", "-m1000000", "-w22"],  # -E: a server that stops is no error
        cwd=program.parent,
        env={**os.environ, "REMOVED": str(removed)},
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    broken, states = _BROKEN.search(done.stdout), _STATES.search(done.stdout)
    complete = "errors: 0" in done.stdout and "max search depth too small" not in done.stdout
    if states is None or not (broken or complete):
        raise RuntimeError(f"{instance.name} without {without or 'nothing'}: no result:\n{done.stdout}{done.stderr}")
    return Outcome(broken[1] if broken else None, int(float(states[1])))
