"""Generation: replies to prompts, token by token, over any `TextOps`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from functional_rb.base.arrays import ArrayLike, BackendArray
from functional_rb.ops.protocol import Array, TextOps
from functional_rb.text.arguments import rows_of, whole
from functional_rb.text.computing import Computing, computed
from functional_rb.text.laws import Law, choose, log_prob_slopes, log_probs_of

# The position of what is no token.
PADDING: Final = -1
# What a model remembers of the tokens before: any nest of arrays, or None.
Cache: TypeAlias = Any


class Model(NamedTuple):
    """A model with its parameters; both functions take (cache, ids int32 [B, T], positions int32 [B, T])."""

    step: Callable[[Cache, Array, Array], tuple[Array, Cache]]  # gives (logits [B, T, V], cache)
    prefill: Callable[[Cache, Array, Array], Cache]  # gives the cache alone


class Settings(NamedTuple):
    """What is static about generation."""

    n: int  # the number of tokens of a reply at most
    replies: int  # how many of each prompt
    at_once: int  # how many of each prompt are generated at a time
    eos: tuple[int, ...]  # the tokens that end a reply
    pad: int  # what stands where there is no token
    stops: bool = True  # whether to look at each token if all replies have ended


class Joined(NamedTuple):
    """Prompts and their replies, N rows of S = L + n places: the prompt from place 0 on, then the reply, then padding.

    Attributes:
        ids: int32 [N, S].
        mask: bool [N, S], where tokens are.
        reply: bool [N, S], which of these are the reply's.
    """

    ids: BackendArray
    mask: BackendArray
    reply: BackendArray


class Generation(NamedTuple):
    """Replies to B prompts, r of each: N = B * r rows, reply j to prompt b in row b * r + j.

    Attributes:
        tokens: int32 [N, n], the replies, and `pad` behind them.
        mask: bool [N, n], which of these are tokens of the reply; the eos that ends it is one.
        lengths: int32 [N], how many.
        terminated: bool [N], whether the reply ended by an eos.
        truncated: bool [N], whether it was cut off after n tokens without one.
        log_probs: float32 [N, n], of each token by the model, as its logits are, before any law; 0 behind the reply.
        law_log_probs: float32 [N, n], by the law that it was drawn from; 0 behind the reply, and at temperature 0.
        rejected: bool [N], whether it ended before a token that could not be drawn, as the logits were NaN, infinite or
            all minus infinity. Outside of compiled programs that is an error.
    """

    tokens: BackendArray
    mask: BackendArray
    lengths: BackendArray
    terminated: BackendArray
    truncated: BackendArray
    log_probs: BackendArray
    law_log_probs: BackendArray
    rejected: BackendArray

    def join(self, prompts: ArrayLike, mask: ArrayLike = None, pad: int = 0) -> Joined:
        """Prompts and these replies to them as rows without gaps: the prompt, then the reply, then padding.

        Args:
            prompts: integers [B, L], as for `generate`.
            mask: [B, L], which are tokens of the prompts; all if None.
            pad: what stands behind the replies.

        Returns:
            N rows of L + n places.

        Raises:
            TypeError: for arrays of another dtype, naming them.
            ValueError: for shapes that do not fit, and for another number of prompts than these are replies to.

        Example:
            >>> params = rb.from_dlpack(np.zeros((4, 4), np.float32), copy=True)
            >>> prompts, mask = np.array([[0, 1], [2, 3]], np.int32), np.array([[False, True], [True, True]])
            >>> def step(params, cache, ids, positions):
            ...     return params[ids], None
            >>> greedy = frb.text.Decoding(2, temperature=0)
            >>> made = rb.text.generate(step, params, prompts, rb.key(0), greedy, mask=mask)
            >>> rows = made.join(prompts, mask, pad=3)
            >>> rows.ids.tolist(), rows.reply.tolist()
            ([[1, 0, 0, 3], [2, 3, 0, 0]], [[False, True, True, False], [False, False, True, True]])
        """
        return computed(_joined, (*self, prompts, mask), self, prompts, mask, pad)


def model_of(ops: TextOps, step: Callable[..., object], params: object) -> Model:
    """A user's model with its parameters, whose logits are checked; and not asked for where it can do without."""

    def checked(cache: Cache, ids: Array, positions: Array) -> tuple[Array, Cache]:
        pair = ops.call(step, params, cache, ids, positions)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"step: expected a pair of logits and cache, got {type(pair).__name__}")
        shape = tuple(getattr(pair[0], "shape", ()))
        if len(shape) != 3 or shape[:2] != tuple(ids.shape):
            rows, width = ids.shape
            raise ValueError(f"step: logits: expected shape [{rows}, {width}, vocabulary], got {list(shape)}")
        return pair

    def prefill(cache: object, ids: Array, positions: Array) -> object:
        if hasattr(step, "prefill"):
            return ops.call(step.prefill, params, cache, ids, positions)
        return checked(cache, ids, positions)[1]

    return Model(checked, prefill)


