"""The nodes of a network: who is connected, whose clients are where, and how questions reach them.

Nothing that a node sends is believed or can end a run: what cannot be read is named and left out.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from protofed import claims
from protofed.errors import FederationError, PayloadError
from protofed.flower.identity import Bindings, fingerprint
from protofed.flower.messages import Description, Values, read_descriptions

RECORD = "protofed"
QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"
POLL = 0.01, 0.3
"""Least and most seconds between two looks for replies; the longer nothing comes, the more."""
RETRY = 30.0
"""Seconds until a node whose answer was of no use is asked again, while too few are there."""
UNREADABLE = 700
"""Code of an error that stands for an answer Flower could not take apart."""
log = logging.getLogger("protofed")


@dataclass
class Nodes:
    """Who is connected, and whose clients are where.

    Attributes:
        grid: Flower's.
        config: The experiment's configuration, as JSON.
        bindings: Which key brings which clients.
        node_of: Of each client, the node that holds it.
        descriptions: Of each client, in the order in which they came.
        left_out: Why a node, or a client of one, does not take part.
        failed: Nodes whose answer was of no use.
    """

    grid: Grid
    config: str
    bindings: Bindings = field(default_factory=Bindings)
    node_of: dict[str, int] = field(default_factory=dict)
    descriptions: dict[str, Description] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    waiting: dict[str, int] = field(default_factory=dict)

    def refresh(self) -> None:
        """Ask nodes that are new whose data they have, and take the answers that are there.

        Nobody is waited for: a node that keeps silent holds nobody up. What is known of nodes that have left is
        where their clients were, which is forgotten.
        """
        online = self._online()
        self.asked &= online.keys()
        self.waiting = {number: node for number, node in self.waiting.items() if node in online}
        self.node_of = {name: node for name, node in self.node_of.items() if node in online}
        new = sorted(online.keys() - self.asked)
        unknown = [node for node in new if not self._recognise(node, online[node])]
        self.asked |= set(new)
        if unknown:
            questions = [(node, message({"config": self.config}, node, QUERY)) for node in unknown]
            self.waiting |= self._push(questions)
        for key, reply in self._pull(list(self.waiting)):
            node = self.waiting.pop(key)
            self._hear(node, reply, online[node])

    def exchange(
        self, messages: Iterable[Message], seconds: float, at_once: int = sys.maxsize
    ) -> Iterator[tuple[int, Message]]:
        """Send messages; yield the number of each with its reply, as they come.

        Args:
            messages: At most one for each client.
            seconds: How long to wait; 0 for as long as it takes. Flower answers for nodes that are gone.
            at_once: How many messages wait for their replies at a time.
        """
        numbered = enumerate(messages)
        waiting: dict[str, int] = {}
        end = time.monotonic() + seconds if seconds else float("inf")
        pause = POLL[0]
        while True:
            waiting |= self._push(list(itertools.islice(numbered, at_once - len(waiting))))
            if not waiting:
                return
            for key, reply in self._pull(list(waiting)):
                pause = POLL[0] / 2
                yield waiting.pop(key), reply
            if time.monotonic() > end:
                return
            if waiting:
                pause = min(2 * pause, POLL[1])
                time.sleep(pause)

    def wait(self, number: int, seconds: float, least: int = 1) -> None:
        """Wait until ``number`` clients are there.

        Raises:
            FederationError: If they are not there in time; but ``least`` are enough where others are left out.
        """
        end = time.monotonic() + seconds
        again = time.monotonic() + RETRY
        self.refresh()
        while len(self.node_of) < number:
            if time.monotonic() > again:  # its operator may have mended what was wrong
                self.asked -= self.failed
                again += RETRY
            if time.monotonic() > end:
                if self.left_out and len(self.node_of) >= least:
                    return
                raise FederationError(
                    f"{len(self.node_of)} clients connected within {seconds:g} s, {number} are needed: "
                    f"{', '.join(sorted(self.node_of)) or 'none'}{self.complaints()}"
                )
            time.sleep(1.0)
            self.refresh()

    def settle(self, seconds: float, patience: float = 3.0) -> None:
        """Wait until nobody new has come for some seconds and all questions are answered, but not for longer."""
        end = time.monotonic() + seconds
        while True:
            before = set(self.node_of)
            time.sleep(min(patience, max(0.0, seconds)))
            self.refresh()
            if time.monotonic() > end or (set(self.node_of) <= before and not self.waiting):
                return

    def complaints(self) -> str:
        """Return who was left out and why, to end a sentence with."""
        return "".join(f"; without {who}: {why}" for who, why in list(self.left_out.items())[:5])

    def _online(self) -> dict[int, str]:
        """Return the connected nodes with the fingerprints of their keys."""
        if self.bindings.by == "name":
            return dict.fromkeys(self.grid.get_node_ids(), "")
        return {info.node_id: fingerprint(info.public_key) for info in self.grid.get_nodes()}

    def _recognise(self, node: int, key: str) -> bool:
        """Take a node that comes back for the one whose key it shows: it need not be asked again."""
        names = self.bindings.names(key) if key and self.bindings.by == "key" else []
        if not names or any(name not in self.descriptions for name in names):
            return False
        self.node_of |= dict.fromkeys(names, node)
        return True

    def _hear(self, node: int, reply: Message, key: str) -> None:
        """Take what a node says of its clients."""
        try:
            found = read_descriptions(values_of(reply), self.bindings.per_key)
        except Unreachable as error:
            log.warning("node %s: %s", node, error)
            self.asked.discard(node)
        except Exception as error:  # whatever it sent: it must not end the run
            self.failed.add(node)
            self._leave_out(f"node {node}", reason_of(error))
        else:
            self.failed.discard(node)
            self.left_out.pop(f"node {node}", None)
            for description in found:
                self._welcome(description, node, key)

    def _welcome(self, description: Description, node: int, key: str) -> None:
        name = description.name
        refusal = self.bindings.refusal(name, key)
        if not refusal and self.node_of.get(name, node) != node:
            refusal = f"says it is {name}, who is at node {self.node_of[name]} already"
        if refusal:
            self._leave_out(f"node {node}", refusal)
            return
        self.bindings.bind(name, key)
        self.node_of[name] = node
        self.descriptions.setdefault(name, description)

    def _leave_out(self, who: str, reason: str) -> None:
        log.warning("%s: left out: %s", who, reason)
        self.left_out[who] = reason

    def _push(self, numbered: Sequence[tuple[int, Message]]) -> dict[str, int]:
        """Send messages; return the number of each by Flower's own."""
        # What a reply belongs to is known from Flower's own numbers, not from what its sender says.
        pushed = set(self.grid.push_messages([m for _, m in numbered])) if numbered else set()
        return {m.metadata.message_id: n for n, m in numbered if m.metadata.message_id in pushed}

    def _pull(self, numbers: Sequence[str]) -> Iterator[tuple[str, Message]]:
        """Yield the replies that are there, each with the number of what it answers.

        Flower takes an answer apart before anybody sees it, and one that it cannot take apart would bring down all
        that were fetched with it: so each is fetched alone, unless nodes are trusted.
        """
        asked = set(numbers)
        batches = [[number] for number in numbers] if self.bindings.by == "key" else [list(numbers)]
        for batch in batches:
            try:
                replies = list(self.grid.pull_messages(batch)) if batch else []
            except (httpx.HTTPError, OSError):
                raise
            except Exception as error:
                if len(batch) > 1:
                    raise
                yield batch[0], _unreadable(error)
                asked.discard(batch[0])
                continue
            for reply in replies:
                number = reply.metadata.reply_to_message_id
                if number in asked:
                    asked.discard(number)
                    yield number, reply


