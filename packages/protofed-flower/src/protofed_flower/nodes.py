"""The nodes of a network: connections, the clients of each node, and the exchange of messages.

Nothing that a node sends is trusted or can end a run: unreadable answers are logged, and their nodes are left out.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeVar

import httpx
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from protofed import __version__
from protofed.errors import FederationError, PayloadError
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import take
from protofed_flower.identity import Bindings, fingerprint
from protofed_flower.ledger import Receipts
from protofed_flower.messages import Description, Values, read_descriptions
from protofed_flower.refusals import sentence_of

RECORD = "protofed"
QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"
SECURE = "query.secure"
POLL = 0.01, 0.3  #: Shortest and longest seconds between two polls for replies; the pause grows while none arrive
RETRY = 30.0  #: Seconds until a node is asked again after an unusable answer, while too few clients are connected
PAUSE = 3.0  #: Seconds without a new client that end the wait for more
UNREADABLE = 700  #: Error code for an answer that Flower could not parse
CLOCK = 600.0  #: Seconds by which a node's clock may differ, the time of the answer included
log = logging.getLogger("protofed")
T = TypeVar("T")


@dataclass
class Nodes:
    """The connected nodes and their clients."""

    grid: Grid
    config: str  #: What nodes are sent of the experiment
    expected: str = "{}"  #: The names that are expected in their data
    bindings: Bindings = field(default_factory=Bindings)  #: The key of each client's name
    node_of: dict[str, int] = field(default_factory=dict)  #: Of each connected client
    descriptions: dict[str, Description] = field(default_factory=dict)  #: In order of arrival
    left_out: dict[str, str] = field(default_factory=dict)  #: Reasons by node or client
    failed: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)  #: Connected nodes that need not be asked for their clients
    waiting: dict[str, int] = field(default_factory=dict)  #: Of each open question, by Flower's message number
    members: Collection[str] | None = None  #: Clients of the run; None before it has begun
    receipts: Receipts | None = None  #: Record of all answers; None for none
    #: Called with each node or client that is left out, and the reason; None until the run has begun
    excluded: Callable[[str, str], None] | None = None

    def refresh(self) -> None:
        """Ask new nodes for their clients, process the answers that have arrived, and forget nodes that have left.

        This does not wait for answers, so a silent node does not delay the others.
        """
        online = self._online()
        self.asked &= online.keys()
        self.waiting = {number: node for number, node in self.waiting.items() if node in online}
        self.node_of = {name: node for name, node in self.node_of.items() if node in online}
        new = sorted(online.keys() - self.asked)
        unknown = [node for node in new if not self._recognise(node, online[node])]
        self.asked |= set(new)
        if unknown:
            question = {"config": self.config, "expected": self.expected}
            questions = [(node, message(question, node, QUERY)) for node in unknown]
            self.waiting |= self._push(questions)
        for key, reply in self._pull(list(self.waiting)):
            node = self.waiting.pop(key)
            self._hear(node, reply, online[node])

    def exchange(
        self, messages: Iterable[tuple[T, Message]], seconds: float, at_once: int = sys.maxsize
    ) -> Iterator[tuple[T, Message]]:
        """Send messages and yield replies as they arrive.

        Args:
            messages: At most one per client, each with what its reply is to be yielded with.
            seconds: 0 for no limit; Flower answers for nodes that are gone.
            at_once: Most messages without a reply.
        """
        numbered = iter(messages)
        waiting: dict[str, T] = {}
        end = time.monotonic() + seconds if seconds else float("inf")
        pause = POLL[0]
        while True:
            waiting.update(self._push(list(itertools.islice(numbered, at_once - len(waiting)))))
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

    def ask(self, requests: Mapping[str, Values], kind: str, seconds: float) -> Iterator[tuple[str, Values | str]]:
        """Ask nodes about one client each; yield names with answers, or with the reason why there is none."""
        names = [name for name in requests if name in self.node_of]
        waiting = dict.fromkeys(requests, "not connected") | dict.fromkeys(names, "no answer in time")
        sent = (message(requests[name], self.node_of[name], kind) for name in names)
        for number, reply in self.exchange(enumerate(sent), seconds):
            name = names[number]
            del waiting[name]
            try:
                answer: Values | str = self.read(reply, name)
            except Exception as error:  # no answer of a node may end the run
                answer = reason_of(error)
            yield name, answer
        yield from waiting.items()

    def read(self, reply: Message, client: str, number: int = 0) -> Values:
        """Return the contents of a reply's part about a client, which is recorded first; see :func:`values_of`."""
        return values_of(reply, number, self._receive(self.node_of.get(client, 0), client))

    def _receive(self, node: int, client: str) -> Callable[[Values], None] | None:
        """Return what keeps a record of an answer, if this is asked for."""
        receipts = self.receipts
        return None if receipts is None else lambda values: receipts.add(node, client, values)

    def wait(self, number: int, seconds: float, least: int = 1) -> None:
        """Wait until ``number`` clients are connected; too few are a FederationError.

        Args:
            least: Suffices after that time if nodes or clients were left out.
        """
        end = time.monotonic() + seconds
        again = time.monotonic() + RETRY
        self.refresh()
        while len(self.node_of) < number:
            if time.monotonic() > again:  # their operators may have fixed the problem
                self.asked -= self.failed
                again += RETRY
            if time.monotonic() > end:
                if self.left_out and len(self.node_of) >= least:
                    return
                raise FederationError(
                    f"{len(self.node_of)} clients connected within {seconds:g} s, {number} are needed: "
                    f"{', '.join(sorted(self.node_of)) or 'none'}"
                    + "".join(f"; without {who}: {why}" for who, why in list(self.left_out.items())[:5])
                )
            time.sleep(1.0)
            self.refresh()

    def settle(self, seconds: float) -> None:
        """Wait until no new client has arrived for a while and all questions are answered."""
        end = time.monotonic() + seconds
        while True:
            before = set(self.node_of)
            time.sleep(min(PAUSE, max(0.0, seconds)))
            self.refresh()
            if time.monotonic() > end or (set(self.node_of) <= before and not self.waiting):
                return

    def _online(self) -> dict[int, str]:
        """Return the connected nodes with the fingerprints of their keys."""
        if self.bindings.simulated:
            return dict.fromkeys(self.grid.get_node_ids(), "")
        return {info.node_id: fingerprint(info.public_key) for info in self.grid.get_nodes()}

    def _recognise(self, node: int, key: str) -> bool:
        """Assign a node the clients bound to its key, if all are known; return whether they are."""
        names = self.bindings.names(key) if key and not self.bindings.simulated else []
        if not names or any(name not in self.descriptions for name in names):
            return False
        self.node_of |= dict.fromkeys(names, node)
        return True

    def _hear(self, node: int, reply: Message, key: str) -> None:
        """Process a node's answer to the question for its clients."""
        try:
            values = values_of(reply, 0, self._receive(node, ", ".join(self.bindings.names(key) if key else [])))
            self._check_node(node, values)
            descriptions = read_descriptions(values, limits.CLIENTS if self.bindings.simulated else 1)
        except Unreachable as error:
            log.warning("node %s: %s", node, error)
            self.asked.discard(node)
        except Exception as error:  # no answer of a node may end the run
            self.failed.add(node)
            self._leave_out(f"node {node}", reason_of(error))
        else:
            self.failed.discard(node)
            self.left_out.pop(f"node {node}", None)
            for description in descriptions:
                self._welcome(description, node, key)

    def _check_node(self, node: int, values: Values) -> None:
        """Refuse a node that reads the run's configuration as another one; warn of a wrong clock."""
        if (theirs := values.get("config")) != (own := sha256(self.config.encode()).hexdigest()):
            theirs = claims.clean(str(theirs)[:12], 12)
            raise PayloadError(
                f"config: the node reads another configuration (hash {theirs}, here {own[:12]}): "
                "its installation of protofed was changed: install the same one"
            )
        ahead = take(values, "time", float) - time.time()
        if not abs(ahead) < CLOCK:
            what = f"{abs(ahead) / 3600:.3g} h {'ahead of' if ahead > 0 else 'behind'} this server's"
            log.warning("node %s: its clock is %s: correct one of them, or its ledger has wrong times", node, what)

    def _welcome(self, description: Description, node: int, key: str) -> None:
        name = description.name
        refusal = self.bindings.refusal(name, key)
        if not refusal and self.node_of.get(name, node) != node:
            refusal = f"says it is {name}, which is already at node {self.node_of[name]}"
        if refusal:
            self._leave_out(f"node {node}", refusal)
            return
        if self.members is not None and name not in self.members:
            late = "came after the run had begun: it can take part in the next one"
            self._leave_out(name, self.left_out.get(name, late))
            return
        self.bindings.bind(name, key)
        self.node_of[name] = node
        self.descriptions.setdefault(name, description)

    def _leave_out(self, who: str, reason: str) -> None:
        if self.left_out.get(who) == reason:
            return
        log.warning("%s: left out: %s", who, reason)
        self.left_out[who] = reason
        if self.excluded is not None:
            self.excluded(who, reason)

    def _push(self, numbered: Sequence[tuple[T, Message]]) -> dict[str, T]:
        """Send messages; return what each came with, by Flower's message number."""
        # A reply is matched to its request by Flower's message number, never by a claim of the sender.
        pushed = set(self.grid.push_messages([m for _, m in numbered])) if numbered else set()
        return {m.metadata.message_id: n for n, m in numbered if m.metadata.message_id in pushed}

    def _pull(self, numbers: Sequence[str]) -> Iterator[tuple[str, Message]]:
        """Yield the replies that have arrived, each with the number of the message that it answers.

        Flower parses replies as it fetches them, and one that it cannot parse would fail all those fetched with it.
        Each reply is therefore fetched separately, except in a simulation.
        """
        asked = set(numbers)
        batches = [list(numbers)] if self.bindings.simulated else [[number] for number in numbers]
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


