"""Which sums a PriviRec task has, how long they and the model's states are, and which states can be honest.

`protocols.recipes.privirec` has the mathematics, the proofs of the bounds, and what clients and the server compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from protocols.errors import CodecError, ParameterError
from protocols.layout import CLIP_SLACK, REPEATED_ROWS, Block, Floats, Segment, VectorLayout
from protocols.privacy.equations import equations_within, most_equations
from protocols.recipes.base import ModelState, Recipe
from protocols.recipes.bounds import Reach, Sensitivity, require_within
from protocols.recipes.next_item import next_equations, next_length
from protocols.recipes.privirec_parameters import GRAM_CONSENT, PriviRecKParameters
from protocols.recipes.privirec_state import PriviRecState, rows_of_all, triangle_of_all
from protocols.recipes.spectrum import completed, triangle_length, triangle_places
from protocols.recipes.state import (
    SUM_INDEX,
    StateField,
    StateFields,
    as_counts,
    count_fields,
    decode,
    encode,
    fields_bytes,
    state_as,
    sum_index_of,
)
from protocols.recipes.validation import Setting, settings_of

_BY_ITEM: Final = ("list_entries", "basis", "asked", "products")
Sum = Literal["degrees", "lists", "iteration", "gram", "next", "validation"]


_MOST_CLIENTS: Final = 1_000_000  # upper limit on the number of clients, n in the bound for b < 1/2
_LONGEST_LIST: Final = 1000.0  # a longer list counts as one of this length, so that 32 bits are enough for the sum
_STEPS: Final = 16  # into how many widths the rows fall, with `krylov`
_UNIT: Final = 1.0 + 1e-3
"""Largest norm of a column of Q, with room for float32 rounding. A longer column would break the bound on the sums."""
_ROUNDED: Final = 1.0 + 2.0**-20  # factor by which rounding to float32 may lengthen a column of Q


@dataclass(frozen=True)
class PriviRecPlan(Recipe):
    """The sums and states of PriviRec-k: item degrees, power iterations, and for `privirec` the Gram matrix."""

    parameters: PriviRecKParameters
    name: str = "privirec-k"

    state_class = PriviRecState
    by_snapshot = True  # the last bits of a QR differ between machines, so all clients use the server's Q

    @property
    def first_vectors(self) -> int:
        """The index of the first power iteration."""
        return 1 + self.parameters.degrees + self.parameters.bounded

    @property
    def last_iteration(self) -> int:
        """The index of the last power iteration."""
        return self.first_vectors - 1 + self.parameters.iterations

    @property
    def first_scores(self) -> int:
        """The index of the sum after which the model can score items: with `krylov` its directions are whole then, and
        of counted pairs all are needed."""
        if self.parameters.counted:
            return self.last_gram
        return self.last_iteration if self.parameters.krylov else self.first_vectors

    @property
    def steps(self) -> int:
        """Largest number of sums of a task."""
        return self.before_validation + (self.parameters.validation > 0)

    @property
    def last_gram(self) -> int:
        """The index of the last Gram sum; that of the last iteration without any."""
        return self.last_iteration + self.parameters.gram_sums

    @property
    def before_validation(self) -> int:
        """The index of the last sum before that of validation: of next items, if the task has one."""
        return self.last_gram + (self.parameters.next_vectors > 0)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What a sum of validation measures."""
        p = self.parameters
        return settings_of(p.next_vectors > 0, p.counted, p.measures_slim)

    @property
    def ends_after(self) -> int | None:
        return self.steps

    def sum_of(self, sum_index: int) -> Sum:
        """Return what sum `sum_index` is of; `ParameterError` if the task has no such sum."""
        if not 1 <= sum_index <= self.steps:
            raise ParameterError(f"a task of this recipe has {self.steps} sums, there is no sum {sum_index}")
        if sum_index < self.first_vectors:
            return "degrees" if sum_index == 1 else "lists"
        if sum_index <= self.last_iteration:
            return "iteration"
        if sum_index <= self.last_gram:
            return "gram"
        return "next" if sum_index <= self.before_validation else "validation"

    def layout(self, sum_index: int = 1, size: tuple[int, ...] = ()) -> VectorLayout:
        """Return one block of one segment, with the bounds proven in the module's docstring.

        size: as `size_after` returns it; () for all items and `components` vectors. Raises `ParameterError` for more.

        The degrees can be split into groups, but not in noise: each group would have to reach epsilon.
        """
        p = self.parameters
        kind = self.sum_of(sum_index)
        whole = False if p.shrinks else None
        if kind == "validation":
            segments = (Segment("validated", 1, 1.0, integral=True), Segment("measured", len(self.settings), 1.0))
            return VectorLayout((Block(kind, segments),), sum_class=REPEATED_ROWS, in_groups=whole)
        if kind == "next":
            segment = Segment(kind, next_length(p.next_vectors), 1.0, norm=_UNIT)
            return VectorLayout((Block(kind, (segment,)),), sum_class=REPEATED_ROWS, in_groups=whole)
        if kind == "degrees":
            segment = Segment(kind, p.items, 1.0, integral=True, row=1)
        elif kind == "lists":
            segment = Segment(kind, self._within(size)[0], self._longest_list, integral=True)
        elif p.counted:
            start, stop = self.span_of_pairs(sum_index, self._within(size)[0])
            pairs = Block(kind, (Segment("pairs", stop - start, 1.0, integral=True),))
            return VectorLayout((pairs,), sum_class=REPEATED_ROWS, narrow=True, in_groups=whole)
        else:
            rows, columns, values = self._within(size)
            length = triangle_length(rows) if kind == "gram" else values
            part = 1.0 if kind == "gram" else float(p.items ** max(0.0, 0.5 - 2 * p.user_exponent))
            of_users = p.items ** max(0.0, 1 - 2 * p.user_exponent)
            bound = float(_MOST_CLIENTS ** (1 - 2 * p.degree_exponent) * of_users) * _ROUNDED
            segment = Segment(
                kind,
                length,
                part,
                sum_bound=bound,
                norm=float(of_users) * _UNIT * (sqrt(_STEPS) if p.bounded and p.krylov else 1.0),
                sum_norm=None if kind == "gram" else bound * sqrt(columns) * _UNIT,
                gram=kind == "gram",
            )
        split = kind == "degrees" if p.shrinks else None
        floor = kind == "degrees" and p.shrinks and not p.reveal_gram
        return VectorLayout((Block(kind, (segment,)),), sum_class=REPEATED_ROWS, in_groups=split, is_floor=floor)

    def _within(self, size: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the rows, columns and values of `size`, the largest for (); `ParameterError` if no sum has it."""
        p = self.parameters
        if not size:
            return p.items, p.columns, p.items * p.columns
        if p.shrinks and len(size) == 3:
            rows, columns, values = size
            if 0 < rows <= p.items and 0 < columns <= min(p.columns, rows) and columns <= values <= rows * columns:
                return rows, columns, values
        raise ParameterError(f"a sum of size {size} cannot be one of {p.items} items and {p.columns} vectors")

    def span_of_pairs(self, sum_index: int, rows: int) -> tuple[int, int]:
        """Return which values of the triangle of so many items a Gram sum of counts has: the first, and that after the
        last."""
        length, sums = triangle_length(rows), self.parameters.gram_sums
        number = sum_index - self.last_iteration
        return (number - 1) * length // sums, number * length // sums

    @property
    def _longest_list(self) -> float:
        """The largest value of a client in the sum of lists."""
        return min(_LONGEST_LIST, float(self.parameters.items))

    def kept(self, state: PriviRecState) -> NDArray[np.int64]:
        """Return the items that have rows in the sums after `state`, int64 (m,), ascending."""
        p = self.parameters
        if not p.shrinks:
            return np.arange(p.items)
        return np.flatnonzero(state.item_degrees >= p.min_owners)

    def size_after(self, state: ModelState) -> tuple[int, ...]:
        """Return m, K and how many values the rows have together; () before the degrees. K is 0 where the task ends.

        Before the sum of lists, in tasks that have one: m, 1 and m.
        """
        own = state_as(state, PriviRecState)
        if not (self.parameters.shrinks and own.sum_index):
            return ()
        if own.sum_index + 1 < self.first_vectors:
            rows = self.kept(own).size
            return rows, min(1, self._most_columns(rows, own.clients)), rows
        widths, columns = self.widths(own)
        return widths.size, columns, int(widths.sum())

    @property
    def equations(self) -> int:
        """How many equations all sums together may be for each row of P; a value of the sum of next items counts as
        one of them."""
        p = self.parameters
        return p.iterations * p.columns + next_equations(p.next_vectors, p.items)

    def _most_columns(self, rows: int, clients: int) -> int:
        """Return K for sums over so many rows and clients, as far as it does not depend on lists."""
        p = self.parameters
        if p.counted and triangle_length(rows) < p.gram_sums:
            return 0
        most = rows // p.iterations if p.krylov else rows
        if not p.reveal_gram:
            other = next_equations(p.next_vectors, rows)
            most = min(most, max(0, most_equations(rows, clients) - other) // p.iterations)
        return min(p.columns, most)

    def widths(self, state: PriviRecState) -> tuple[NDArray[np.int64], int]:
        """Return how many columns the row of each kept item has in every iteration, int64 (m,), and K, the most.

        See the module's docstring. Without `krylov` a row has all columns, or none.
        """
        p, kept = self.parameters, self.kept(state)
        columns = self._most_columns(kept.size, state.clients) if p.shrinks else p.columns
        if not p.bounded or not columns:
            return np.full(kept.size, columns), columns
        own = equations_within(state.list_entries[kept], kept.size) // p.iterations
        # how many steps, and how many of the rows may have fewer columns than all
        steps, fewer = (_STEPS, 3 * kept.size // 4) if p.krylov else (1, kept.size // 20)
        columns = min(columns, int(np.sort(own)[fewer]))
        marks = np.unique(columns * np.arange(steps + 1) // steps)
        return marks[np.searchsorted(marks, np.minimum(own, columns), side="right") - 1], columns

    def state_fields(self, sum_index: int, size: tuple[int, ...] = ()) -> StateFields:
        """Return the sum index, what is known from the first sum on, and after a Gram sum the triangle of P.

        Before the first sum: the basis, in a task that starts from one. Before the sum of lists: no vectors. size: as
        `size_after` returns it, () for the largest. `ParameterError` if the task has no such sum.
        """
        p = self.parameters
        rows, columns = size[:2] or (p.items, p.columns)
        if not sum_index:
            return (SUM_INDEX,) if p.start_from is None else (SUM_INDEX, StateField("basis", "<f4", (rows, columns)))
        first = (SUM_INDEX, *(count_fields(p.items, "item_degrees") if p.degrees else ()))
        chosen: StateFields = ()
        if sum_index > self.before_validation:
            chosen = (StateField("setting", "<u4"), StateField("measured", "<f8", (1 + len(self.settings),)))
        if p.counted and sum_index > self.last_iteration:
            sums = min(sum_index, self.last_gram) - self.last_iteration
            pairs = self.span_of_pairs(self.last_iteration + sums, rows)[1]
            return (*first, StateField("pair_clients", "<u4", (sums,)), StateField("pairs", "<u4", (pairs,)), *chosen)
        if p.counted or sum_index + 1 < self.first_vectors:
            return first
        more: tuple[StateField, ...] = ()
        vectors, made = columns, sum_index + 1 - self.first_vectors
        if self.sum_of(sum_index) == "gram":
            more = (StateField("gram", "<f4", (triangle_length(rows),)),)
        elif p.krylov and sum_index >= self.last_iteration:
            vectors = columns * p.iterations
        elif p.krylov and made:
            more = tuple(StateField(name, "<f4", (rows, made * columns)) for name in ("asked", "products"))
        if sum_index > self.last_iteration and p.next_vectors:
            more = (StateField("transitions", "<f4", (p.next_vectors, p.next_vectors)),)
        return (
            *first,
            *((StateField("list_entries", "<u4", (rows,)),) if p.bounded else ()),
            StateField("basis", "<f4", (rows, vectors)),
            StateField("singular_values", "<f4", (vectors,)),
            StateField("captured", "<f8"),
            StateField("change", "<f8"),
            *more,
            *chosen,
        )

    def encode_state(self, state: ModelState) -> bytes:
        """Return the state without the rows of items that have too few owners."""
        own = state_as(state, PriviRecState)
        size, values = self.size_after(own), dict(vars(own))
        if size:
            kept = self.kept(own)
            values |= {name: values[name][kept] for name in _BY_ITEM if len(values[name])}
            if own.gram.size:
                values["gram"] = own.gram[triangle_places(kept, self.parameters.items)[0]]
        return encode(self.state_fields(own.sum_index, size), values)

    def sensitivity(self, sum_index: int) -> Sensitivity:
        """Return counts for the degrees, bounds for the other sums; `ParameterError` for a < 1/2."""
        if self.parameters.user_exponent < 0.5:
            raise ParameterError(
                f"a privacy block needs rows of length 1 at most: choose user_exponent >= 0.5, not "
                f"{self.parameters.user_exponent:g}"
            )
        kind = self.sum_of(sum_index)
        if kind == "degrees":
            return Sensitivity(counts=True)
        if kind == "gram":
            return Sensitivity(l2=sqrt(0.5))
        if kind == "validation":
            return Sensitivity(l2=sqrt(1 + len(self.settings)))
        if kind == "next":
            return Sensitivity(l2=1.0)
        return Sensitivity(l2=1.0, per_item=self.parameters.columns)

    def sum_kinds(self) -> tuple[int, ...]:
        """Return the first sum, that of lists, the first iteration, that of next items and the last sum, as far as the
        task has them."""
        found = (2, self.first_vectors, self.last_iteration + 1, self.last_gram + 1)
        return tuple(sorted({1, *(min(one, self.steps) for one in found), self.steps}))

    def state_bytes(self, sum_index: int, size: tuple[int, ...] = ()) -> int:
        return fields_bytes(self.state_fields(sum_index, size))

    def longest_state_bytes(self) -> int:
        last = self.last_iteration
        return max(self.state_bytes(max(1, sum_index)) for sum_index in (self.steps, last, last - 1))

    def initial_state(self, task_seed: bytes) -> PriviRecState:
        """Return the empty state before the first sum. Q_0 is part of the state after the sum of the degrees."""
        return PriviRecState(0)

    def starting_from(self, vectors: NDArray[np.float32]) -> tuple[PriviRecState, bytes]:
        """Return the state of round 0 with Q_0 of `vectors`, float32 (m, any), and its encoding, whose digest
        `start_from` has.

        Columns of 0, which noise hid, and missing ones become random directions. Raises `ParameterError` for vectors of
        another number of items.
        """
        p = self.parameters
        if len(vectors) != p.items:
            raise ParameterError(f"the task has {p.items} items, the task that it starts from has {len(vectors)}")
        state = PriviRecState(0, basis=completed(vectors, p.columns).astype(np.float32))
        return state, encode((SUM_INDEX, StateField("basis", "<f4", (p.items, p.columns))), vars(state))

    def decode_state(self, round_number: int, body: bytes) -> ModelState:
        """Raise `CodecError` also for a sum index that the task does not have."""
        if (claimed := sum_index_of(body, round_number)) > self.steps:
            raise CodecError(f"a model state of round {round_number} claims {claimed} of {self.steps} sums")
        if not (claimed and self.parameters.shrinks):
            return self.state_from(round_number, decode(self.state_fields(claimed), body))
        items = self.parameters.items
        first: StateFields = (SUM_INDEX, *count_fields(items, "item_degrees"))  # which tell the lengths of what follows
        start = self.state_from(round_number, decode(first, memoryview(body)[: fields_bytes(first)]))
        kept = self.kept(start)
        if self.parameters.bounded and claimed + 1 >= self.first_vectors:
            first = (*first, StateField("list_entries", "<u4", (kept.size,)))
            known = decode(first, memoryview(body)[: fields_bytes(first)])
            start = self.state_from(
                round_number, known | {"list_entries": rows_of_all(known["list_entries"], kept, items)}
            )
        values = decode(self.state_fields(claimed, self.size_after(start)), body)
        for name in _BY_ITEM:
            if name in values:
                values[name] = rows_of_all(values[name], kept, items)
        if "gram" in values:
            values["gram"] = triangle_of_all(values["gram"], kept, items)
        return self.state_from(round_number, values)

    def state_from(self, round_number: int, values: dict[str, Any]) -> PriviRecState:
        """Return the state; `CodecError` for degrees above the number of clients, lists longer than their owners can
        have, negative singular values, or a column of Q with a norm over 1, which clients would multiply with their
        rows.
        """
        if "item_degrees" in values:
            values["item_degrees"] = as_counts(values["item_degrees"], values["clients"])
        if "list_entries" in values:
            values["list_entries"] = values["list_entries"].astype(np.float64)
            if (values["list_entries"] > values["clients"] * self._longest_list).any():
                raise CodecError("a model state holds lists that are longer than its clients can have")
        if "pairs" in values:
            values |= {"pairs": np.array(values["pairs"]), "pair_clients": np.array(values["pair_clients"])}
            if values["pair_clients"].max() > values["clients"]:
                raise CodecError("a model state has Gram sums of more clients than its degrees")
            if (values["pairs"] > self.clients_of_pairs(values["item_degrees"], values["pair_clients"])).any():
                raise CodecError("a model state has more clients with two items than were in the sum")
        if values.get("setting", 0) >= len(self.settings) or (values.get("measured", np.zeros(1)) < 0).any():
            raise CodecError("a model state holds a setting that there is not, or measured values below 0")
        if "singular_values" in values and (values["singular_values"] < 0).any():
            raise CodecError("a model state holds negative singular values")
        for name in ("basis", "asked"):
            with np.errstate(over="ignore"):  # becomes infinite, which is refused
                norms = np.linalg.norm(values[name], axis=0) if name in values else np.zeros(1)
            if not (norms <= _UNIT).all():
                raise CodecError(f"a model state's {name} has a column with a norm over 1")
        return PriviRecState(round_number, **values)

    def require_reachable(self, state: ModelState, reach: Reach) -> None:
        """Check how many clients can have been counted, and the values of P and of its singular values."""
        own = state_as(state, PriviRecState)
        if own.item_degrees.size and not reach.fewest <= own.clients <= reach.most:
            raise CodecError(
                f"a model state has the degrees of {own.clients:,} clients, and a sum has {reach.fewest:,} to "
                f"{reach.most:,}"
            )
        if own.pair_clients.size and not reach.fewest <= int(own.pair_clients.min()):
            raise CodecError("a model state has Gram sums of fewer clients than a sum has")
        if own.singular_values.size:  # roots of eigenvalues of P, which are at most the norm of a sum
            last = self.steps if self.sum_of(self.steps) == "gram" else self.last_iteration
            farthest = max(self._largest_singular_value(index, reach) for index in {self.first_vectors, last})
            require_within(own.singular_values, farthest, "singular values")
            require_within(own.products.ravel(), self._largest_value(last, reach), "products")
        require_within(own.measured, float(reach.most), "measured values")
        if own.gram.size:  # of a sum with noise, its part above the noise, whose entries are at most its norm
            farthest = self._largest_value(self.steps, reach)
            if reach.largest is not None:
                farthest = self._largest_singular_value(self.steps, reach) ** 2
            require_within(own.gram, farthest, "entries of the Gram matrix")

    def clients_of_pairs(self, degrees: Floats, pair_clients: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return how many clients were in the sum of each counted pair so far; degrees: of all items."""
        rows = int(np.count_nonzero(degrees >= self.parameters.min_owners))
        sums = range(self.last_iteration + 1, self.last_iteration + 1 + pair_clients.size)
        lengths = [stop - start for start, stop in (self.span_of_pairs(index, rows) for index in sums)]
        return np.repeat(pair_clients, lengths)

    def pairs_within(self, state: PriviRecState) -> NDArray[np.uint32]:
        """Return the counted pairs, where more clients had both items than one of them in the sum of degrees as many as
        that: see `protocols.recipes.privirec`."""
        own, found, first = state.item_degrees[self.kept(state)].astype(np.uint32), state.pairs.copy(), 0
        for row, degree in enumerate(own):
            part = found[first : first + own.size - row]
            np.minimum(part, np.minimum(degree, own[row : row + part.size]), out=part)
            first += own.size - row
        return found

    def _largest_value(self, sum_index: int, reach: Reach) -> float:
        """Return the largest size of a value of a sum."""
        largest = self.layout(sum_index).blocks[0].segments[0].clip if reach.largest is None else reach.largest
        return reach.most * largest * CLIP_SLACK

    def _largest_singular_value(self, sum_index: int, reach: Reach) -> float:
        """Return the root of the largest norm that a sum of vectors can have: m x K values, or P from its triangle."""
        is_gram = self.sum_of(sum_index) == "gram"
        values = self.parameters.items**2 if is_gram else self.layout(sum_index).length
        return sqrt(self._largest_value(sum_index, reach) * CLIP_SLACK * sqrt(values))

    def warnings(self) -> tuple[str, ...]:
        p = self.parameters
        first = ["the item degrees"] * p.degrees + ["how many items each item's owners have in all"] * p.bounded
        if p.counted:
            measured = f"; and how well {len(self.settings)} settings rank an item of {p.validation:.0%} of the members"
            return (
                "The server and all members see the item degrees, and of each two items how many clients have both"
                f"{measured if p.validation else ''}. {GRAM_CONSENT}",
            )
        sums = f"{', '.join(first)}{' and ' if first else ''}{p.iterations} x {p.items * p.columns:,}"
        shown = f"The server and all members see {sums} sums of the power iteration"
        if p.next_vectors:
            shown += f", {next_length(p.next_vectors):,} values of which items follow which"
        if p.validation:
            shown += f", and how well {len(self.settings)} settings rank an item of {p.validation:.0%} of the members"
        if p.reveal_gram:
            return (f"{shown}. {GRAM_CONSENT}",)
        owners = f"items with fewer than {p.min_owners} owners are in none of them but the degrees"
        return (f"{shown}; {owners}.",)
