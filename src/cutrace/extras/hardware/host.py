"""The metrics of a chip. They come from CUPTI's host interface, which needs no GPU.

The name of a metric is a counter, a rollup and an optional submetric: ``dram__bytes.sum``,
``sm__throughput.avg.pct_of_peak_sustained_elapsed``. Names of ratios and throughputs have the same form.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...collect import cuda
from ...errors import CutraceError, did_you_mean
from ...units import first_names
from .cupti import Cupti, CuptiError, address, texts

RANGES = 0
SAMPLES = 1
_UNITS = {
    "byte": "bytes",
    "instruction": "instructions",
    "cycle": "cycles",
    "nanosecond": "ns",
}
_KINDS = ("counter", "ratio", "throughput")
_ENDINGS = {
    "counter": ".sum",
    "ratio": ".ratio",
    "throughput": ".avg.pct_of_peak_sustained_elapsed",
}
_INVALID_METRIC_NAME = 17
#: The largest number of names in a sentence.
_LISTED = 3


@dataclass(frozen=True)
class ChipMetric:
    """A metric of a chip. ``kind`` is counter, ratio or throughput; ``unit`` is the part of the chip that counts;
    ``dimension`` is CUPTI's name of the quantity."""

    name: str
    kind: str
    description: str
    unit: str
    dimension: str

    @property
    def values_in(self) -> str:
        """The unit of its values: ``%``, ``bytes``, ``bytes/s``, ``instructions``, ..."""
        if ".pct" in self.name:
            return "%"
        counted = self.dimension.removesuffix("/second")
        unit = _UNITS.get(counted, counted)
        if self.name.endswith(".per_second"):
            unit += "/s"
        return unit


def chips(cupti: Cupti) -> list[str]:
    """The chips that a libcupti supports, such as GH100."""
    return _sorted_names(_host_call(cupti, "ProfilerHostGetSupportedChips"))


def _host_call(cupti: Cupti, function: str, **fields: Any) -> Any:
    """Call a function of the host interface. Raises :class:`CutraceError` with advice if its libraries are missing."""
    try:
        return cupti.call(function, **fields)
    except CuptiError as error:
        if error.code not in (15, 999):
            raise
        raise CutraceError(
            f"{cupti.path} cannot describe metrics here: it needs libnvperf_host.so in its folder, and from 13.4 on "
            "also the driver's libcuda.so.1. CUPTI 13.0 needs no driver: `pip install nvidia-cuda-cupti==13.0.85`"
        ) from None


def first_chip(cupti: Cupti) -> str | None:
    """The chip of the first GPU, None without a GPU. Initialises CUDA in this process."""
    driver = cuda.driver()
    if driver is None or driver.cuInit(0):
        return None
    return chip_of(cupti, 0)


def chip_of(cupti: Cupti, device: int) -> str:
    """The chip of a CUDA device. CUDA must be initialised."""
    cupti.call(
        "ProfilerInitialize"
    )  # without this call the next one crashes the process
    return cupti.call("DeviceGetChipName", device=device).chip.decode()


