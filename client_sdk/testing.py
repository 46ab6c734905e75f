"""Tests that every recipe must pass, for the tests of packages that add one. Needs pytest.

class TestPopularity(RecipeConformance):
    name = "popularity"
    parameters = {"items": 30}

Override `interactions` for a recipe that learns from something else than items, and `training` for quick settings.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.store import MemoryStore
from client_sdk.store.client_store import ClientStore
from client_sdk.store.states import GivenData
from client_sdk.training import client_side
from client_sdk.training.base import ClientSide, LocalResult, TrainingConfig, why_abstain
from protocols.contribution import TaskSum, make, plan_of_task, without_participation
from protocols.errors import CodecError, HushRecError, ParameterError
from protocols.layout import TRAINED
from protocols.recipes.base import ItemParameters, ModelState, Recipe, RoundSpec, main_layout
from protocols.recipes.bounds import Reach
from protocols.recipes.registry import recipe, recipe_entry
from protocols.recipes.state import encode
from protocols.sums.base import SumPlan, new_keyring
from protocols.sums.possible import require_possible
from protocols.sums.registry import mechanism as find_mechanism
from protocols.task_terms import carriers, check_combination

_SEED = bytes(range(32))
MOST_CONSTANTS: Final = 0.2
"""Share of a segment's values that may agree within 1 % in two rounds of a client, by chance."""


