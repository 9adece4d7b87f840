"""Sets of models that fit on one worker together.

Workers of a pool that hold the same models are interchangeable, so an assignment only counts the workers per set.
Holding an additional model costs nothing, so maximal sets suffice: those to which no further model can be added.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jellybean_solver.demand.memory import NONE, Memory, PoolMemory
from jellybean_solver.demand.settings import DEFAULT_ASSIGNMENT, AssignmentSettings


@dataclass(frozen=True, slots=True)
class ModelSets:
    """Sets of operators whose models fit on one worker. `all_largest`: True if every maximal set is among them."""

    sets: tuple[tuple[str, ...], ...]
    all_largest: bool


def largest_model_sets(
    memory: PoolMemory,
    apart: Collection[frozenset[str]] = (),
    settings: AssignmentSettings = DEFAULT_ASSIGNMENT,
) -> ModelSets:
    """The maximal sets of operators whose models fit together; each operator must fit alone.

    `apart`: pairs of operators that must not share a worker.
    """
    names = sorted(memory.needs, key=lambda name: (-memory.needs[name].scarcer, name))
    parted = {name: frozenset().union(*(pair for pair in apart if name in pair)) - {name} for name in names}
    if memory.takes(names) and not any(parted[name] & set(names) for name in names):
        return ModelSets((tuple(names),) if names else (), True)
    found: list[frozenset[str]] = []
    room = _Room(memory, parted)
    complete = _extend(names, room, found, settings)
    if not complete:
        found = _family(names, room)
    position = {name: index for index, name in enumerate(memory.needs)}
    ordered = (tuple(sorted(one, key=position.__getitem__)) for one in found)
    return ModelSets(tuple(sorted(ordered, key=lambda one: [position[name] for name in one])), complete)


@dataclass(frozen=True, slots=True)
class _Room:
    memory: PoolMemory
    parted: Mapping[str, frozenset[str]]

    def takes(self, name: str, held: Collection[str], used: Memory) -> bool:
        """True if the model of `name` may join the models `held`, which take `used`."""
        return used.beside(self.memory.needs[name]).fits(self.memory.limits) and not self.parted[name].intersection(
            held
        )


def _extend(names: list[str], room: _Room, found: list[frozenset[str]], settings: AssignmentSettings) -> bool:
    """Append all maximal sets to `found`, by depth-first enumeration; False if the settings' limits are exceeded."""
    stack: list[tuple[int, tuple[str, ...], Memory]] = [(0, (), NONE)]
    steps = 0
    while stack:
        index, held, used = stack.pop()
        steps += 1
        if steps > settings.enumeration_steps:
            return False
        if index == len(names):
            if not any(room.takes(name, held, used) for name in names if name not in held):
                if len(found) == settings.largest_sets:
                    return False
                found.append(frozenset(held))
            continue
        name = names[index]
        stack.append((index + 1, held, used))
        if room.takes(name, held, used):
            stack.append((index + 1, (*held, name), used.beside(room.memory.needs[name])))
    return True


def _family(names: list[str], room: _Room) -> list[frozenset[str]]:
    """Two maximal sets per operator: it and, greedily, the largest models that fit; it and the smallest ones."""
    found: dict[frozenset[str], None] = {}
    for seed in names:
        for order in (names, names[::-1]):
            held, used = {seed}, room.memory.needs[seed]
            for name in order:
                if name not in held and room.takes(name, held, used):
                    held.add(name)
                    used = used.beside(room.memory.needs[name])
            found[frozenset(held)] = None
    return list(found)


def all_model_sets(
    memory: PoolMemory, most: int, apart: Collection[frozenset[str]] = ()
) -> tuple[tuple[str, ...], ...] | None:
    """All sets of operators that fit on one worker, not only maximal ones; None if there are more than `most`.

    For objectives in which every model held on a worker costs something (migration). `apart`: pairs of operators that
    must not share a worker.
    """
    names = tuple(memory.needs)
    found: list[tuple[int, ...]] = [(index,) for index in range(len(names))]
    for held in found:  # grows during the loop: each set plus one operator later in the order
        for index in range(held[-1] + 1, len(names)):
            if any(frozenset((names[i], names[index])) in apart for i in held):
                continue
            if memory.takes(names[i] for i in (*held, index)):
                found.append((*held, index))
                if len(found) > most:
                    return None
    return tuple(tuple(names[i] for i in held) for held in found)