class Unreachable(PayloadError):  # noqa: N818  # what is wrong is the network
    """Flower's word that a node could not be reached: it may be asked again."""


def message(values: Values, node: int, kind: str) -> Message:
    """Return a message to a node.

    Flower numbers messages by a digest of their content, and takes a reply from whoever knows the number: what
    nobody else can guess makes sure that the node itself answers.
    """
    content: dict[str, Any] = {RECORD: ConfigRecord({**values, "nonce": secrets.token_hex(16)})}
    return Message(RecordDict(content), dst_node_id=node, message_type=kind)


def values_of(reply: Message) -> Values:
    """Return what a reply says.

    Raises:
        PayloadError: If it is an error, of Flower or of the node.
    """
    if reply.has_error():
        kind = PayloadError if reply.error.code == UNREADABLE else Unreachable
        reason = claims.clean(reply.error.reason, 200) or "no reason given"
        raise kind(f"node: {reason} (Flower's error {reply.error.code})")
    if not reply.has_content() or not isinstance(reply.content.get(RECORD), ConfigRecord):
        raise PayloadError("message: not an answer of protofed")
    values: Mapping[str, Any] = dict(reply.content[RECORD])
    if "error" in values:
        raise PayloadError(f"node: {claims.clean(values['error'])}")
    return dict(values)


def reason_of(error: Exception) -> str:
    """Return in one line why an answer is of no use."""
    if isinstance(error, PayloadError):
        return claims.clean(error)
    return f"an answer that cannot be read ({type(error).__name__}: {claims.clean(error, 120)})"


def _unreadable(error: Exception) -> Message:
    """Return what stands for an answer that Flower could not take apart."""
    reason = f"an answer that cannot be taken apart ({type(error).__name__}: {claims.clean(error, 100)})"
    return Message(Error(code=UNREADABLE, reason=reason), reply_to=message({}, 1, QUERY))