def positions_of(ops: TextOps, mask: Array) -> Array:
    """The position of each token among those of its row, int32 [B, L]; `PADDING` where there is none."""
    return ops.where(mask, ops.cumsum(ops.cast(mask, "int32")) - 1, _filled(ops, mask, PADDING))


def _filled(ops: TextOps, like: Array, value: int) -> Array:
    return ops.full_like(ops.cast(like, "int32"), value)


def _is_any(ops: TextOps, tokens: Array, among: tuple[int, ...]) -> Array:
    is_among = tokens != tokens  # False everywhere
    for token in among:
        is_among = is_among | (tokens == token)
    return is_among


def without_cache(ops: TextOps, model: Model, room: int) -> Model:
    """A model that has no cache as one that has, with room for so many tokens of a row.

    What it remembers are all tokens, which the model is asked about anew, with None for a cache.
    """

    # seen: all tokens so far; places: their positions; size: how many columns of both are used.
    def prefill(memory: tuple[Array, Array, Array], ids: Array, positions: Array) -> tuple[Array, Array, Array]:
        seen, places, size = memory
        rows, width = ids.shape
        columns = ops.arange(width, like=ids) + size
        at = ops.arange(rows, like=ids)[:, None] * room + columns[None]
        return ops.set_flat(seen, at, ids), ops.set_flat(places, at, positions), size + width

    def step(
        memory: tuple[Array, Array, Array], ids: Array, positions: Array
    ) -> tuple[Array, tuple[Array, Array, Array]]:
        seen, places, size = prefill(memory, ids, positions)
        logits, _ = model.step(None, seen, places)
        columns = ops.arange(ids.shape[1], like=ids) + memory[2]
        return ops.moveaxis(ops.take(ops.moveaxis(logits, 1, 0), columns), 0, 1), (seen, places, size)

    return Model(step, prefill)


def prepared(
    ops: TextOps, model: Model, cache: Callable[[int, int], object] | None, prompts: Array, n: int
) -> tuple[Model, Cache]:
    """A model with an empty cache that has room for prompts int32 [B, L] and n tokens more of each."""
    room = prompts.shape[1] + n
    if cache is None:
        # Zeros of the prompts' own device, rather than new ones.
        none = ops.arange(room, like=prompts) * 0
        empty = prompts[:, :1] * 0 + none[None]
        return without_cache(ops, model, room), (empty, empty + PADDING, none[0])
    return model, cache(prompts.shape[0], room)


def generate(
    ops: TextOps,
    model: Model,
    cache: object,  # before the first token, with room for L + n of each of B rows
    copied: Callable[[object, BackendArray], object],  # makes a cache of rows of another, in memory of its own
    prompts: Array,  # int32 [B, L]
    mask: Array,  # bool [B, L], which are tokens; one of each row at least
    bits: Array,  # int32 [B, r, n, 2], uniform in [0, 2^31)
    law: Law,
    settings: Settings,
) -> Generation:
    """Replies to prompts.

    All tokens of the prompts but the last of each go through the model at once; what it says of them is not used, and
    where it has a `prefill`, or a compiler sees to it, it does not compute their logits. The last ones are the first
    tokens that go through it one by one.
    """
    batch, width = prompts.shape
    n, k = settings.n, settings.at_once
    turns = settings.replies // k
    # The last token of each prompt, and the others, which the model only has to remember.
    places = ops.arange(width, like=prompts)[None] + _filled(ops, mask, 0)
    last = ops.largest(ops.where(mask, places, _filled(ops, mask, 0)))
    first = ops.take_along(prompts, last[:, None])[:, 0]
    before = mask & (places != last[:, None])
    if width > 1:
        ids = ops.where(before, prompts, _filled(ops, mask, settings.pad))
        cache = model.prefill(cache, ids, ops.where(before, positions_of(ops, mask), _filled(ops, mask, PADDING)))

    # Replies go on from there, k of each prompt at a time.
    rows = ops.arange(batch * k, like=prompts) // k
    token, position = ops.take(first, rows), ops.take(ops.total(mask), rows) - 1
    # [B, r, n, 2] to [turns, n, B * k, 2]: what is needed at a time side by side.
    bits = ops.moveaxis(ops.moveaxis(bits.reshape(batch, turns, k, n, 2), 1, 0), 3, 1).reshape(turns, n, batch * k, 2)
    if turns == 1:
        copy = cache if k == 1 else copied(cache, rows)
        decoded = tuple(x[None] for x in _decoded(ops, model, copy, token, position, bits[0], law, settings))
    else:

        def turn(i: Array, decoded: tuple[Array, ...]) -> tuple[Array, ...]:
            new = _decoded(ops, model, copied(cache, rows), token, position, bits[i], law, settings)
            return tuple(ops.set_at(x, i, y) for x, y in zip(decoded, new, strict=True))

        decoded = ops.repeat(turns, turn, _blank(ops, bits, settings.pad))
    # [turns, n, B * k] to [N, n].
    tokens, live, log_probs, law_log_probs = (
        ops.moveaxis(ops.moveaxis(x.reshape(turns, n, batch, k), 1, 3), 0, 1).reshape(-1, n) for x in decoded
    )
    # A reply that neither ended nor has all n tokens stopped where its logits were no law to draw by.
    terminated = ops.total(live & _is_any(ops, tokens, settings.eos)) > 0
    lengths = ops.total(live)
    rejected = ~terminated & (lengths < n)
    return Generation(tokens, live, lengths, terminated, ~terminated & ~rejected, log_probs, law_log_probs, rejected)


