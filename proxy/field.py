"""The backends that may serve one model, lined up for a choice."""

from collections.abc import Sequence

from warmroute.policies.routing.base import Candidate
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.ledger.decision import Roster
from warmroute.proxy.view import View


class Field:
    """The routable backends of one model, as the policy and the records see them.

    A backend of several data-parallel ranks is as many candidates.

    Attributes:
        routable: What it was made of; another list is another field.
        candidates: What the policy chooses from.
        backends: The backend of each candidate.
        ranks: The rank of each; None where the backend has only one.
        roster: The same for the records.
    """

    __slots__ = ("backends", "candidates", "ranks", "roster", "routable")

    def __init__(
        self, routable: list[Backend], every: Sequence[Backend], view: View
    ) -> None:
        positions = {backend.name: at for at, backend in enumerate(every)}
        self.routable = routable
        self.candidates: list[Candidate] = []
        self.backends: list[Backend] = []
        self.ranks: list[int | None] = []
        for backend in routable:
            self.candidates += backend.candidates
            self.backends += [backend] * len(backend.candidates)
            self.ranks += backend.ranks or [None]
        self.roster = Roster(
            [backend.name for backend in every],
            [backend.state for backend in every],
            [str(view.facts(backend.name)["source"]) for backend in every],
            [positions[backend.name] for backend in self.backends],
            [backend.block_size for backend in every],
            self.ranks,
        )
