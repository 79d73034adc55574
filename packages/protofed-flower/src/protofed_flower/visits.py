"""Storage of a client between visits: at its node, or at the server, from which it travels with the message."""

from __future__ import annotations

import json
from dataclasses import dataclass

from protofed.engine import Roster, Trained
from protofed.errors import CheckpointError, PayloadError
from protofed.storage.snapshots import pack, unpack
from protofed.untrusted import claims
from protofed_flower.messages import Job, VisitOutcome
from protofed_flower.state import ClientFolder, Generation, digest


@dataclass(eq=False)
class Carried:
    """A client that travels with the message and returns with the answer."""

    job: Job
    roster: Roster

    def answered(self) -> None:
        """Return None: the server has all earlier answers."""

    def enter(self, *, training: bool) -> None:
        """Unpack the client."""
        assert self.job.state is not None
        try:
            self.roster.replace(self.job.client, unpack(self.job.state))
        except (KeyError, RuntimeError) as error:
            why = claims.clean(error)
            raise PayloadError(f"state: does not fit the model of {self.job.client} ({why})") from None
        self.before = self.roster.snapshot(self.job.client)

    def trained(self, result: Trained) -> VisitOutcome:
        """Pack the client."""
        return self.delivered()

    def delivered(self) -> VisitOutcome:
        """Pack the client, without its model if that has not changed."""
        after = self.roster.snapshot(self.job.client)
        same = after.model is self.before.model
        return VisitOutcome(state=pack(after._replace(model={}) if same else after))

    def unchanged(self) -> VisitOutcome:
        """Return an empty outcome."""
        return VisitOutcome()


class Kept:
    """A client that its node stores in a folder; see :mod:`protofed_flower.state`.

    Args:
        roster: With the client as it was before the run.
        instead: As for :meth:`~protofed_flower.state.ClientFolder.held`.

    Attributes:
        start: The newest generation in this visit; None for the client as it was before the run.

    Raises:
        CheckpointError: If the node does not have the state from which the visit must start, or a later request
            has been carried out.
    """

    def __init__(self, job: Job, roster: Roster, folder: ClientFolder, instead: str) -> None:
        self.job, self.roster, self.folder = job, roster, folder
        if job.order < folder.order:
            raise CheckpointError(
                f"{job.client}: a later request of the server has been carried out already", code="later"
            )
        held = folder.held(job.after, instead)
        self.anew, self.held = held is None, held or []
        self.start: Generation | None = None

    def answered(self) -> tuple[Trained, VisitOutcome] | None:
        """Return the existing answer to the same request, or None."""
        request = digest(self.job.round, self.job.message)
        for generation in self.held:
            if generation.trained and (generation.round, generation.request) == (self.job.round, request):
                samples = len(self.roster[self.job.client].train)
                reply, losses = self.folder.reply(generation), json.loads(generation.losses)
                return Trained(self.job.client, reply, losses, samples, 0.0), VisitOutcome(generation.name)
        return None

    def enter(self, *, training: bool) -> None:
        """Load the newest state that is older than the one that the visit creates."""
        name, place = self.job.client, (self.job.round, not training)
        older = [generation for generation in self.held if generation.place < place]
        if self.held and self.job.after and not older:
            raise CheckpointError(f"{name}: state {self.job.after} is newer than round {self.job.round}")
        self.start = older[-1] if older else None
        if self.start is not None:
            try:
                self.roster.replace(name, self.folder.read(self.start))
            except (KeyError, RuntimeError) as error:
                why = claims.clean(error)
                raise CheckpointError(f"{self.folder.path}: does not fit the model of {name} ({why})") from None
        self.before = self.roster.snapshot(name)

    def trained(self, result: Trained) -> VisitOutcome:
        """Store the client and its answer."""
        request = digest(self.job.round, self.job.message)
        return self._commit(request, result.message, json.dumps(result.losses))

    def delivered(self) -> VisitOutcome:
        """Store the client."""
        return self._commit()

    def unchanged(self) -> VisitOutcome:
        """Return the outcome of a visit without a new generation."""
        return VisitOutcome(anew=self.anew)

    @property
    def training(self) -> Generation | None:
        """The training of this round; None if the client did not take part."""
        return next((g for g in self.held if g.trained and g.round == self.job.round), None)

    def _commit(self, request: str = "", reply: bytes | None = None, losses: str = "{}") -> VisitOutcome:
        snapshot = self.roster.snapshot(self.job.client)
        same = self.start if snapshot.model is self.before.model else None
        new = self.folder.write(snapshot, self.job.round, request, reply, losses, same_model=same)
        self.folder.commit(new, self.start, self.job.order, {self.job.after, self.job.saved})
        self.start = new
        return VisitOutcome(new.name, self.anew)


ClientStorage = Carried | Kept  #: The storage from which a visit loads a client and to which it returns it
