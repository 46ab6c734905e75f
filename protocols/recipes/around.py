"""A recipe around another one: as a task adds federated evaluation (`Evaluated`) and noise (`Private`) to its own."""

from __future__ import annotations

from typing import TypeVar

from protocols.recipes.base import Recipe, RecipeParameters, RoundSpec

K = TypeVar("K")


class RecipeAround(Recipe):
    """A recipe around `inner`, a recipe with one device group, of which it keeps what it does not define itself."""

    inner: Recipe

    @property
    def own(self) -> Recipe:
        return self.inner.own

    def layer(self, kind: type[K]) -> K | None:
        return self if isinstance(self, kind) else self.inner.layer(kind)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def parameters(self) -> RecipeParameters:
        return self.inner.parameters

    @property
    def predicts_ratings(self) -> bool:
        return self.inner.predicts_ratings

    @property
    def by_snapshot(self) -> bool:
        return self.inner.by_snapshot

    @property
    def main_sum(self) -> int:
        return self.inner.main_sum

    def round_spec(self, task_seed: bytes, number: int, sum_index: int | None = None) -> RoundSpec:
        """Return the wrapped recipe's broadcast, with the index of the sum among all sums of the task."""
        return self.inner.round_spec(task_seed, number, sum_index)