class Chip:
    """The metrics of one chip, for ranges (``RANGES``) or for samples over time (``SAMPLES``).

    ``availability`` is CUPTI's image of the counters that the GPU has. Chips are context managers.
    """

    def __init__(
        self,
        cupti: Cupti,
        name: str,
        profiler: int = RANGES,
        availability: bytes | None = None,
    ) -> None:
        """Open the chip. Raises :class:`CutraceError` if this libcupti does not support it."""
        self.cupti = cupti
        self.name = name
        self._profiler = profiler
        self._availability: ctypes.Array[ctypes.c_char] | None = None
        if availability:
            self._availability = ctypes.create_string_buffer(availability)
        known = chips(cupti)
        if name not in known:
            hint = did_you_mean(name.upper(), known, f"it knows {', '.join(known)}")
            raise CutraceError(f"{cupti.path} does not know the chip {name}: {hint}")
        self._host = self._opened()

    def _opened(self) -> int:
        fields = {"profiler": self._profiler, "chip": self.name.encode()}
        if self._availability:
            fields["availability"] = address(self._availability)
        return int(_host_call(self.cupti, "ProfilerHostInitialize", **fields).host)

    def __enter__(self) -> Chip:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release CUPTI's object of this chip."""
        self.cupti.call("ProfilerHostDeinitialize", host=self._host)

    def names(self) -> Iterator[str]:
        """The names of all metrics, without rollups."""
        for kind in range(len(_KINDS)):
            metrics = self.cupti.call(
                "ProfilerHostGetBaseMetrics", host=self._host, type=kind
            )
            yield from _sorted_names(metrics)

    def describe(self, name: str) -> ChipMetric:
        """Describe a metric, with or without rollup. Raises :class:`CutraceError` if the chip does not have it."""
        properties = self._properties(name)
        if properties is None:
            raise self._unknown(name)
        return ChipMetric(
            name=name,
            kind=_KINDS[properties.type],
            description=_decoded(properties.description),
            unit=_decoded(properties.unit),
            dimension=_decoded(properties.dimension),
        )

    def has(self, name: str) -> bool:
        """Whether the chip has a metric of this name."""
        return self._properties(name) is not None

    def _properties(self, name: str) -> Any:
        """CUPTI's properties of a metric, None if the chip does not have it."""
        try:
            return self.cupti.call(
                "ProfilerHostGetMetricProperties", host=self._host, name=name.encode()
            )
        except CuptiError as error:
            if error.code != _INVALID_METRIC_NAME:
                raise
            return None

    def submetrics(self, name: str) -> list[str]:
        """The possible endings of a metric, such as ``.sum.per_second``."""
        metric = self.describe(name)
        kind = _KINDS.index(metric.kind)
        endings = self.cupti.call(
            "ProfilerHostGetSubMetrics",
            host=self._host,
            type=kind,
            name=name.encode(),
        )
        return _sorted_names(endings)

    def configure(self, names: Sequence[str]) -> Config:
        """The configuration that counts metrics together. Raises :class:`CutraceError` for a metric that the chip does
        not have, or that lacks a rollup."""
        described = [self.describe(name) for name in names]
        for metric in described:
            name = metric.name
            if "." not in name:
                raise CutraceError(
                    f"{name} lacks a rollup: use {name}{_ENDINGS[metric.kind]}, or another that "
                    f"`cutrace metrics describe {name}` lists"
                )
        units = tuple(metric.values_in for metric in described)
        # Each configuration gets a separate host object, because CUPTI adds metrics to the earlier metrics of an
        # object.
        host = self._opened()
        try:
            self.cupti.call(
                "ProfilerHostConfigAddMetrics",
                host=host,
                names=texts(list(names)),
                count=len(names),
            )
            size = self.cupti.call("ProfilerHostGetConfigImageSize", host=host).size
            image = ctypes.create_string_buffer(size)
            self.cupti.call(
                "ProfilerHostGetConfigImage",
                host=host,
                size=size,
                image=address(image),
            )
            passes = self.cupti.call(
                "ProfilerHostGetNumOfPasses", size=size, image=address(image)
            ).passes
        finally:
            self.cupti.call("ProfilerHostDeinitialize", host=host)
        return Config(tuple(names), units, image, passes)

    def evaluate(self, image: Any, index: int, names: Sequence[str]) -> list[float]:
        """The values of metrics for the range or sample ``index`` of a counter data image."""
        values, evaluate = self.evaluator(image, names)
        evaluate(index)
        return list(values)

    def evaluator(
        self, image: Any, names: Sequence[str]
    ) -> tuple[Any, Callable[[int], None]]:
        """Prepare the evaluation of many ranges or samples of a counter data image. Returns an array with one value for
        each metric, and a function that fills the array with the values of one range or sample, by its index."""
        values = (ctypes.c_double * len(names))()
        name_array = texts(list(names))
        arguments, evaluate = self.cupti.repeated(
            "ProfilerHostEvaluateToGpuValues",
            host=self._host,
            image=address(image),
            size=len(image),
            names=name_array,
            count=len(names),
            values=values,
        )

        def fill(index: int) -> None:
            arguments.index = index
            evaluate()

        return values, fill

    def _unknown(self, name: str) -> CutraceError:
        base, dot, rest = name.partition(".")
        known = list(self.names())
        if base in known:
            return CutraceError(
                f"{base} has no .{rest}: `cutrace metrics describe {base}` lists its endings"
            )
        similar = [metric + dot + rest for metric in known]
        hint = did_you_mean(name, similar, "`cutrace metrics list` lists all")
        return CutraceError(f"{self.name} has no metric {name}: {hint}")


@dataclass(frozen=True)
class Config:
    """A configuration that counts metrics together: their names and units, CUPTI's image, and the number of passes over
    the same work."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    image: Any
    passes: int

    def must_fit_one_pass(self, because: str) -> None:
        """Raise :class:`CutraceError` when the metrics need several passes."""
        if self.passes == 1:
            return
        names = first_names(self.names, _LISTED)
        raise CutraceError(
            f"{names} need {self.passes} passes, but {because}: count fewer of them together"
        )


def _sorted_names(listing: Any) -> list[str]:
    """The names in a struct of CUPTI with ``names`` and their ``count``."""
    return sorted(listing.names[i].decode() for i in range(listing.count))


def _decoded(text: bytes | None) -> str:
    return (text or b"").decode()