def _decoded(
    ops: TextOps, model: Model, cache: Cache, token: Array, position: Array, bits: Array, law: Law, settings: Settings
) -> tuple[Array, ...]:
    """One reply after each token int32 [M] at its position, by bits int32 [n, M, 2].

    Returns tokens, mask, log-probabilities by the model and by the law, each [n, M].
    """
    n, rows = bits.shape[:2]
    pad = ops.full_like(token, settings.pad)

    def unfinished(i: Array, cache: object, token: Array, position: Array, ended: Array, decoded: object) -> Array:
        return (i < n) & (ops.count(ended) < rows)

    def further(
        i: Array, cache: Cache, token: Array, position: Array, ended: Array, decoded: tuple[Array, ...]
    ) -> tuple[Array, Cache, Array, Array, Array, tuple[Array, ...]]:
        logits, cache = model.step(cache, token[:, None], position[:, None])
        chosen = choose(ops, logits[:, 0], bits[i], law)
        # Rows that have ended go through the model too, as shapes are fixed; what it says of them is left out.
        live, nothing = ~ended & chosen.drawn, ops.full_like(chosen.log_prob, 0)
        token = ops.where(live, chosen.token, pad)
        new = token, live, *(ops.where(live, x, nothing) for x in (chosen.log_prob, chosen.law_log_prob))
        decoded = tuple(ops.set_at(x, i, y) for x, y in zip(decoded, new, strict=True))
        return i + 1, cache, token, position + 1, ~live | _is_any(ops, token, settings.eos), decoded

    carry = (cache, token, position, token != token, _blank(ops, bits, settings.pad))
    # torch.compile cannot trace a loop that ends by what was computed, so it makes all n steps.
    if settings.stops:
        return ops.while_loop(unfinished, further, (ops.arange(1, like=token)[0], *carry))[5]
    return ops.repeat(n, lambda i, carry: further(i, *carry)[1:], carry)[4]


def _blank(ops: TextOps, bits: Array, pad: int) -> tuple[Array, ...]:
    # What stands in place of tokens [...] that were never drawn, for bits [..., 2].
    none = bits[..., 0] * 0
    return none + pad, ops.cast(none, "bool"), ops.cast(none, "float32"), ops.cast(none, "float32")


def _joined(lib: Computing, generation: Generation, prompts: ArrayLike, mask: ArrayLike, pad: int) -> Joined:
    who = "Generation.join"
    ids, there = rows_of(lib, prompts, mask, "prompts", who)
    tokens, live = rows_of(lib, generation.tokens, generation.mask, "tokens", who)
    count, rows = int(ids.shape[0]), int(tokens.shape[0])
    if rows % count:
        raise ValueError(f"{who}: expected a multiple of {count} replies, as there are prompts, got {rows}")
    joined: Joined = lib.run(join, ids, there, tokens, live, static=(whole(pad, "pad", 0, who),))
    return joined


def join(ops: TextOps, prompts: Array, mask: Array, tokens: Array, live: Array, pad: int) -> Joined:
    """Prompts int32 [B, L] and replies int32 [N, n], both with masks of their tokens, as rows without gaps."""
    (batch, width), (rows, n) = prompts.shape, tokens.shape
    of = ops.arange(rows, like=prompts) // (rows // batch)
    order = ops.argsort(ops.cast(~mask, "int32"))  # tokens first, as they come
    prompt, length = ops.take(ops.take_along(prompts, order), of), ops.take(ops.total(mask), of)[:, None]
    place = ops.arange(width + n, like=prompts)[None] + length * 0
    of_reply = ops.minimum(place - length, ops.full_like(place, n - 1)) + width
    ids = ops.take_along(ops.concat([prompt, tokens], 1), ops.where(place < length, place, of_reply))
    end = length + ops.total(live)[:, None]
    return Joined(ops.where(place < end, ids, ops.full_like(ids, pad)), place < end, (place >= length) & (place < end))


