"""All-reduce by recursive halving and doubling between processes (§4).

Reduce-scatter by recursive halving: in round r each rank gives the half that it will
not own to the rank 2^r away and adds the half that it gets. All-gather by recursive
doubling: the same way back. 2 log2(p) messages one after another, where a ring has
2 (p - 1), for the same 2 (p - 1) / p of the buffer that each rank sends.

Near ranks exchange the large halves, far ranks the small ones.

Where latency is all that counts, fewer halvings do: a round that does not halve
exchanges what the two have whole, and needs no way back. Without any halving there are
log2(p) rounds, for log2(p) times the buffer.

Any p: it is cut into blocks of powers of two, the largest first (7 = 4 + 2 + 1). Each
block reduces alone; the smaller blocks are done sooner and, from the smallest up, hand
their sums to the next larger one, which costs no round; in the all-gather the same
back ("binary blocks", R. Rabenseifner, J. L. Traeff, EuroPVM/MPI 2004).
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_goyal import pair_messages

# Parts begin at multiples of this many elements: tf.slice then points into the tensor
# instead of copying (64 bytes, for the smallest dtype of 2 bytes).
_ALIGNMENT = 32

# A long buffer is reduced in segments, so that one is on its way while another is added
# up; shorter segments cost more in messages than they hide.
_SEGMENT_BYTES = 2 * 2**20
_MAX_SEGMENTS = 4

# Numbers of messages that a bucket takes up, between two ranks in one direction.
MESSAGES_PER_BUCKET = 2 * _MAX_SEGMENTS


class Message(NamedTuple):
    """A part of the buffer on its way.

    Attributes:
      round: messages of one round travel at the same time, each needs at most those of
        the rounds before.
      sender: a position in 0 .. p - 1.
      receiver: another.
      begin: the part's first element.
      end: one behind its last.
      summing: whether the receiver adds it to what it has (reduce-scatter), or takes
        it as the result (all-gather).
    """

    round: int
    sender: int
    receiver: int
    begin: int
    end: int
    summing: bool


class Plan(NamedTuple):
    """Who sends what to whom.

    Attributes:
      messages: each behind all those that it needs; none of them empty.
      owned: (begin, end) per position: where its sum is the final one when the
        reduce-scatter is over.
    """

    messages: tuple[Message, ...]
    owned: tuple[tuple[int, int], ...]


@functools.lru_cache(maxsize=256)
def plan(length: int, processes: int, halvings: int | None = None) -> Plan:
    """The plan of one all-reduce.

    Args:
      length: of the buffer, in elements.
      processes: p, 1 or more.
      halvings: how many of the floor(log2(p)) rounds halve; None: all of them.

    >>> for message in plan(64, 2).messages:
    ...     print(message)
    Message(round=0, sender=0, receiver=1, begin=32, end=64, summing=True)
    Message(round=0, sender=1, receiver=0, begin=0, end=32, summing=True)
    Message(round=1, sender=0, receiver=1, begin=0, end=32, summing=False)
    Message(round=1, sender=1, receiver=0, begin=32, end=64, summing=False)
    """
    blocks = _blocks(processes)
    messages: list[Message] = []

    def add(number: int, sender: int, receiver: int, part: tuple[int, int], summing):
        if part[0] < part[1]:
            messages.append(Message(number, sender, receiver, *part, summing))

    def depth(size: int) -> int:
        """How many times a block of this size halves."""
        return _log2(size) if halvings is None else min(halvings, _log2(size))

    # Reduce-scatter, the smallest block first.
    for b, (first, size) in reversed(list(enumerate(blocks))):
        for r in range(_log2(size)):
            for i in range(size):
                other = i ^ 1 << r
                part = _part(length, other, min(r + 1, depth(size)))
                add(r, first + i, first + other, part, True)
        for smaller_first, smaller in blocks[b + 1 : b + 2]:
            for j in range(size):
                part = _part(length, j, depth(size))
                sender = smaller_first + j % smaller
                add(_log2(smaller), sender, first + j, part, True)

    # All-gather, the largest block first.
    gather = _log2(blocks[0][1])
    for b, (first, size) in enumerate(blocks):
        for smaller_first, smaller in blocks[b + 1 : b + 2]:
            for j in range(max(smaller, 1 << depth(size))):
                part = _part(length, j, depth(size))
                receiver = smaller_first + j % smaller
                add(gather + b, first + j, receiver, part, False)
        for r in reversed(range(depth(size))):
            number = gather + b + depth(size) - 1 - r
            for i in range(size):
                part = _part(length, i, r + 1)
                add(number, first + i, first + (i ^ 1 << r), part, False)

    largest = blocks[0][1]
    owned = [_part(length, i, depth(largest)) for i in range(largest)]
    return Plan(tuple(messages), (*owned, *[(0, 0)] * (processes - largest)))


def _log2(power: int) -> int:
    return power.bit_length() - 1


def _blocks(processes: int) -> list[tuple[int, int]]:
    """(first position, size) of each block, the largest first."""
    blocks, first = [], 0
    for size in (1 << r for r in reversed(range(processes.bit_length()))):
        if processes & size:
            blocks.append((first, size))
            first += size
    return blocks


def _part(length: int, i: int, halvings: int) -> tuple[int, int]:
    """What the i-th of any block still sums after some halvings: (begin, end).

    Its bit r says which half it keeps in round r.
    """
    index = 0
    for r in range(halvings):
        index = 2 * index + (i >> r & 1)

    def boundary(j: int) -> int:
        if j == 1 << halvings:
            return length
        return (j * length >> halvings) // _ALIGNMENT * _ALIGNMENT

    return boundary(index), boundary(index + 1)


def all_reduce(
    tensor: tf.Tensor,
    *,
    rank: int,
    ranks: Sequence[int],
    bucket: int,
    halvings: int | None = None,
    wire_dtype: tf.DType | None = None,
) -> tf.Tensor:
    """Sums a tensor over processes; the result has the same bits in each.

    Call it inside a `tf.function`, once per process, in each of `ranks`.

    Args:
      tensor: of one dimension and known length; float32, bfloat16, float16, float64,
        int32 or int64.
      rank: this process, one of `ranks`.
      ranks: the processes that take part, in the same order in each.
      bucket: which all-reduce this is: a number that stands for this length and dtype
        in the whole run, and of which one is under way at a time.
      halvings: see `plan`.
      wire_dtype: dtype of the messages. Sums are made in the dtype of `tensor`, rounded
        for each message, and rounded once more at the end, by those that own the part,
        so that nobody has other bits. None: that of `tensor`.

    Returns:
      The sum, of the shape and dtype of `tensor`.
    """
    length = tensor.shape[0]
    if len(ranks) == 1 or length == 0:
        return tensor
    wire_dtype = wire_dtype or tensor.dtype
    count = max(1, min(_MAX_SEGMENTS, length * wire_dtype.size // _SEGMENT_BYTES))
    ends = [i * length // count // _ALIGNMENT * _ALIGNMENT for i in range(count)]
    pieces: list[tf.Tensor] = []
    ties: list[tf.Tensor] = []
    with tf.device("CPU:0"):
        for s, (begin, end) in enumerate(itertools.pairwise([*ends, length])):
            more, sends = _reduce(
                tensor if count == 1 else tensor[begin:end],
                me=ranks.index(rank),
                ranks=ranks,
                first_message=MESSAGES_PER_BUCKET * bucket + 2 * s,
                name=f"bucket_{bucket}_segment_{s}",
                halvings=halvings,
                wire_dtype=wire_dtype,
            )
            pieces += more
            ties += sends
        with tf.control_dependencies(ties):
            total = pieces[0] if len(pieces) == 1 else tf.concat(pieces, 0)
            return tf.ensure_shape(tf.cast(total, tensor.dtype), tensor.shape)


def _reduce(
    tensor: tf.Tensor,
    *,
    me: int,
    ranks: Sequence[int],
    first_message: int,
    name: str,
    halvings: int | None,
    wire_dtype: tf.DType,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """One segment: the result in pieces, as they travelled, and the sends to tie."""
    messages, owned = plan(tensor.shape[0], len(ranks), halvings)
    ties: list[tf.Tensor] = []

    def keys(message: Message, end: str, other: int) -> dict[str, Any]:
        phase = "summing" if message.summing else "result"
        return {
            "sender": ranks[message.sender],
            "receiver": ranks[message.receiver],
            "message": first_message + message.summing,
            "name": f"{name}_{phase}_{end}_rank_{ranks[other]}",
        }

    def send(part: tf.Tensor, m: Message) -> tf.Operation:
        part = tf.cast(part, wire_dtype)
        ties.append(pair_messages.send(part, **keys(m, "to", m.receiver)))
        return ties[-1].op

    def receive(m: Message) -> tf.Tensor:
        return pair_messages.receive(
            [m.end - m.begin], wire_dtype, **keys(m, "from", m.sender)
        )

    # (begin, end, sum of what has come for it), each inside the one before.
    sums = [(0, tensor.shape[0], tensor)]

    def summed(begin: int, end: int) -> tf.Tensor:
        for first, last, held in reversed(sums):
            if (first, last) == (begin, end):
                return held
            if first <= begin and end <= last:
                return held[begin - first : end - first]
        raise AssertionError("the plan sends what its sender does not have")

    # begin -> result from there on, as it travels.
    results: dict[int, tf.Tensor] = {}

    mine = [m for m in messages if me in (m.sender, m.receiver)]
    summing = [m for m in mine if m.summing]
    for _, now in itertools.groupby(summing, lambda m: m.round):
        # What is sent is what there was before the round.
        now = sorted(now, key=lambda m: m.receiver == me)
        exchanged = {}
        for m in now:
            here = summed(m.begin, m.end)
            if m.sender == me:
                exchanged[m.receiver, m.begin, m.end] = send(here, m)
                continue
            more = tf.cast(receive(m), tensor.dtype)
            if sent := exchanged.get((m.sender, m.begin, m.end)):
                # Both sides make this sum, of the same two numbers, and both of them
                # rounded. The dependency keeps TensorFlow from joining it with the next
                # one to a sum in an order of its own, another one on the other side.
                here = tf.cast(tf.cast(here, wire_dtype), tensor.dtype)
                with tf.control_dependencies([sent]):
                    total = here + more
            else:
                total = here + more
            sums.append((m.begin, m.end, total))

    if owned[me][0] < owned[me][1]:
        results[owned[me][0]] = tf.cast(summed(*owned[me]), wire_dtype)
    for m in (m for m in mine if not m.summing):
        if m.sender == me:
            parts = [results[i] for i in sorted(results) if m.begin <= i < m.end]
            send(parts[0] if len(parts) == 1 else tf.concat(parts, 0), m)
        else:
            results[m.begin] = receive(m)
    return [results[i] for i in sorted(results)], ties
