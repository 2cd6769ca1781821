"""A report as one page of text."""

from __future__ import annotations

from collections.abc import Iterator

from functional_rb.inspection.report import Report, is_whole

# The number of characters of the longest bar.
WIDTH = 30


def page(report: Report) -> str:
    """The text of a report.

    Args:
        report: what `inspect` returned.
    """
    return "\n".join(map(printable, _lines(report))) + "\n"


def printable(text: str) -> str:
    r"""A line without control characters: a file may have any names in a spec, and a terminal would obey them.

    Example:
        >>> printable("x\x1b[2J\n")
        'x\\x1b[2J\\n'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _lines(report: Report) -> Iterator[str]:
    yield f"Checkpoints in {report['path']}"
    yield from _table([_generation(report, generation) for generation in report["generations"]])
    if report["checkpoint"] is None:
        yield ""
        yield "No checkpoint is whole."
    elif report["spec"] is None:
        yield ""
        yield f"The spec is not known: {report['problem']}"
    else:
        yield from _buffer(report)
        if (numbers := report["priorities"]) is not None:
            yield ""
            yield f"Priorities, after alpha, of {_items(numbers['count'])} that can be drawn"
            yield from _distribution(numbers)
        yield from _episodes(report)
    yield ""
    yield "Files"
    rows = []
    for file in report["files"]:
        size = "gone" if file["bytes"] is None else _bytes(file["bytes"])
        rows.append([file["name"], size, "whole" if file["problem"] is None else f"DAMAGED: {file['problem']}"])
    yield from _table(rows)
    yield ""
    if is_whole(report):
        yield "Every byte is as it was written."
    elif report["checkpoint"] is None:
        yield "DAMAGED; there is nothing to load."
    elif report["generations"][0]["generation"] == report["checkpoint"]:
        yield "DAMAGED: see above."
    else:
        how = f"frb.load(..., frb.checkpoint.LoadOptions(fall_back=True)) loads generation {report['checkpoint']}"
        yield f"DAMAGED: see above; {how}."


def _generation(report: Report, generation: Report) -> list[str]:
    state = "whole" if generation["whole"] else "DAMAGED"
    shown = ", shown below" if generation["generation"] == report["checkpoint"] else ""
    name = f"generation {generation['generation']}"
    if generation["items"] is None:
        return [name, "", "", "", state]
    return [name, generation["time"] or "", _items(generation["items"]), _bytes(generation["bytes"]), state + shown]


def _buffer(report: Report) -> Iterator[str]:
    spec = report["spec"]
    share = report["size"] / spec["capacity"]
    yield ""
    yield "Buffer"
    rows = [["size", f"{report['size']:,} of {spec['capacity']:,} ({share:.0%})"]]
    if spec["lanes"] is not None:
        sizes = f", sizes {_some(report['sizes'])}" if len(report["sizes"]) > 1 else ""
        rows.append(["lanes", f"{spec['lanes']}{sizes}"])
    if report["cursors"] is not None:
        rows.append(["cursor", f"slot {_some(report['cursors'])}"])
    rows.append(["bytes", f"{_bytes(report['bytes']['files'])} in files, {_bytes(report['bytes']['item'])} an item"])
    rows += [[name, spec[name]] for name in ("sampler", "writer", "storage", "compact") if spec[name] is not None]
    rows += [["transform", transform] for transform in spec["transforms"]]
    if spec["batch_size"] is not None:
        rows.append(["batch size", str(spec["batch_size"])])
    counts = {"rejected": "bad priorities", "stale": "updates of what was gone", "invalid": "items outside of the spec"}
    rows += [[name, f"{n:,} {what}"] for name, what in counts.items() if (n := report["counters"][name])]
    yield from _table(rows)
    yield ""
    yield "Item"
    yield from _table([[x["leaf"], x["dtype"], str(tuple(x["shape"])), x["spec"]] for x in spec["item"]])


def _episodes(report: Report) -> Iterator[str]:
    numbers = report["episodes"]
    yield ""
    if numbers is None:
        yield f"Episodes: {report['no_episodes']}"
        return
    yield "Episodes"
    ended = ", ".join(f"{n:,} {way}" for way, n in numbers["ended"].items() if n or way != "both")
    rows = [["whole", f"{numbers['whole']:,}" + (f" ({ended})" if ended else "")]]
    rows.append(["going on", f"{numbers['going_on']:,}"])
    rows.append(["cut off", f"{numbers['cut']:,} (they may have lost their first steps)"])
    yield from _table(rows)
    for name, what in (("lengths", "Length"), ("returns", "Return")):
        if numbers[name] is not None and numbers[name]["count"]:
            yield ""
            yield f"{what} of whole episodes"
            yield from _distribution(numbers[name])


def _distribution(numbers: Report) -> Iterator[str]:
    if numbers["histogram"] is None:
        return
    names = ("smallest", "median", "mean", "largest")
    yield "  " + ", ".join(f"{name} {_number(numbers[name])}" for name in names)
    edges, counts, each = (numbers["histogram"][name] for name in ("edges", "counts", "each"))
    if len(counts) == 1:
        return
    most = max(counts)
    rows = []
    for low, high, n in zip(edges[:-1], edges[1:], counts, strict=True):
        bar = "#" * max(round(WIDTH * n / most), int(n > 0))  # a bar where there is anything
        rows.append([_number(low) if each else f"{_number(low)} to {_number(high)}", f"{n:,}", bar])
    yield from _table(rows)


def _table(rows: list[list[str]]) -> Iterator[str]:
    columns = max(map(len, rows), default=0)
    widths = [max((len(row[k]) for row in rows if len(row) > k), default=0) for k in range(columns)]
    for row in rows:
        yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))).rstrip()


def _items(n: int) -> str:
    return f"{n:,} item" + "s" * (n != 1)


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


def _number(value: object) -> str:
    return f"{value:.4g}"


def _bytes(n: int) -> str:
    """Bytes in decimal units.

    Example:
        >>> _bytes(999), _bytes(1_500), _bytes(2_000_000)
        ('999 B', '1.5 kB', '2.0 MB')
    """
    if n < 1000:
        return f"{n} B"
    value = float(n)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"