class RecipeConformance:
    """Inherit it with the name and small parameters of a recipe; pytest runs every test."""

    name: ClassVar[str]
    parameters: ClassVar[Mapping[str, Any]]
    clients: ClassVar[int] = 5
    """Contributions of a sum."""
    sums: ClassVar[int] = 3
    """Sums that are played."""
    training: ClassVar[TrainingConfig | None] = None
    mechanisms: ClassVar[tuple[str, ...] | None] = None
    """Those over which a sum is compared with the plain one; None for CKKS, if it carries the recipe. Masked and
    one-shot sums use the plans of the others."""
    reveals: ClassVar[Mapping[str, str]] = {}
    """Segments of sums of class trained that hold constants of a client, and the parameter by which a task consents."""

    def make(self) -> Recipe:
        """Return the recipe."""
        return recipe(self.name, self.parameters)

    def client_side(self, made: Recipe) -> ClientSide:
        """Return the client side."""
        return client_side(made, self.training)

    def interactions(self, made: Recipe, client: int) -> object:
        """Return what the client passes to `take_part`: by default rated items, alike in every call."""
        parameters = made.parameters
        assert isinstance(parameters, ItemParameters), "override interactions: the model has no numbered items"
        rng = np.random.default_rng(client)
        items = rng.choice(parameters.items, max(1, parameters.items // 3), replace=False).astype(np.int32)
        ratings = rng.integers(1, 6, items.size).astype(np.float32)
        return History(items, ratings, times=rng.permutation(items.size).astype(np.float64))

    # --- one sum -------------------------------------------------------------------------------------------------

    def _history(self, made: Recipe, client: int) -> History:
        side, given = self.client_side(made), self.interactions(made, client)
        read = side.read(given)
        if read is not None:
            return read
        assert isinstance(given, History)
        return given

    def _contribute(
        self, made: Recipe, spec: RoundSpec, state: ModelState, client: int, named: int | None = None
    ) -> LocalResult:
        """Return the contribution of `client`, which may not write into its arguments.

        named: the client whose id it has, None for its own.
        """
        side, rng = self.client_side(made), np.random.default_rng([client, spec.number])
        view = made.view(state, made.device_group_of(spec.sum_index))
        view.freeze()
        kept = side.initial_client_state(rng)
        for array in kept.values():
            array.flags.writeable = False
        return side.contribute(
            spec, f"c_{client if named is None else named}", view, self._history(made, client), kept, rng
        )

    def _sum(self, made: Recipe, spec: RoundSpec, state: ModelState, mechanism: str) -> NDArray[np.float64]:
        """Return the opened sum of all clients, as a task with default parameters computes it.

        Servers and members use no sum that `require_possible` refuses, so the bounds that a layout states must hold.
        """
        summing = find_mechanism(mechanism)
        of = TaskSum(made, summing, self._plan(made, spec, mechanism), spec)
        keyring, sent = new_keyring(summing, of.plan), []
        for client in range(self.clients):
            contribution = self._contribute(made, spec, state, client).contribution
            message = make(of, state, f"c_{client}", contribution, keyring).message
            sent.append((made.route(spec, f"c_{client}"), message))
        aggregate = summing.release(of.plan, summing.fold(of.plan, None, sent))
        total = summing.open(of.plan, aggregate, self.clients, keyring)
        require_possible(of.plan, total, self.clients)
        return without_participation(of.plan, total)

    def _plan(self, made: Recipe, spec: RoundSpec, mechanism: str) -> SumPlan:
        layout, main = made.layout(spec.sum_index), main_layout(made)
        return plan_of_task(find_mechanism(mechanism), {}, layout, self.clients, main)

    def _states(self, made: Recipe) -> list[ModelState]:
        """Return the initial state and those after each of `sums` plain sums, fewer if the model is done before."""
        states = [made.initial_state(_SEED)]
        for number in range(1, self.sums + 1):
            if made.is_done(states[-1]):
                break
            spec = made.round_spec(_SEED, number)
            total = self._sum(made, spec, states[-1], "plain")
            states.append(made.absorb(states[-1], spec, total, self.clients))
        return states

    # --- tests ---------------------------------------------------------------------------------------------------

    def test_it_is_registered_under_its_name_and_its_parameters_are_checked(self) -> None:
        entry, made = recipe_entry(self.name), self.make()
        assert (entry.name, made.name) == (self.name, self.name) and entry.version >= 1
        assert isinstance(made.parameters, entry.parameters)
        again = recipe(self.name, made.parameters.model_dump(mode="json"))
        assert again.parameters == made.parameters
        with pytest.raises(ParameterError, match="no_such_parameter"):
            recipe(self.name, {**self.parameters, "no_such_parameter": 1})

    def test_it_can_be_combined_with_the_mechanisms_that_its_entry_allows(self) -> None:
        allowed = carriers(self.name)
        assert "plain" in allowed
        check_combination(self.make(), "plain")

    def test_all_parties_compute_the_same_layouts_routes_and_rounds(self) -> None:
        one, other = self.make(), self.make()
        for number in range(1, self.sums + 1):
            spec, layout = one.round_spec(_SEED, number), one.layout(number)
            assert spec == other.round_spec(_SEED, number)
            assert layout == other.layout(number) and hash(layout) == hash(other.layout(number))
            assert layout.length <= one.longest_vector()
            route = one.route(spec, "c_1")
            assert route == other.route(spec, "c_1")
            layout.check_route(route)
        retried = one.round_spec(_SEED, 2, 1)
        assert (retried.number, retried.sum_index) == (2, 1) and retried.seed == one.round_spec(_SEED, 2).seed

    def test_contributions_fit_their_route_and_keep_their_clips(self) -> None:
        made = self.make()
        for state, number in zip(self._states(made), range(1, self.sums + 1), strict=False):
            if made.is_done(state):
                break
            spec, layout = made.round_spec(_SEED, number), made.layout(number)
            route = made.route(spec, "c_0")
            local = self._contribute(made, spec, state, 0)
            assert local.contribution.clipped >= 0 and 0 < local.contribution.scaled <= 1
            if layout.chosen:
                continue  # the mechanism checks the blocks that a contribution names
            vector = np.concatenate(list(local.blocks))
            bounds = layout.contribution_bounds(route)
            assert vector.shape == bounds.shape and np.isfinite(vector).all()
            assert (np.abs(vector) <= bounds * (1 + 2**-22)).all()
            for block, values in zip(layout.contribution_blocks(route), local.blocks, strict=True):
                counts = values[block.integral_mask()]
                assert np.array_equal(counts, np.rint(counts)) and (counts >= 0).all()

    def test_a_model_that_sums_cannot_make_is_refused(self) -> None:
        """Clients train on a model that the server sends: they accept what sums make, and nothing far from it."""
        made = self.make()
        for number, state in enumerate(self._states(made)):
            reach = Reach(number, self.clients, self.clients)
            for group in range(made.device_groups):
                made.require_reachable(made.view(state, group), reach)
            held = made.state_fields(number) if number else ()
            for field in held:
                if not field.dtype.startswith("<f") or not field.shape or not field.bytes:
                    continue
                false = {**made.state_values(state), field.name: np.full(field.shape, 1e30)}
                with pytest.raises(CodecError):
                    made.require_reachable(made.decode_state(number, encode(held, false)), reach)

    def test_sums_of_training_hold_no_constant_of_a_client(self) -> None:
        """A client contributes in two rounds, as the task goes on: no value that depends on its data is the same.

        The sums of many rounds over known cohorts are equations in such values. What is the same for other data, such
        as a count of contributions, is no constant of the client.
        """
        made = self.make()
        states, groups = self._states(made), made.device_groups
        for first in range(1, len(states) - groups):
            layout = made.layout(first)
            if layout.sum_class != TRAINED or made.layout(first + groups) != layout:
                continue
            if layout.chosen:
                assert self._consents(made), "the blocks that a contribution names show its data: ask for consent"
                continue
            own, again, other = (
                layout.scatter(made.route(spec, "c_0"), list(self._contribute(made, spec, state, client, 0).blocks))
                for spec, state, client in (
                    (made.round_spec(_SEED, first), states[first - 1], 0),
                    (made.round_spec(_SEED, first + groups), states[first + groups - 1], 0),
                    (made.round_spec(_SEED, first + groups), states[first + groups - 1], 1),
                )
            )
            depends = (own != 0) & (again != other)  # what depends on the client's data
            same = depends & np.isclose(own, again, rtol=0.01, atol=0)
            segments = [segment for block in layout.blocks for segment in block.segments]
            edges = np.cumsum([segment.length for segment in segments])[:-1]
            parts = zip(segments, np.split(same, edges), np.split(depends, edges), strict=True)
            found = {segment.name for segment, part, all_ in parts if part.sum() > MOST_CONSTANTS * all_.sum()}
            unasked = sorted(found - self._consents(made))
            assert not unasked, f"the segments {unasked} hold values that are the same in two rounds of one client"

    def _consents(self, made: Recipe) -> set[str]:
        """Return the segments whose constants the task's parameters consent to reveal."""
        return {name for name, parameter in self.reveals.items() if getattr(made.parameters, parameter)}

    def test_a_client_is_counted_once_and_abstains_without_data(self) -> None:
        made, nobody = self.make(), History(np.zeros(0, np.int32))
        once = [number for number in range(1, self.sums + 1) if made.layout(number).sum_class.once]
        for number in once:
            spec, state = made.round_spec(_SEED, number), made.initial_state(_SEED)
            sum_class = made.layout(number).sum_class
            history = self._history(made, 0)
            local = self._contribute(made, spec, state, 0)
            assert any(np.any(block) for block in local.blocks), "zeros would count towards the smallest cohort"
            assert why_abstain(sum_class, spec, state, history, GivenData(), "t") is None
            assert why_abstain(sum_class, spec, state, nobody, GivenData(), "t"), "no interactions, nothing to count"
            given, repeated = GivenData().with_counted("t", number), made.round_spec(_SEED, number + 1, number)
            assert why_abstain(sum_class, repeated, state, history, given, "t") is None, "it failed and is repeated"
            assert why_abstain(sum_class, spec, state, history, given, "another task of the data set")
            for other in once:
                later = made.round_spec(_SEED, other)
                assert other == number or why_abstain(sum_class, later, state, history, given, "t")

    def test_a_state_has_its_stated_length_and_survives_encoding(self) -> None:
        made = self.make()
        for state in self._states(made)[1:]:
            number, body = state.round_number, made.encode_state(state)
            size = made.size_after(state)
            assert len(body) == made.state_bytes(number, size) <= made.longest_state_bytes()
            again = made.decode_state(number, body)
            assert made.encode_state(again) == body and again.round_number == number
            for wrong in (body[:-1], body + b"\0", b""):
                with pytest.raises(CodecError):
                    made.decode_state(number, wrong)
            for group in range(made.device_groups):
                seen = made.encode_view(made.view(state, group), group)
                assert len(seen) == (made.state_bytes(number, size) if size else made.view_bytes(number, group))
                assert made.encode_view(made.decode_view(number, seen, group), group) == seen

    def test_absorbing_is_a_function_of_its_arguments_and_a_round_is_absorbed_once(self) -> None:
        made = self.make()
        spec, before = made.round_spec(_SEED, 1), made.initial_state(_SEED)
        held = made.encode_state(before)
        total = self._sum(made, spec, before, "plain")
        summed = total.copy()
        before.freeze()
        one, other = (made.absorb(before, spec, total, self.clients) for _ in range(2))
        assert one.round_number == 1 and made.encode_state(one) == made.encode_state(other)
        assert made.encode_state(before) == held and np.array_equal(total, summed), "the arguments were changed"
        with pytest.raises(ParameterError):
            made.absorb(one, spec, total, self.clients)

    def test_encrypted_and_plain_sums_train_the_same_model(self) -> None:
        made = self.make()
        chosen = self.mechanisms if self.mechanisms is not None else ("ckks",)
        spec, state = made.round_spec(_SEED, 1), made.initial_state(_SEED)
        plain = self._sum(made, spec, state, "plain")
        for name in chosen:
            if name in carriers(self.name):
                largest = max(1.0, float(np.abs(plain).max(initial=0.0)))
                error = self._plan(made, spec, name).predicted_error + 1e-6 * largest
                np.testing.assert_allclose(self._sum(made, spec, state, name), plain, atol=error, rtol=0)

    def test_the_report_holds_numbers_and_warnings_are_sentences(self) -> None:
        made = self.make()
        for state in self._states(made):
            assert all(np.isfinite(value) for value in made.report(state).values())
        assert all(text.strip() and text == text.strip() for text in made.warnings())

    def test_states_are_frozen_and_pass_between_processes(self) -> None:
        made = self.make()
        last = self._states(made)[-1]
        last.freeze()
        assert made.encode_state(pickle.loads(pickle.dumps(last))) == made.encode_state(last)  # noqa: S301 - our own bytes
        arrays = [getattr(last, field.name) for field in fields(last)]
        assert not any(array.flags.writeable for array in arrays if isinstance(array, np.ndarray))

    def test_scores_are_one_number_an_item_or_refused(self) -> None:
        made = self.make()
        side, state = self.client_side(made), self._states(made)[-1]
        if not recipe_entry(self.name).has_items:
            with pytest.raises(HushRecError):
                side.scores(state, {}, History(np.zeros(0, np.int32)))
            return
        assert isinstance(made.parameters, ItemParameters)
        rng, history = np.random.default_rng(0), self._history(made, 0)
        view, spec = made.view(state, 0), made.round_spec(_SEED, max(1, state.round_number))
        scores = side.scores(view, side.prepare(spec, view, history, rng), history)
        assert scores.shape == (made.parameters.items,) and np.isfinite(scores).all()

    def test_what_a_client_keeps_can_be_stored_and_read_again(self) -> None:
        made, store = self.make(), ClientStore(MemoryStore(), "owner")
        side, spec = self.client_side(made), made.round_spec(_SEED, self.sums)
        state, history, rng = self._states(made)[-1], self._history(made, 0), np.random.default_rng(0)
        prepared = side.prepare(spec, made.view(state, 0), history, rng)
        trained = self._contribute(made, made.round_spec(_SEED, 1), made.initial_state(_SEED), 0).client_state
        for kept in (side.initial_client_state(rng), prepared, trained):
            store.keep_client_state("task", kept)
            read = store.client_state("task", side.initial_client_state(rng))
            assert read is not None and read.keys() == kept.keys()
            for name, array in kept.items():
                np.testing.assert_array_equal(read[name], array, err_msg=name)
