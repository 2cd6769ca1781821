"""Python objects in a buffer of torch; see `functional_rb.versions.object_table`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from functional_rb.base.object_arrays import Objects
from functional_rb.versions import object_table
from functional_rb.versions.object_table import Tokens


class Table(object_table.Table):
    """The objects by tokens that are in tensors."""

    __slots__ = ()

    def check_readable(self, array: object) -> None:
        """Refuse what `torch.func.vmap` has batched; a mapped state may have anything in its place."""
        if isinstance(array, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(array):
            raise TypeError(
                f"leaf {self.spec.plan.first_object!r}: Python objects cannot be batched by torch.func.vmap; "
                f"call the function for one state and one key after the other"
            )

    def stored(self, leaf: Objects, like: torch.Tensor) -> torch.Tensor:
        """Fresh tokens of the objects of a leaf, on the device of another tensor."""
        return torch.from_numpy(self.tokens(leaf)).to(like.device)

    def cells(self, rows: object, columns: Sequence[slice]) -> list[Tokens]:
        """The tokens in rows int32 [..., words]; none in what a mapped state may have in their place."""
        if not isinstance(rows, torch.Tensor) or rows.dtype != torch.int32 or not columns or not rows.numel():
            return []
        words = rows.view(torch.int64)
        return [words[..., column].cpu().numpy().reshape(-1) for column in columns]
