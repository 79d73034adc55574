"""Where a client is between its visits: with its node, which keeps it, or on its way with the message."""

from __future__ import annotations

import json
from typing import Protocol

from protofed import claims
from protofed.errors import CheckpointError, PayloadError
from protofed.flower.messages import Job, Left
from protofed.flower.state import ClientFolder, Generation, digest
from protofed.training import Roster, Trained
from protofed.training.client import pack, unpack


class Place(Protocol):
    """What one visit takes a client from, and where it leaves it."""

    def answered(self) -> tuple[Trained, Left] | None:
        """Return the answer to a request to train that was answered before; None to train now."""
        ...

    def enter(self, *, training: bool) -> None:
        """Bring the client into the roster as it was before the visit, which trains or scores it."""
        ...

    def trained(self, result: Trained) -> Left:
        """Keep the client as the roster has it after training."""
        ...

    def delivered(self) -> Left:
        """Keep the client as the roster has it after it received the outcome of a round."""
        ...

    def unchanged(self) -> Left:
        """Leave everything as it was before the visit."""
        ...


class Carried:
    """A client that travels: the message brings it, and the answer takes it back.

    Args:
        job: What the server asks for.
        roster: Where the visit happens.
    """

    def __init__(self, job: Job, roster: Roster) -> None:
        self.job = job
        self.roster = roster

    def answered(self) -> None:
        """Return None: the server has what was answered."""

    def enter(self, *, training: bool) -> None:
        """Unpack the client.

        Raises:
            PayloadError: If it does not fit its model.
        """
        assert self.job.state is not None
        try:
            self.roster.replace(self.job.client, unpack(self.job.state))
        except (KeyError, RuntimeError) as error:
            raise PayloadError(f"state: does not fit the model of {self.job.client} ({_line(error)})") from None
        self.before = self.roster.parked(self.job.client)

    def trained(self, result: Trained) -> Left:
        """Pack the client."""
        return self.delivered()

    def delivered(self) -> Left:
        """Pack the client, without its model if that has not changed."""
        after = self.roster.parked(self.job.client)
        same = after.model is self.before.model
        return Left(state=pack(after._replace(model={}) if same else after))

    def unchanged(self) -> Left:
        """Return nothing."""
        return Left()


class Kept:
    """A client that its node keeps in a folder; see :mod:`protofed.flower.state`.

    Args:
        job: What the server asks for.
        roster: Where the visit happens; holds the client as it is before the run.
        folder: The client's files.
        fresh: Whether a client whose state is lost begins anew.

    Raises:
        CheckpointError: If the node does not hold the state that the visit must start from, or was asked for
            something later meanwhile.
    """

    def __init__(self, job: Job, roster: Roster, folder: ClientFolder, fresh: bool) -> None:
        self.job = job
        self.roster = roster
        self.folder = folder
        if job.order < folder.order:
            raise CheckpointError(f"{job.client}: a later request of the server came before this one")
        held = folder.since(job.after)
        self.anew = held is None and fresh
        if held is None and not fresh:
            newest = f"its newest is {folder.latest.name}" if folder.latest else "it holds none of this run"
            raise CheckpointError(
                f"{job.client}: the node does not hold state {job.after}, where the visit must start ({newest}): "
                "restore its state-dir, or add fresh=true to --node-config to begin anew"
            )
        self.held = held or []
        self.start: Generation | None = None

    def answered(self) -> tuple[Trained, Left] | None:
        """Return what the same request was answered before."""
        request = digest(self.job.round, self.job.message)
        for generation in self.held:
            if generation.trained and (generation.round, generation.request) == (self.job.round, request):
                samples = len(self.roster.members[self.job.client].train)
                reply, losses = self.folder.reply(generation), json.loads(generation.losses)
                return Trained(self.job.client, reply, losses, samples, 0.0), Left(generation.name)
        return None

    def enter(self, *, training: bool) -> None:
        """Read the newest state that is older than what the visit makes.

        Raises:
            CheckpointError: If its files are damaged or do not fit the model, or all of them are newer.
        """
        name, place = self.job.client, (self.job.round, not training)
        older = [generation for generation in self.held if generation.place < place]
        if self.held and self.job.after and not older:
            raise CheckpointError(f"{name}: state {self.job.after} is newer than round {self.job.round}")
        self.start = older[-1] if older else None
        if self.start is not None:
            try:
                self.roster.replace(name, self.folder.read(self.start))
            except (KeyError, RuntimeError) as error:
                raise CheckpointError(
                    f"{self.folder.path}: does not fit the model of {name} ({_line(error)})"
                ) from None
        self.before = self.roster.parked(name)

    def trained(self, result: Trained) -> Left:
        """Write the client and its answer."""
        request = digest(self.job.round, self.job.message)
        return self._commit(request, result.message, json.dumps(result.losses))

    def delivered(self) -> Left:
        """Write the client."""
        return self._commit()

    def unchanged(self) -> Left:
        """Write nothing."""
        return Left(anew=self.anew)

    def _commit(self, request: str = "", reply: bytes | None = None, losses: str = "{}") -> Left:
        parked = self.roster.parked(self.job.client)
        same = self.start if parked.model is self.before.model else None
        new = self.folder.write(parked, self.job.round, request, reply, losses, same_model=same)
        self.folder.commit(new, self.start, self.job.order, {self.job.after, self.job.saved})
        return Left(new.name, self.anew)


def _line(error: Exception) -> str:
    return claims.clean(error)
