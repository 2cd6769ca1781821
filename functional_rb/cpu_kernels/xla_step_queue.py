"""The kernels of what n-step returns are made of as XLA FFI handlers: what each hands on.

A module of their own, as handlers are compiled when theirs is imported.
"""

from __future__ import annotations

from typing import Any

from functional_rb.cpu_kernels import step_queue
from functional_rb.cpu_kernels.raw_memory import floats, read_only
from functional_rb.cpu_kernels.xla_frame import handler, length, operand, result, rows_of, source, target


@handler
def fold(call: Any) -> None:
    """Factors float32 [n], rewards float32 [m, n, w], real -> total [m, w], steps [m]."""
    discounts = read_only(floats(source(call, 0), length(operand(call, 0))))
    m = length(result(call, 1))
    w = length(result(call, 0)) // m
    step_queue.fold(source(call, 1), source(call, 2), target(call, 0), target(call, 1), discounts, m, w)


@handler
def plan_line(call: Any) -> None:
    """held, ended, ids [rows, words], mask (empty for none) -> window, real, complete, waiting, pending."""
    held, ended, ids, mask = source(call, 0), source(call, 1), source(call, 2), source(call, 3)
    window, real, complete = target(call, 0), target(call, 1), target(call, 2)
    rows = rows_of(result(call, 0))
    lanes, batch, words = length(operand(call, 0)), length(operand(call, 1)), length(operand(call, 2)) // rows
    n = length(result(call, 0)) // rows
    waiting, pending = target(call, 3), target(call, 4)
    step_queue.plan_line(held, ended, ids, mask, window, real, complete, waiting, pending, lanes, batch, words, n)
