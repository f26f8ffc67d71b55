"""Lines of source with their measurements, as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

from ...errors import CutraceError
from ...loading import Clock, opened
from ...outputs import check_output, write_pieces
from ...reports.html import escaped, page, section, sortable
from ...units import count_of
from .roofline_page import amount
from .sources import SAMPLES, SELECTED, Heat, MeasuredSource, Sources, sources

_FOLDER = Path(__file__).parent

#: The number of context lines before and after each measured line.
_AROUND = 4
#: The largest number of rows of the list at the top, and of instructions of a function without line information.
_HOTTEST = 20
_INSTRUCTIONS = 100
_LARGEST = 4 << 20
#: The number of colours for shares.
_STEPS = 8


def write_page(
    paths: Sequence[Path], output: Path, *, root: Path | None, clock: Clock
) -> None:
    """Write the page of source lines. The files are opened as one trace. ``root`` is as in :func:`html`. Raises
    :class:`CutraceError` when nothing was measured by line, or the page cannot be written."""
    check_output(output, paths, endings=(".html",))
    about = ", ".join(map(str, paths))
    with opened(paths, clock=clock) as trace:
        measured = sources(trace)
        if not measured.files:
            absent = (
                f"nothing in {about} was measured by line: use `cutrace profile --lines` or "
                "`cutrace record --sample pc`"
            )
            raise CutraceError(trace.quality.doubt(absent))
    write_pieces(output, [html(measured, about, root)])


def html(measured: Sources, about: str, root: Path | None = None) -> str:
    """The page. ``about`` names the capture. Source files are read at their paths in the trace, or below ``root``."""
    tables = _Tables(measured)
    texts: dict[str, list[str] | None] = {}
    shown = []
    for number, source in enumerate(measured.files):
        if source.file:
            texts[source.file] = _lines_of(source.file, root)
        shown.append(tables.source(number, source, texts.get(source.file)))
    hottest = section("Hottest", tables.hottest(texts))
    return page(
        "source",
        "lines of source",
        folder=_FOLDER,
        shared=("tables",),
        about=escaped(" · ".join([about, *tables.summary()])),
        main="\n".join([hottest, *shown]),
    )


def _lines_of(file: str, root: Path | None) -> list[str] | None:
    """The lines of a file; None if it cannot be read. With ``root``, tries the endings of its path below ``root``, the
    longest first."""
    parts = [part for part in PurePosixPath(file.lstrip("/")).parts if part != ".."]
    places = [Path(file)]
    if root is not None:
        places = [root.joinpath(*parts[at:]) for at in range(len(parts))]
    try:
        for place in places:
            if place.is_file() and place.stat().st_size <= _LARGEST:
                return place.read_text("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        pass
    return None


class _Tables:
    """The tables of the page."""

    def __init__(self, measured: Sources) -> None:
        self._sources = measured
        self._metrics = measured.metrics
        self._sampled = SAMPLES in measured.metrics

    def summary(self) -> Iterator[str]:
        if self._sampled:
            yield f"{count_of(self._sources.total.values[SAMPLES], 'sample')} of warps"
        if self._sources.launches:
            yield f"metrics are sums over {count_of(self._sources.launches, 'launch')} or fewer"

    # Columns

    def _head(self, first: str, last: str) -> str:
        kind = "text"
        if first in ("line", "offset"):
            kind = "number"
        cells = [_heading(first, "", kind)]
        cells += [_heading(_label(name), name, "number") for name in self._metrics]
        if self._sampled:
            cells.append(_heading("stalled by", "", "text stalls"))
        cells.append(_heading(last, "", "text code"))
        return f"<thead><tr>{''.join(cells)}</tr></thead>"

    def _cells(self, heat: Heat | None, code: str) -> str:
        """The cells after the first one, with the measurements and the code."""
        total = self._sources.total
        heat = heat or Heat()
        cells = ""
        for metric in self._metrics:
            value = heat.values[metric]
            cells += _share(_label(metric), value, total.values[metric])
        if self._sampled:
            cells += f"<td class=stalls>{escaped(_stalls(heat))}</td>"
        return f"{cells}<td class=code>{escaped(code)}</td>"

    # Parts

    def hottest(self, texts: dict[str, list[str] | None]) -> str:
        """The hottest lines of all sources."""
        places = []
        for number, source in enumerate(self._sources.files):
            for line, heat in source.heats.items():
                # Equally hot lines keep the order of sources and lines.
                order = (self._sources.weight(heat), -number, -line)
                places.append((order, number, source, line, heat))
        places.sort(key=lambda place: place[0], reverse=True)
        rows = []
        for _, number, source, line, heat in places[:_HOTTEST]:
            if source.file:
                text = _text_of(texts.get(source.file), line)
                where = f"{PurePosixPath(source.file).name}:{line}"
            else:
                text = ", ".join(sorted(heat.functions))
                where = f"+{line:#x}"
            link = (
                f'<td class=text><a href="#s{number}-{line}">{escaped(where)}</a></td>'
            )
            rows.append(f"<tr>{link}{self._cells(heat, text.strip())}</tr>")
        return sortable(_table(self._head("where", "source"), rows))

    def source(
        self,
        number: int,
        source: MeasuredSource,
        text: list[str] | None,
    ) -> str:
        """The section of a file or a function."""
        notes = self._shares(source.total)
        if source.file:
            functions: set[str] = set()
            for heat in source.heats.values():
                functions |= heat.functions
            if text is None:
                notes.append(
                    "The file cannot be read: give the folder of the sources with --root."
                )
            notes.append(f"Functions: {', '.join(sorted(functions))}.")
            rows = list(self._lines(number, source, text))
            table = _table(self._head("line", "source"), rows)
        else:
            notes.append("The lines of these instructions are not known.")
            heats = source.heats
            hot = sorted(
                heats,
                key=lambda offset: self._sources.weight(heats[offset]),
                reverse=True,
            )
            rows = []
            for offset in sorted(hot[:_INSTRUCTIONS]):
                where = f"+{offset:#x}"
                rows.append(self._row(number, offset, where, "", heats[offset]))
            table = sortable(_table(self._head("offset", ""), rows))
            if len(hot) > len(rows):
                notes.append(
                    f"Only the hottest {len(rows)} of {len(hot)} instructions are listed."
                )
        name = escaped(source.file or source.function)
        note = escaped(" ".join(notes))
        top = f"<h2 class=mono>{name}</h2><p class=note>{note}</p>"
        return f"<section>{top}\n{table}</section>"

    def _shares(self, heat: Heat) -> list[str]:
        """A list with a sentence on the share of a source in the first metric; empty without metrics or counts."""
        if not self._metrics:
            return []
        metric = self._metrics[0]
        whole = self._sources.total.values[metric]
        if not whole:
            return []
        what = _label(metric)
        if self._sampled:
            what = "the samples"
        return [f"{heat.values[metric] / whole:.1%} of {what}."]

    def _lines(
        self,
        number: int,
        source: MeasuredSource,
        text: list[str] | None,
    ) -> Iterator[str]:
        """The rows of measured lines and their context lines."""
        columns = 2 + self._sampled + len(self._metrics)
        last = 0
        for line in _with_context(source.heats, len(text or ())):
            if last and line > last + 1:
                yield f"<tr class=gap><td colspan={columns}>{line - last - 1} more</td></tr>"
            heat = source.heats.get(line)
            yield self._row(number, line, str(line), _text_of(text, line), heat)
            last = line

    def _row(
        self,
        number: int,
        line: int,
        where: str,
        code: str,
        heat: Heat | None,
    ) -> str:
        row = f'<tr id="s{number}-{line}"'
        if not heat:
            row += " class=cold"
        place = f"<td class=number data-value={line}>{where}</td>"
        return f"{row}>{place}{self._cells(heat, code)}</tr>"


def _with_context(lines: Collection[int], length: int) -> list[int]:
    """The numbers of these lines and their context lines, for a file of ``length`` lines (0 if it cannot be read)."""
    near = set(lines)
    for line in lines:
        first = max(line - _AROUND, 1)
        last = min(line + _AROUND, length)
        near.update(range(first, last + 1))
    return sorted(near)


def _text_of(text: list[str] | None, line: int) -> str:
    if text is not None and 1 <= line <= len(text):
        return text[line - 1]
    return ""


def _table(head: str, rows: Sequence[str]) -> str:
    return (
        f"<div class=scroll><table>{head}<tbody>\n"
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _label(metric: str) -> str:
    """A metric as a column title: ``thread inst executed``."""
    return metric.removeprefix("smsp__sass_").replace("_", " ")


def _share(label: str, value: float, whole: float) -> str:
    """A cell with a value and its share of the whole. A larger share has a hotter colour."""
    if not value or not whole:
        return "<td class=number></td>"
    share = value / whole
    colour = round(_STEPS * value / whole)
    number = escaped(amount(value, "").strip())
    return (
        f'<td class="number h{colour}" data-name="{escaped(label)}" data-value={value}>'
        f"{number} <small>{share:.1%}</small></td>"
    )


def _heading(name: str, title: str, kind: str) -> str:
    return f'<th scope=col class="{kind}" title="{escaped(title)}">{escaped(name)}</th>'


def _stalls(heat: Heat) -> str:
    """The most frequent stall reasons: ``long_scoreboard 81%, wait 12%``. A selected warp does not wait and is left
    out."""
    shares = []
    for reason, count in heat.stalls.most_common():
        if count and reason != SELECTED:
            shares.append(f"{reason} {count / heat.values[SAMPLES]:.0%}")
    return ", ".join(shares[:2])
