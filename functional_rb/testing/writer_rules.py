"""What a writer must do, whichever it is."""

from __future__ import annotations

from functional_rb.base.arrays import NumpyArray
from functional_rb.testing.faults import ConformanceError, alike, shown_item
from functional_rb.testing.tried import Tried, changes_rows


def check_added(tried: Tried, before: dict[int, dict[str, NumpyArray]], new: list[dict[str, NumpyArray]]) -> None:
    """Check what is stored after a batch, by what was stored before."""
    spec = tried.spec
    for handle, leaves in before.items():
        if handle in tried.stored:
            tried.expect(
                alike(tried.stored[handle], leaves),
                f"the item of handle {handle} after an add: expected {shown_item(leaves)}, as the handle still "
                f"names it, got {shown_item(tried.stored[handle])}; give a slot that is written a new handle "
                "(`ChoosingWriter.renew`), or write at the ring's cursors",
            )
        elif not spec.writer.overwrites:
            raise ConformanceError(
                f"{tried.who}: an add: expected all that was stored to stay, as `overwrites` is False, got handle "
                f"{handle} overwritten; let `overwrites` be True, or leave rows out that do not fit"
            )
    if any(map(changes_rows, spec.transforms)):
        return  # what is stored are other rows than those that were added
    came = [tried.stored[handle] for handle in tried.stored if handle not in before]
    unused = list(new)
    for leaves in came:
        match = next((k for k, row in enumerate(unused) if alike(row, leaves)), None)
        tried.expect(
            match is not None,
            "an item that is stored after an add: expected one of the marked rows of the batch, and each at most "
            f"once, got {shown_item(leaves)}; let `Write.live` be False where no row goes, and `Write.source` "
            "name the row of each slot",
        )
        del unused[match or 0]
    if tried.trial.writer_law is not None:
        wanted = sorted(int(step.leaves["id"]) for step in tried.trial.writer_law(tried.added))
        got = sorted(int(leaves["id"]) for leaves in tried.stored.values())
        tried.expect(
            got == wanted, f"what is stored, by id: expected {wanted}, as the law has it, got {got}; see `plan`"
        )
