"""The scanner of trace events, on JSON and on damaged JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cutrace._native import EventScanner
from support.growth import grows_with, growth

INTEGER, NUMBER, TEXT, JSON, NOTHING = range(5)
TIME, DURATION, BAD_TIME, BAD_DURATION, NAME, CATEGORY = (1 << i for i in range(6))


def scan(
    text: str | bytes, *, rules: Any = (), keys: Any = (), chunk: int | None = None, largest: int = 1 << 20
) -> EventScanner:
    data = text.encode() if isinstance(text, str) else text
    scanner = EventScanner(list(rules), list(keys), "beside", largest)
    for at in range(0, len(data), chunk or max(len(data), 1)):
        scanner.feed(data[at : at + (chunk or len(data))])
    scanner.finish()
    return scanner


def told(scanner: EventScanner, group: int = -1) -> list[dict[str, Any]]:
    """The events of a group as dictionaries."""
    phases, flags, times, durations, threads, names, categories, arguments, columns, numbers = scanner.take()[group]

    def text(i: int) -> str:
        return scanner.texts(np.array([i], np.uint32))[0].decode()

    known = scanner.threads()
    out = []
    for row in range(len(phases)):
        pid, tid = known[threads[row]]
        event = {
            "ph": chr(phases[row]), "flags": int(flags[row]), "ts": int(times[row]), "dur": int(durations[row]),
            "pid": pid, "tid": tid, "name": text(names[row]), "cat": text(categories[row]),
            "args": json.loads(text(arguments[row])) if arguments[row] else None,
        }  # fmt: skip
        for i, (rows, bits) in enumerate(columns):
            if row in rows.tolist():
                event[i] = int(bits[rows.tolist().index(row)])
        event["numbers"] = [(text(k), v) for r, k, v in zip(*(n.tolist() for n in numbers), strict=True) if r == row]
        out.append(event)
    return out


def one(text: str, group: int = -1, **options: Any) -> dict[str, Any]:
    return told(scan(f"[{text}]", **options), group)[0]


class TestEvents:
    def test_an_event(self) -> None:
        event = one(
            '{"ph":"X","cat":"c","name":"n","pid":1,"tid":"two","ts":1.5,"dur":2,"args":{"a":[1, {"b": null}]}}'
        )
        assert event == {
            "ph": "X", "flags": TIME | DURATION | NAME | CATEGORY, "ts": 1500, "dur": 2000, "pid": 1, "tid": b"two",
            "name": "n", "cat": "c", "args": {"a": [1, {"b": None}]}, "numbers": [],
        }  # fmt: skip

    def test_keys_come_in_any_order(self) -> None:
        event = one('{"args":{"w":7,"x":8},"dur":2,"ts":1,"tid":2,"pid":1,"name":"n","cat":"k","ph":"X"}',
                    rules=[("X", "k", None, [("w", INTEGER)], False)], group=0)  # fmt: skip
        assert (event["ts"], event["dur"], event["pid"], event["tid"], event[0]) == (1000, 2000, 1, 2, 7)
        assert event["args"] == {"x": 8}

    def test_the_last_of_a_key_given_twice_holds(self) -> None:
        event = one('{"ph":"X","name":"a","name":"b","ts":1,"ts":2}')
        assert (event["name"], event["ts"]) == ("b", 2000)

    def test_other_keys_lie_beside_the_arguments(self) -> None:
        assert one('{"ph":"X","cname":"good","args":{"a":1},"tts":3}')["args"] == {
            "a": 1, "beside": {"cname": "good", "tts": 3}
        }  # fmt: skip
        assert one('{"ph":"X","args":"text"}')["args"] == {"beside": {"args": "text"}}

    def test_arguments_that_are_not_there_and_empty_ones(self) -> None:
        assert one('{"ph":"X"}')["args"] is None
        assert one('{"ph":"X","args":{}}')["args"] == {}

    def test_ids_that_are_missing_or_of_other_types(self) -> None:
        assert (one('{"ph":"X"}')["pid"], one('{"ph":"X","pid":-1}')["pid"]) == (None, -1)
        assert one('{"ph":"X","pid":1.5,"tid":null}')["pid"] == b"1.5"
        assert one('{"ph":"X","pid":null}')["pid"] is None
        assert one('{"ph":"X","pid":99999999999999999999}')["pid"] == b"99999999999999999999"

    def test_the_outer_object(self) -> None:
        scanner = scan('\ufeff {"a": [1, "x"], "traceEvents": [{"ph":"X"}], "b": {"c": NaN}}')
        assert len(told(scanner)) == 1
        assert scanner.others == [(b"a", b'[1,"x"]'), (b"b", b'{"c":"NaN"}')]
        assert scanner.ended == "whole"

    def test_wanted_values_of_each_type(self) -> None:
        rules = [("X", "k", "n", [("i", INTEGER), ("f", NUMBER), ("t", TEXT), ("j", JSON), ("no", NOTHING)], False)]
        scanner = scan(
            '[{"ph":"X","cat":"k","name":"n","args":{"i":-5,"f":2.5,"t":"x","j":[1, 2],"no":{"a":1}}}]', rules=rules
        )
        event = told(scanner, 0)[0]
        assert np.array([event[0], event[1]], np.uint64).view(np.int64)[0] == -5
        assert np.array([event[1]], np.uint64).view(np.float64)[0] == 2.5
        assert scanner.texts(np.array([event[2], event[3]], np.uint32)) == [b"x", b"[1,2]"]
        assert event[4] == 0
        assert event["args"] is None

    def test_a_value_of_another_type_stays(self) -> None:
        rules = [("X", None, None, [("i", INTEGER), ("t", TEXT)], False)]
        event = one('{"ph":"X","args":{"i":"5","t":5}}', rules=rules, group=0)
        assert event["args"] == {"i": "5", "t": 5}

    def test_a_key_that_goes_to_the_column_that_it_fits(self) -> None:
        keys = [("id", INTEGER), ("id", JSON)]
        assert one('{"ph":"s","id":5}', keys=keys)[0] == 5
        assert 1 in one('{"ph":"s","id":"0x5"}', keys=keys)

    def test_rules_choose_by_phase_category_and_name(self) -> None:
        rules = [("BE", "k", "n", [], False), ("", "k", None, [], False), ("i", None, "n", [], False)]
        scanner = scan(
            '[{"ph":"B","cat":"k","name":"n"},{"ph":"X","cat":"k","name":"n"},{"ph":"i","cat":"z","name":"n"},{"ph":"i"}]',
            rules=rules,
        )
        assert [len(group[0]) for group in scanner.take()] == [1, 1, 1, 1]

    def test_arguments_that_are_numbers(self) -> None:
        event = one('{"ph":"C","args":{"a":1,"b":2.5,"c":"x","d":1e999}}', rules=[("C", None, None, [], True)], group=0)
        assert event["numbers"] == [("a", 1.0), ("b", 2.5)]
        assert event["args"] == {"c": "x", "d": float("inf")}


class TestTimes:
    @pytest.mark.parametrize(
        ("text", "nanoseconds"),
        [
            ("0", 0), ("1", 1000), ("1.5", 1500), ("4385709215978.313", 4385709215978313), ("0.0004", 0),
            ("0.0005", 1), ("-0.0005", -1), ("-3.001", -3001), ("1e3", 1_000_000), ("1.25E-2", 13), ("5e-324", 0),
            ("9223372036854775.807", 2**63 - 1), ("-9223372036854775.808", -(2**63)),
            ("1.6e15", 1_600_000_000_000_000_000),
            ("0.99999999999999999999999999", 1000), ("000123.4", 123400),
            ("123456789012345.6784999999999999999", 123456789012345678),
        ],
    )  # fmt: skip
    def test_decimal_text_is_nanoseconds_exactly(self, text: str, nanoseconds: int) -> None:
        event = one(f'{{"ph":"X","ts":{text},"dur":"{text}"}}')
        assert (event["ts"], event["dur"], event["flags"]) == (nanoseconds, nanoseconds, TIME | DURATION)

    def test_any_number_of_three_decimals(self) -> None:
        rng = random.Random(1)
        for _ in range(300):
            number = rng.randrange(10 ** rng.randrange(1, 19))
            assert one(f'{{"ph":"X","ts":{number // 1000}.{number % 1000:03}}}')["ts"] == number

    @pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "null", "true", "[1]", '{"a":1}', '"x"', '""',
                             "1e400", "1e16",
                                      "9223372036854775.808", "-", "1.2.3", "0x10"])  # fmt: skip
    def test_what_is_no_time(self, text: str) -> None:
        event = one(f'{{"ph":"X","ts":{text},"dur":{text}}}')
        assert event["flags"] == BAD_TIME | BAD_DURATION


class TestTexts:
    @pytest.mark.parametrize(
        ("text", "meaning"),
        [
            (r"a\"b\\c\/d\b\f\n\r\t", 'a"b\\c/d\b\f\n\r\t'), (r"\u00e9\u6f22", "é漢"), (r"\ud83d\ude00", "😀"),
            (r"\ud83d", "\ufffd"), (r"\ude00x", "\ufffdx"), (r"\ud83d\u0041", "\ufffdA"), (r"\u0000", "\0"),
            (r"\x41", "\\x41"), (r"\u12", "\\u12"), ("\x01\ttab", "\x01\ttab"), ("a\0b", "a\0b"), ("é漢😀", "é漢😀"),
        ],
    )  # fmt: skip
    def test_escapes(self, text: str, meaning: str) -> None:
        scanner = scan(f'[{{"ph":"X","name":"{text}","args":{{"{text}":"{text}"}}}}]')
        event = told(scanner)[0]
        assert event["name"] == meaning
        assert event["args"] == {meaning: meaning}

    @pytest.mark.parametrize(
        "bad", [b"\xff", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\x80", b"\x80"]
    )
    def test_what_is_no_utf8_is_replaced(self, bad: bytes) -> None:
        data = b'[{"ph":"X","name":"a' + bad + b'b","args":{"k' + bad + b'":"' + bad + b'"}}]'
        event = told(scan(data))[0]
        assert event["name"] == "a" + "\ufffd" * len(bad) + "b"
        assert event["args"] == {"k" + "\ufffd" * len(bad): "\ufffd" * len(bad)}

    def test_words_that_json_does_not_have_become_texts(self) -> None:
        event = one('{"ph":"X","args":{"a":NaN,"b":-Infinity,"c":012,"d":True,"e":[None,1.],"f":true}}')
        assert event["args"] == {"a": "NaN", "b": "-Infinity", "c": "012", "d": "True", "e": ["None", "1."], "f": True}

    def test_texts_have_one_id_each(self) -> None:
        scanner = scan('[{"ph":"X","name":"a"},{"ph":"X","name":"\\u0061"},{"ph":"X","name":"b"},{"ph":"X","name":""}]')
        names = scanner.take()[-1][5].tolist()
        assert names[0] == names[1] != names[2]
        assert names[3] == 0

    def test_many_texts(self) -> None:
        scanner = scan("[" + ",".join(f'{{"ph":"X","name":"name {i}"}}' for i in range(20_000)) + "]")
        ids = scanner.take()[-1][5]
        assert len(set(ids.tolist())) == 20_000
        assert scanner.texts(ids)[12345] == b"name 12345"


EVENTS = [
    {"ph": "X", "cat": "kernel", "name": 'n"\u00e9\\', "pid": 1, "tid": "t", "ts": 5.25, "dur": 1,
    "args": {"a": [{"b": 1}], "s": "\u6f22"}},
    {"args": {}, "ph": "i", "ts": 7, "s": "g"},
    {"ph": "M", "name": "process_name", "args": {"name": "\U0001f600"}},
]  # fmt: skip


@pytest.mark.parametrize("outer", ['{{"k": [1], "traceEvents": {}, "z": "end"}}', "{}"])
@pytest.mark.parametrize("ascii_", [True, False])
class TestPieces:
    def text(self, outer: str, ascii_: bool) -> bytes:
        return outer.format(json.dumps(EVENTS * 3, ensure_ascii=ascii_, indent=1)).encode()

    def test_pieces_of_any_size_give_the_same(self, outer: str, ascii_: bool) -> None:
        data = self.text(outer, ascii_)
        whole = scan(data)
        expected = told(whole)
        for chunk in (1, 2, 3, 7, 50, 113):
            scanner = scan(data, chunk=chunk)
            assert told(scanner) == expected
            assert (scanner.others, scanner.ended, scanner.bytes) == (whole.others, "whole", len(data))

    def test_cut_anywhere_all_events_before_are_there(self, outer: str, ascii_: bool) -> None:
        data = self.text(outer, ascii_)
        ends, whole = [], told(scan(data))
        for at in range(len(data)):
            scanner = scan(data[:at], chunk=64)
            events = told(scanner)
            assert events == whole[: len(events)]
            assert scanner.problems["truncated"] == (scanner.ended == "event")
            assert sum(scanner.problems.values()) == scanner.problems["truncated"]
            assert scanner.understood <= at
            assert scanner.ended != "whole" or len(events) == len(whole)
            ends.append(len(events))
        assert ends == sorted(ends)
        assert ends[-1] == len(whole)


class TestDamage:
    def test_what_is_no_json_at_all(self) -> None:
        for text in ("", "   ", "hello", "12", '"x"', "\0\0\0", "\x89CUTR"):
            assert scan(text).ended == "nothing"

    def test_the_next_event_is_found_behind_damage(self) -> None:
        good = '{"ph":"X","name":"good"}'
        for bad in (
            '{"ph":"X" "name":"a"}',
            '{"ph":"X","name":"a}',
            "{ph:1}",
            '{"ph":}',
            '{"ph":"X"]',
            "}",
            '{"a":{"b":[1,}',
            "@",
        ):
            scanner = scan(f"[{good},{bad},{good},{good}]")
            names = [event["name"] for event in told(scanner)]
            assert names[0] == names[-1] == "good"
            assert len(names) >= 2
            assert scanner.problems["syntax"] == 1

    def test_what_is_no_event_is_counted(self) -> None:
        scanner = scan('[1, "x", [2], null, {}, {"name":"a"}, {"ph":5}, {"ph":"XX"}, {"ph":"X"},]')
        assert len(told(scanner)) == 1
        assert scanner.problems["not_object"] == 4
        assert scanner.problems["no_phase"] == 3  # an empty object is no event
        assert scanner.ended == "whole"

    def test_deep_nesting_is_refused(self) -> None:
        deep = "[" * 100_000 + "]" * 100_000
        scanner = scan(f'[{{"ph":"X","args":{{"a":{deep}}}}},{{"ph":"X"}}]')
        assert scanner.problems["deep"] == 1
        assert len(told(scanner)) == 1
        assert one('{"ph":"X","args":{"a":' + "[" * 200 + "]" * 200 + "}}")["args"]

    def test_an_event_that_is_too_large(self) -> None:
        large = '{"ph":"X","args":{"a":"' + "x" * 50_000 + '"}}'
        for chunk in (1000, 4096, None):
            scanner = scan(f'[{{"ph":"X"}},{large},{{"ph":"i"}}]', largest=10_000, chunk=chunk)
            if chunk:
                assert scanner.problems["large"] == 1
            assert told(scanner)[-1]["ph"] == "i"

    def test_a_top_level_value_that_is_too_large(self) -> None:
        large = '["' + 'x\\"]}' * 20_000 + '", {"a": [1]}]'
        scanner = scan(f'{{"big": {large}, "traceEvents": [{{"ph":"X"}}], "z": 1}}', largest=10_000, chunk=1000)
        assert scanner.others == [(b"big", b""), (b"z", b"1")]
        assert len(told(scanner)) == 1

    def test_damage_in_the_outer_object(self) -> None:
        scanner = scan('{"a": tru e, "traceEvents": [{"ph":"X"}, {"ph":"i"}]}')
        assert [event["ph"] for event in told(scanner)] == ["X", "i"]
        assert scanner.problems["syntax"] == 1

    def test_events_that_are_no_array(self) -> None:
        assert not scan('{"traceEvents": {"ph":"X"}}').has_array
        assert not scan('{"other": [{"ph":"X"}]}').has_array

    @pytest.mark.parametrize("seed", range(20))
    def test_nothing_is_counted_twice_and_what_is_kept_is_json(self, seed: int) -> None:
        rng = random.Random(seed)
        data = bytearray(json.dumps({"x": 1, "traceEvents": EVENTS * 5}).encode())
        for _ in range(rng.choice((1, 3, 10))):
            at = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[at] = rng.choice(b'"{}[]:,\\\0x\xff')
            else:
                del data[at : at + rng.randrange(30)]
        one_by_one, whole = scan(bytes(data), chunk=1), scan(bytes(data))
        assert one_by_one.problems == whole.problems
        assert told(one_by_one) == told(whole)


@growth
@pytest.mark.parametrize(
    "piece",
    [
        '{"ph":"X","name":"a"},',
        "{",
        '{"a":',
        '{"a":"',
        "[",
        '"',
        '{"ph":"X","args":{"a":[',
        "}",
        '{"a":[1,',
        "{}",
        "x",
        '{"a":{"ph":',
    ],
)
def test_time_is_linear(piece: str) -> None:
    def work(size: int) -> Callable[[], object]:
        data = ("[" + piece * (size // len(piece))).encode()
        return lambda: scan(data, chunk=1 << 16, largest=1 << 18)

    grows_with(400_000, work)


def test_arguments_of_the_calls_are_checked() -> None:
    with pytest.raises(ValueError, match="wanted type"):
        EventScanner([], [("a", 9)], "w")
    scanner = EventScanner([], [], "w")
    with pytest.raises(TypeError, match="incompatible"):
        scanner.feed(np.zeros(4, np.uint32)[::2])
    with pytest.raises(IndexError):
        scanner.texts(np.array([77], np.uint32))
    scanner.finish()
    scanner.finish()
    assert scanner.ended == "nothing"
