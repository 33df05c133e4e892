"""A stream of server-sent events that goes on from another replica, with the bytes that the first would
have sent.

Two replicas write the same events for the same request with a seed, but for ids, times and signs of life.
So the events that the client has are compared with those of the other replica and left out; what follows
gets the ids and the time of the first.
"""

import json
import re

# What differs between answers to the same request, beside costs: ids, times and the numbers of events.
ID = re.compile(rb'"(id|item_id|call_id|response_id)":"([a-z]+[-_][0-9a-f]{8,}-[0-9a-f]+)"')
TIME = re.compile(rb'"(created|created_at)":\d+')
NUMBER = re.compile(rb'"sequence_number":\d+')
# What the engine did for an answer, which is not the answer.
COSTS = ("timings", "x_sws", "usage")


class Diverged(Exception):
    """The other replica's events are not those that the client has."""


def is_seeded(body: dict) -> bool:
    """True if every replica answers such a request with the same text."""
    return isinstance(body.get("seed"), int) or body.get("temperature") == 0 or body.get("top_k") == 1


def lacks_text(event: bytes) -> bool:
    """True for signs of life and for progress, of which there may be more or fewer."""
    lines = event.split(b"\n")
    if all(line.startswith(b":") for line in lines if line):
        return True
    if b"event: ping" in lines or b"event: response.in_progress" in lines:
        return True
    return b'"prompt_progress"' in event


def plain(event: bytes) -> bytes:
    """The event without what may differ."""
    head, _, data = event.partition(b"data: ")
    try:
        value = json.loads(NUMBER.sub(b'"sequence_number":0', TIME.sub(rb'"\1":0', ID.sub(rb'"\1":""', data))))
    except ValueError:
        return event
    drop(value)
    return head + json.dumps(value, sort_keys=True).encode()


def drop(value) -> None:
    """Removes costs from a value, however deep."""
    if isinstance(value, dict):
        for name in COSTS:
            value.pop(name, None)
        value = list(value.values())
    for each in value if isinstance(value, list) else []:
        drop(each)


class Relay:
    """The events of a stream, from as many replicas as it takes."""

    def __init__(self):
        self.sent = []
        self.ids = []
        self.time = None
        self.number = -1
        self.begin()

    def begin(self) -> None:
        """Starts with the first event of another replica."""
        self.rest = b""
        self.at = 0
        self.others = []

    def take(self, piece: bytes) -> bytes:
        """Takes a piece of a replica's answer, and returns what the client is to get."""
        *events, self.rest = (self.rest + piece).split(b"\n\n")
        return b"".join(self.event(event) for event in events)

    def event(self, event: bytes) -> bytes:
        if lacks_text(event):
            # Only at the end, where the client is.
            return self.renamed(event) + b"\n\n" if self.at == len(self.sent) else b""
        known = self.at < len(self.sent)
        if known and self.sent[self.at] != plain(event):
            raise Diverged
        renamed = self.renamed(event)
        self.at += 1
        if known:
            return b""
        self.sent.append(plain(event))
        return renamed + b"\n\n"

    def renamed(self, event: bytes) -> bytes:
        """The event with the ids and the time of the first replica, and the client's next number."""
        event = ID.sub(lambda found: b'"%s":"%s"' % (found[1], self.id(found[2])), event)
        for found in TIME.finditer(event) if self.time is None else ():
            self.time = found[0].partition(b":")[2]
        event = TIME.sub(lambda found: b'"%s":%s' % (found[1], self.time), event)
        return NUMBER.sub(self.numbered, event)

    def id(self, other: bytes) -> bytes:
        if other not in self.others:
            self.others.append(other)
        at = self.others.index(other)
        if at == len(self.ids):
            self.ids.append(other)
        return self.ids[at]

    def numbered(self, found) -> bytes:
        if self.at == len(self.sent):
            self.number += 1
        return b'"sequence_number":%d' % self.number
