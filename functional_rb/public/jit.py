"""What is the same in both backends' `jit`: its documentation, and how it is a decorator with and without options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def jit(wrap: Callable[[Callable[P, R]], object], function: Callable[P, R] | None) -> object:
    """A function of states that consumes those which it returns, so that it writes in place.

    On JAX the function is compiled: it is `jax.jit`, with donation. The states among the arguments are donated, also
    those inside of dicts, tuples, dataclasses and other pytrees, and nothing else is: parameters beside a buffer stay
    as they are. On torch states are written in place as they are, and nothing is compiled; but a state is consumed as
    on JAX, so that a program for one backend runs on the other. (`torch.compile` is for you to use, with `add_`,
    `sample_` and `update_`.)

    Using a consumed state again raises `RuntimeError`: go on with the one that is returned. A state that the function
    does not return is not consumed. (Of several states of one spec all must be returned, or none is consumed. What is
    returned as it came costs nothing.)

    Args:
        function: of arrays, states and nests of these (dicts, lists, tuples, dataclasses; on JAX any pytree); left out
            for a decorator with options, `@rb.jit(...)`.
        options: those of `jax.jit`: static_argnums, static_argnames, in_shardings and so on. What donate_argnums and
            donate_argnames name is donated as well. On torch the options about tracing have no effect, and the others
            are refused: static_argnums, static_argnames, donate_argnums, donate_argnames, inline and keep_unused are
            those that may be given.

    Returns:
        The function; on JAX one like that of `jax.jit`, with `lower`, `trace`, `eval_shape` and `clear_cache`, which
        donates nothing under another transformation (`vmap`, `grad`, `jit`): put `rb.jit` outermost.

    Raises:
        TypeError: for what is no function; on torch for an option about JAX's devices or compiler; on JAX, when it is
            called, for a state on the host, or of a shared buffer, which cannot be traced.

    Example:
        >>> spec = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8)
        >>> @rb.jit
        ... def step(run, key):
        ...     state = rb.add(run["buffer"], {"x": run["w"]})
        ...     state, sample = rb.sample(state, key, 4)
        ...     return {"buffer": state, "w": run["w"] + sample.items["x"].sum()}
        >>> run = {"buffer": rb.init(spec), "w": np.float32(1.0)}
        >>> for key in rb.split(rb.key(0), 3):
        ...     run = step(run, key)
        >>> int(rb.size(run["buffer"]))
        3
    """
    if function is None:
        return functools.partial(jit, wrap)
    if not callable(function):
        raise TypeError(f"jit: expected a function, got {type(function).__name__}; write rb.jit(step), or @rb.jit")
    return wrap(function)
