"""Tic-tac-toe as a table of all its positions."""

from __future__ import annotations

import functools

import numpy as np

from tests.trees.list_tree import Game

LINES = np.array([(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)])


class Table(Game):
    """A game whose shape is known."""

    @property
    def value_shape(self) -> tuple[int, int]:
        return self.following.shape


@functools.cache
def tic_tac_toe() -> tuple[Table, dict[int, tuple[int, ...]], dict[tuple[int, ...], int]]:
    """All positions as a table: whoever moves is 1, the other -1; a move that wins is worth 1."""
    start = (0,) * 9
    number, todo, rows = {start: 0}, [start], []
    while todo:
        board = todo.pop(0)
        following, reward, valid = [0] * 9, [0.0] * 9, [x == 0 for x in board]
        over = any(sum(board[k] for k in line) == -3 for line in LINES) or all(board)
        for k in range(9):
            if board[k] or over:
                continue
            after = tuple(-(1 if i == k else x) for i, x in enumerate(board))
            if after not in number:
                number[after] = len(number)
                todo.append(after)
            following[k] = number[after]
            reward[k] = float(any(sum(after[i] for i in line) == -3 for line in LINES))
        rows.append((following, reward, valid, over))
    count = len(rows)
    game = Table(
        following=np.array([row[0] for row in rows], np.int32),
        reward=np.array([row[1] for row in rows], np.float32),
        value=np.zeros(count, np.float32),
        prior=np.zeros((count, 9), np.float32),
        valid=np.array([row[2] for row in rows]),
        terminal=np.array([row[3] for row in rows]),
        discount=-1.0,
    )
    return game, {k: board for board, k in number.items()}, number
