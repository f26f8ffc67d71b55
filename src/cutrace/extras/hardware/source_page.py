"""Lines of source with their measurements, as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from ...reports.html import escaped, page, section
from ...units import count_of
from .roofline_page import amount
from .sources import SAMPLES, SELECTED, Heat, MeasuredSource, Sources

_FOLDER = Path(__file__).parent

#: The number of context lines before and after each measured line.
_AROUND = 4
#: The number of rows in the list at the top, and of instructions in a function without line information.
_HOTTEST = 20
_INSTRUCTIONS = 100
_LARGEST = 4 << 20
#: The number of colours for shares.
_STEPS = 8


def html(measured: Sources, about: str, root: Path | None = None) -> str:
    """The page. ``about`` names the capture. Files are read at the paths in the trace, or below ``root``."""
    tables = _Tables(measured)
    texts = {
        source.file: _lines_of(source.file, root)
        for source in measured.files
        if source.file
    }
    sources = [
        tables.source(number, source, texts.get(source.file))
        for number, source in enumerate(measured.files)
    ]
    return page(
        "source",
        "cutrace source",
        folder=_FOLDER,
        about=escaped(" · ".join([about, *tables.summary()])),
        main="\n".join([section("Hottest", tables.hottest(texts)), *sources]),
    )


def _lines_of(file: str, root: Path | None) -> list[str] | None:
    """The lines of a file; None if it cannot be read. With ``root``, reads the longest suffix of its path that exists
    below ``root``."""
    parts = [part for part in PurePosixPath(file.lstrip("/")).parts if part != ".."]
    if root is None:
        places = [Path(file)]
    else:
        places = [root.joinpath(*parts[at:]) for at in range(len(parts))]
    try:
        path = next(
            (
                place
                for place in places
                if place.is_file() and place.stat().st_size <= _LARGEST
            ),
            None,
        )
        if path:
            return path.read_text("utf-8", "replace").splitlines()
        return None
    except (OSError, ValueError):
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
        columns = [(first, "", "number" if first in ("line", "offset") else "text")]
        columns += [(_label(metric), metric, "number") for metric in self._metrics]
        columns += [("stalled by", "", "stalls")] * self._sampled
        cells = "".join(
            f'<th scope=col class={kind} title="{escaped(title)}">{escaped(name)}</th>'
            for name, title, kind in [*columns, (last, "", "code")]
        )
        return f"<thead><tr>{cells}</tr></thead>"

    def _cells(self, heat: Heat | None, code: str) -> str:
        """The cells after the first: the measurements and the code."""
        total = self._sources.total
        heat = heat or Heat()
        cells = [
            _share(_label(metric), heat.values[metric], total.values[metric])
            for metric in self._metrics
        ]
        cells += [f"<td class=stalls>{escaped(_stalls(heat))}</td>"] * self._sampled
        return "".join([*cells, f"<td class=code>{escaped(code)}</td>"])

    # Parts

    def hottest(self, texts: dict[str, list[str] | None]) -> str:
        """The hottest lines of all sources."""
        places = [
            (self._sources.weight(heat), number, source, line, heat)
            for number, source in enumerate(self._sources.files)
            for line, heat in source.heats.items()
        ]
        places.sort(key=lambda place: (place[0], -place[1], -place[3]), reverse=True)
        rows = []
        for _, number, source, line, heat in places[:_HOTTEST]:
            if source.file:
                text = _text_of(texts.get(source.file), line)
            else:
                text = ", ".join(sorted(heat.functions))
            if source.file:
                where = f"{PurePosixPath(source.file).name}:{line}"
            else:
                where = f"+{line:#x}"
            link = (
                f'<td class=text><a href="#s{number}-{line}">{escaped(where)}</a></td>'
            )
            rows.append(f"<tr>{link}{self._cells(heat, text.strip())}</tr>")
        return _table(self._head("where", "source"), rows)

    def source(
        self, number: int, source: MeasuredSource, text: list[str] | None
    ) -> str:
        """A file or a function."""
        functions = sorted(
            {name for heat in source.heats.values() for name in heat.functions}
        )
        notes = [*self._shares(source.total)]
        if source.file:
            if text is None:
                notes.append(
                    "The file cannot be read: give the folder of the sources with --root."
                )
            notes.append(f"Functions: {', '.join(functions)}.")
            rows = list(self._lines(number, source, text))
            head = self._head("line", "source")
        else:
            notes.append("The lines of these instructions are not known.")
            hot = sorted(
                source.heats,
                key=lambda offset: self._sources.weight(source.heats[offset]),
                reverse=True,
            )
            chosen = sorted(hot[:_INSTRUCTIONS])
            rows = [
                self._row(number, offset, f"+{offset:#x}", "", source.heats[offset])
                for offset in chosen
            ]
            head = self._head("offset", "")
            if len(hot) > len(chosen):
                notes.append(
                    f"Only the hottest {len(chosen)} of {len(hot)} instructions are listed."
                )
        name = escaped(source.file or source.function)
        note = escaped(" ".join(notes))
        top = f"<h2 class=mono>{name}</h2><p class=note>{note}</p>"
        return f"<section>{top}\n{_table(head, rows)}</section>"

    def _shares(self, heat: Heat) -> Iterator[str]:
        """The share of a source in the first metric."""
        for metric in self._metrics[:1]:
            whole = self._sources.total.values[metric]
            if whole:
                yield f"{heat.values[metric] / whole:.1%} of {'the samples' if self._sampled else _label(metric)}."

    def _lines(
        self, number: int, source: MeasuredSource, text: list[str] | None
    ) -> Iterator[str]:
        """The rows of measured lines and their context lines."""
        last = 0
        for line in _with_context(source.heats, len(text) if text is not None else 0):
            if last and line > last + 1:
                columns = 2 + self._sampled + len(self._metrics)
                yield f"<tr class=gap><td colspan={columns}>{line - last - 1} more</td></tr>"
            yield self._row(
                number, line, str(line), _text_of(text, line), source.heats.get(line)
            )
            last = line

    def _row(
        self, number: int, line: int, where: str, code: str, heat: Heat | None
    ) -> str:
        cold = "" if heat else " class=cold"
        return f'<tr id="s{number}-{line}"{cold}><td class=number>{where}</td>{self._cells(heat, code)}</tr>'


def _with_context(lines: Iterable[int], length: int) -> list[int]:
    """The numbers of these lines and their context lines, for a file of ``length`` lines (0 if it cannot be read)."""
    near = {
        n
        for line in lines
        for n in range(line - _AROUND, line + _AROUND + 1)
        if 1 <= n <= length
    }
    return sorted(near | set(lines))


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
    text = f"{escaped(amount(value, '').strip())} <small>{value / whole:.1%}</small>"
    return f'<td class="number h{round(_STEPS * value / whole)}" data-name="{escaped(label)}">{text}</td>'


def _stalls(heat: Heat) -> str:
    """The most frequent stall reasons: ``long_scoreboard 81%, wait 12%``. A selected warp does not wait."""
    reasons = [
        (reason, count)
        for reason, count in heat.stalls.most_common()
        if count and reason != SELECTED
    ]
    return ", ".join(
        f"{reason} {count / heat.values[SAMPLES]:.0%}" for reason, count in reasons[:2]
    )
