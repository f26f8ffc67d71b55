"""Lines of source beside what was measured of them, as a page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from ..analysis.pc_samples import SELECTED
from ..analysis.sources import Heat, Source, Sources
from ..units import count_of
from .html import escaped, page
from .roofline import amount

#: Lines shown around each line that something was measured of.
_AROUND = 4
#: Rows of the list at the top, and instructions of a function whose lines are not known.
_HOTTEST, _INSTRUCTIONS = 20, 100
_LARGEST = 4 << 20
#: Steps of the colour of shares.
_STEPS = 8


def html(found: Sources, about: str, root: Path | None = None) -> str:
    """The page; ``about`` says what it is of. Files are read where the trace says, or below ``root``."""
    shown = _Shown(found)
    texts = {source.file: _lines_of(source.file, root) for source in found.found if source.file}
    return page(
        "source",
        "cutrace source",
        about=escaped(about),
        summary=escaped(shown.summary()),
        hottest=shown.hottest(texts),
        sources="\n".join(
            shown.source(number, source, texts.get(source.file)) for number, source in enumerate(found.found)
        ),
    )


def _lines_of(file: str, root: Path | None) -> list[str] | None:
    """The lines of a file; None where it cannot be read. Below ``root``, and nowhere else, the longest end of its path
    that exists is read."""
    parts = [part for part in PurePosixPath(file.lstrip("/")).parts if part != ".."]
    places = [Path(file)] if root is None else [root.joinpath(*parts[at:]) for at in range(len(parts))]
    try:
        found = next((place for place in places if place.is_file() and place.stat().st_size <= _LARGEST), None)
        return found.read_text("utf-8", "replace").splitlines() if found else None
    except (OSError, ValueError):
        return None


class _Shown:
    """The sources with the columns that the page has for them."""

    def __init__(self, found: Sources) -> None:
        self._found = found
        self._sampled = found.total.sampled > 0
        self._metrics = list(found.metrics)

    def summary(self) -> str:
        facts = []
        if self._sampled:
            facts.append(f"{count_of(self._found.total.sampled, 'sample')} of warps")
        if self._metrics:
            facts.append(f"metrics are sums over {count_of(self._found.launches, 'launch')} or fewer")
        return ", ".join(facts)

    # Columns

    def _head(self, first: str, last: str) -> str:
        columns = [(first, "", "number" if first in ("line", "offset") else "text")]
        columns += [("samples", "", "number")] * self._sampled
        columns += [(_label(metric), metric, "number") for metric in self._metrics]
        columns += [("stalled by", "", "stalls")] * self._sampled
        cells = "".join(
            f'<th scope=col class={kind} title="{escaped(title)}">{escaped(name)}</th>'
            for name, title, kind in [*columns, (last, "", "code")]
        )
        return f"<thead><tr>{cells}</tr></thead>"

    def _cells(self, heat: Heat | None, code: str) -> str:
        """What was measured and the code, in the columns behind the first."""
        total, heat = self._found.total, heat or Heat()
        cells = [_share("samples", heat.sampled, total.sampled)] * self._sampled
        cells += [_share(_label(metric), heat.values[metric], total.values[metric]) for metric in self._metrics]
        cells += [f"<td class=stalls>{escaped(_stalls(heat))}</td>"] * self._sampled
        return "".join([*cells, f"<td class=code>{escaped(code)}</td>"])

    # Parts

    def hottest(self, texts: dict[str, list[str] | None]) -> str:
        """The hottest lines of all sources."""
        places = [
            (self._found.weight(heat), number, source, line, heat)
            for number, source in enumerate(self._found.found)
            for line, heat in source.heats.items()
        ]
        places.sort(key=lambda place: (place[0], -place[1], -place[3]), reverse=True)
        rows = []
        for _, number, source, line, heat in places[:_HOTTEST]:
            text = _text_of(texts.get(source.file), line) if source.file else ", ".join(sorted(heat.functions))
            where = f"{PurePosixPath(source.file).name}:{line}" if source.file else f"+{line:#x}"
            link = f'<td class=text><a href="#s{number}-{line}">{escaped(where)}</a></td>'
            rows.append(f"<tr>{link}{self._cells(heat, text.strip())}</tr>")
        return _table(self._head("where", "source"), rows)

    def source(self, number: int, source: Source, text: list[str] | None) -> str:
        """A file or a function."""
        functions = sorted({name for heat in source.heats.values() for name in heat.functions})
        title = source.file or source.function
        notes = [*self._shares(source.total)]
        if not source.file:
            notes.append("The lines of these instructions are not known.")
        elif text is None:
            notes.append("The file cannot be read here: --root names the folder of the sources.")
        if source.file:
            notes.append(f"Functions: {', '.join(functions)}.")
        if source.file:
            rows = list(self._lines(number, source, text))
            head = self._head("line", "source")
        else:
            hot = sorted(source.heats, key=lambda offset: self._found.weight(source.heats[offset]), reverse=True)
            chosen = sorted(hot[:_INSTRUCTIONS])
            rows = [self._row(number, offset, f"+{offset:#x}", "", source.heats[offset]) for offset in chosen]
            head = self._head("offset", "")
            if len(hot) > len(chosen):
                notes.append(f"The hottest {len(chosen)} of {len(hot)} are here.")
        top = f"<h2 class=mono>{escaped(title)}</h2><p class=note>{escaped(' '.join(notes))}</p>"
        return f"<section>{top}\n{_table(head, rows)}</section>"

    def _shares(self, heat: Heat) -> Iterator[str]:
        """What part of all was measured here, by what makes lines hot."""
        if self._sampled:
            yield f"{heat.sampled / self._found.total.sampled:.1%} of the samples."
        elif self._metrics:
            metric = self._metrics[0]
            if whole := self._found.total.values[metric]:
                yield f"{heat.values[metric] / whole:.1%} of {_label(metric)}."

    def _lines(self, number: int, source: Source, text: list[str] | None) -> Iterator[str]:
        """The lines that something was measured of, with those around them."""
        last = 0
        for line in _shown(source.heats, len(text) if text is not None else 0):
            if last and line > last + 1:
                columns = 2 + 2 * self._sampled + len(self._metrics)
                yield f"<tr class=gap><td colspan={columns}>{line - last - 1} more</td></tr>"
            yield self._row(number, line, str(line), _text_of(text, line), source.heats.get(line))
            last = line

    def _row(self, number: int, line: int, where: str, code: str, heat: Heat | None) -> str:
        cold = "" if heat else " class=cold"
        return f'<tr id="s{number}-{line}"{cold}><td class=number>{where}</td>{self._cells(heat, code)}</tr>'


def _shown(lines: Iterable[int], length: int) -> list[int]:
    """The numbers of lines to show, of a file of so many lines (0: it cannot be read)."""
    near = {n for line in lines for n in range(line - _AROUND, line + _AROUND + 1) if 1 <= n <= length}
    return sorted(near | set(lines))


def _text_of(text: list[str] | None, line: int) -> str:
    return text[line - 1] if text is not None and 1 <= line <= len(text) else ""


def _table(head: str, rows: Sequence[str]) -> str:
    return f"<div class=scroll><table>{head}<tbody>\n" + "\n".join(rows) + "\n</tbody></table></div>"


def _label(metric: str) -> str:
    """A metric as the head of a column: ``thread inst executed``."""
    return metric.removeprefix("smsp__sass_").replace("_", " ")


def _share(label: str, value: float, whole: float) -> str:
    """A cell with a value and its share of the whole, the hotter the larger."""
    if not value or not whole:
        return "<td class=number></td>"
    text = f"{escaped(amount(value, '').strip())} <small>{value / whole:.1%}</small>"
    return f'<td class="number h{round(_STEPS * value / whole)}" data-name="{escaped(label)}">{text}</td>'


def _stalls(heat: Heat) -> str:
    """The most frequent reasons: ``long_scoreboard 81%, wait 12%``. A selected warp does not wait."""
    reasons = [(reason, count) for reason, count in heat.samples.most_common() if count and reason != SELECTED]
    return ", ".join(f"{reason} {count / heat.sampled:.0%}" for reason, count in reasons[:2])