def log_probs(
    ops: TextOps,
    model: Model,
    ids: Array,
    mask: Array,
    rows_at_once: int | None = None,
    tokens_at_once: int | None = None,
    cache: Callable[[int, int], object] | None = None,
) -> BackendArray:
    """The log-probability float32 [N, S] of each token by those before it; 0 of a row's first one, and of padding.

    The model is asked about so many rows, and so many tokens of them, at a time, None for all; for some tokens it needs
    the cache that `cache` makes, and gets None else.
    """
    rows, width = ids.shape
    # The place of the token before each place; between the two there may be padding.
    place = ops.arange(width, like=ids)[None] + _filled(ops, mask, 0)
    none = _filled(ops, mask[:, :1], -1)
    newest = ops.cummax(ops.where(mask, place, _filled(ops, mask, -1)))
    before = ops.concat([none, newest[:, :-1]], 1)
    known = mask & (before >= 0)
    # The token that follows each place; a column more is for tokens that follow none.
    row = ops.arange(rows, like=ids)[:, None] * (width + 1)
    at = row + ops.where(known, before, _filled(ops, mask, width))
    empty = ops.concat([ids * 0, none * 0], 1)
    following = ops.set_flat(empty, at, ops.where(known, ids, ids * 0))[:, :-1]

    def of_rows(_: None, *arrays: Array) -> tuple[None, Array]:
        if tokens_at_once is None or cache is None:
            return None, _of_following(ops, model, None, *arrays)[1]
        return None, _token_by_token(ops, model, cache, tokens_at_once, *arrays)

    arrays = ids, positions_of(ops, mask), following
    if rows_at_once is None:
        after = of_rows(None, *arrays)[1]
    else:
        turns, size = _shares(rows, rows_at_once)
        row = ops.arange(turns * size, like=ids)
        row = ops.minimum(row, ops.full_like(row, rows - 1))  # the last one again, where rows are missing
        _, after = ops.in_turn(of_rows, None, *(ops.take(x, row).reshape(turns, size, width) for x in arrays))
        after = after.reshape(turns * size, width)[:rows]
    of_tokens = ops.take_along(after, ops.maximum(before, ids * 0))
    return ops.where(known, of_tokens, ops.full_like(of_tokens, 0))


def _of_following(
    ops: TextOps, model: Model, cache: object, ids: Array, positions: Array, following: Array
) -> tuple[Cache, Array]:
    # The cache, and the log-probability of what follows each token, float32 in their shape.
    logits, cache = model.step(cache, ids, positions)
    values, slopes = functools.partial(log_probs_of, ops), functools.partial(log_prob_slopes, ops)
    return cache, ops.by_places(values, slopes, logits, following)


def _token_by_token(
    ops: TextOps,
    model: Model,
    cache: Callable[[int, int], object],
    at_once: int,
    ids: Array,
    positions: Array,
    following: Array,
) -> Array:
    # The log-probabilities float32 [R, S] of rows, computed for so many tokens at a time.
    # The model gets them with their padding in front, so that there is none between what it remembers of a row.
    rows, width = ids.shape
    turns, size = _shares(width, at_once)
    order = ops.argsort(ops.cast(positions >= 0, "int32"))
    missing = ops.arange(turns * size - width, like=ids)[None] * 0 + ids[:, :1] * 0

    def parts(x: Array, padding: int) -> Array:
        behind = ops.take_along(x, order)
        return ops.moveaxis(ops.concat([missing + padding, behind], 1).reshape(rows, turns, size), 1, 0)

    _, log_probs = ops.in_turn(
        lambda cache, *arrays: _of_following(ops, model, cache, *arrays),
        cache(rows, turns * size),
        *(parts(x, padding) for x, padding in ((ids, 0), (positions, PADDING), (following, 0))),
    )
    log_probs = ops.moveaxis(log_probs, 0, 1).reshape(rows, turns * size)[:, turns * size - width :]
    return ops.take_along(log_probs, ops.argsort(order))


def _shares(count: int, at_once: int) -> tuple[int, int]:
    # The number of turns, and how much is done in each: all alike, as a compiled loop wants it.
    turns = -(-count // at_once)
    return turns, -(-count // turns)