class Unreachable(PayloadError):  # noqa: N818  # the fault is in the network
    """Raised if Flower reports that a node could not be reached; the node may be asked again."""


def part(number: int) -> str:
    """Return the name of a record of a message that holds several: those of a node's visits, from 0."""
    return f"{RECORD}.{number}" if number else RECORD


def message(values: Values | Sequence[Values], node: int, kind: str) -> Message:
    """Return a message to a node.

    Flower numbers messages by a digest of their content and accepts a reply from any node that knows the number. A
    random nonce in the content makes the number impossible to guess, so only the addressed node can reply.

    Args:
        values: Of the message, or of each of its parts.
        kind: ``query``, ``query.secure``, ``train`` or ``evaluate``.
    """
    parts = [values] if isinstance(values, Mapping) else values
    nonce = {"nonce": secrets.token_hex(16), "version": __version__}
    content: dict[str, Any] = {part(n): ConfigRecord({**own, **nonce}) for n, own in enumerate(parts)}
    return Message(RecordDict(content), dst_node_id=node, message_type=kind)


def values_of(reply: Message, number: int = 0, receive: Callable[[Values], None] | None = None) -> Values:
    """Return the contents of a reply's part, from 0.

    Args:
        receive: Called with what has arrived, before it is looked at.

    Raises:
        PayloadError: If the reply reports an error of Flower or of the node, or is of another version.
    """
    if reply.has_error():
        kind = PayloadError if reply.error.code == UNREADABLE else Unreachable
        reason = claims.clean(reply.error.reason, 200) or "no reason given"
        raise kind(f"node: {reason} (Flower's error {reply.error.code})")
    if not reply.has_content() or not isinstance(reply.content.get(part(number)), ConfigRecord):
        raise PayloadError("message: not an answer of protofed")
    values: Values = dict(reply.content[part(number)])
    if receive is not None:
        receive(values)
    if (theirs := values.get("version")) != __version__:
        theirs = claims.clean(theirs or "of an older version", 40)
        raise PayloadError(f"node: runs protofed {theirs}, this server {__version__}: install one version on both")
    if "error" in values:
        raise PayloadError(f"node: {sentence_of(values)}")
    return values


def reason_of(error: Exception) -> str:
    """Return in one line why an answer is unusable."""
    if isinstance(error, PayloadError):
        return claims.clean(error)
    return f"an answer that cannot be read ({type(error).__name__}: {claims.clean(error, 120)})"


def _unreadable(error: Exception) -> Message:
    """Return an error message in place of an answer that Flower could not parse."""
    reason = f"an answer that cannot be parsed ({type(error).__name__}: {claims.clean(error, 100)})"
    return Message(Error(code=UNREADABLE, reason=reason), reply_to=message({}, 1, QUERY))
