// EventScanner for Python: see events.h.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"
#include "import/events.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

using KeyTuple = std::tuple<std::string, unsigned>;
using RuleTuple = std::tuple<std::string, std::optional<std::string>, std::optional<std::string>, std::vector<KeyTuple>, bool>;

std::vector<WantedKey> wanted_keys(const std::vector<KeyTuple>& keys) {
  std::vector<WantedKey> out;
  for (const auto& [key, type] : keys) {
    if (type > static_cast<unsigned>(Wanted::kNothing)) throw std::invalid_argument("a wanted type is 0 to 4");
    out.push_back({key, static_cast<Wanted>(type)});
  }
  return out;
}

nb::object to_python(const EventScanner& scanner, const Id& id) {
  switch (id.kind) {
    case Id::kAbsent: return nb::none();
    case Id::kInteger: return nb::int_(id.value);
    default: return to_bytes(scanner.texts()[static_cast<std::uint32_t>(id.value)]);
  }
}

nb::tuple group_to_python(Group&& group) {
  nb::list columns;
  for (Sparse& column : group.columns)
    columns.append(nb::make_tuple(to_array(std::move(column.rows)), to_array(std::move(column.values))));
  return nb::make_tuple(
      to_array(std::move(group.phases)), to_array(std::move(group.flags)), to_array(std::move(group.times)),
      to_array(std::move(group.durations)), to_array(std::move(group.threads)), to_array(std::move(group.names)),
      to_array(std::move(group.categories)), to_array(std::move(group.arguments)), columns,
      nb::make_tuple(to_array(std::move(group.number_rows)), to_array(std::move(group.number_keys)), to_array(std::move(group.numbers))));
}

constexpr const char* kProblems[] = {"syntax", "deep", "large", "not_object", "no_phase", "truncated"};
constexpr const char* kEnds[] = {"", "whole", "array", "event", "object", "damage", "nothing"};

}  // namespace

void bind_events(nb::module_& m) {
  nb::class_<EventScanner>(m, "EventScanner", "Trace events of JSON files, as columns; see events.h.")
      .def(nb::new_([](const std::vector<RuleTuple>& rules, const std::vector<KeyTuple>& keys, std::string wrap,
                       std::size_t largest) {
             std::vector<Rule> made;
             for (const auto& [phases, category, name, arguments, numbers] : rules)
               made.push_back({phases, category, name, wanted_keys(arguments), numbers});
             return new EventScanner(made, wanted_keys(keys), std::move(wrap), largest);
           }),
           nb::arg("rules"), nb::arg("keys"), nb::arg("wrap"), nb::arg("largest") = EventScanner::kLargest)
      .def("feed",
           [](EventScanner& self, Bytes bytes) { self.feed(reinterpret_cast<const char*>(bytes.data), bytes.size); },
           nb::arg("data"), nb::call_guard<nb::gil_scoped_release>(), "Read more of the file.")
      .def("finish", &EventScanner::finish, nb::call_guard<nb::gil_scoped_release>(), "Read the rest: the file ends here.")
      .def("take",
           [](EventScanner& self) {
             nb::list out;
             for (Group& group : self.take()) out.append(group_to_python(std::move(group)));
             return out;
           },
           "The events since the last call, for the group of each rule, then for all other events: (phases, flags, times,\n"
           "durations, threads, names, categories, arguments, columns as (rows, bits), numbers as (rows, keys, values)).")
      .def("texts",
           [](const EventScanner& self, const AnyColumn& ids) {
             nb::list out;
             for (std::size_t i = 0; i < ids.size; ++i) {
               if (ids[i] >= self.texts().size()) throw std::out_of_range("no string has this id");
               out.append(to_bytes(self.texts()[static_cast<std::uint32_t>(ids[i])]));
             }
             return out;
           },
           nb::arg("ids"), "The strings with these ids, as UTF-8.")
      .def("text_id",
           [](EventScanner& self, nb::bytes text) { return self.text_id({text.c_str(), text.size()}); },
           nb::arg("text"), "The id of any string (UTF-8), also of strings that are not in the file.")
      .def("threads",
           [](const EventScanner& self, std::size_t first) {
             nb::list out;
             for (std::size_t i = first; i < self.threads().size(); ++i) {
               const ThreadId& thread = self.threads()[i];
               out.append(nb::make_tuple(to_python(self, thread.process), to_python(self, thread.thread)));
             }
             return out;
           },
           nb::arg("first") = 0, "(pid, tid) of the threads from `first` on: int, bytes, or None for an event without one.")
      .def_prop_ro("pending", &EventScanner::pending, "The number of events that take() would return.")
      .def_prop_ro("others",
                   [](const EventScanner& self) {
                     nb::list out;
                     for (const auto& [key, value] : self.others()) out.append(nb::make_tuple(to_bytes(key), to_bytes(value)));
                     return out;
                   },
                   "Other keys of the outer object with the JSON of their values. The JSON is empty for a value that is too\n"
                   "large.")
      .def_prop_ro("has_array", &EventScanner::has_array, "Whether the file has an array of events.")
      .def_prop_ro("problems",
                   [](const EventScanner& self) {
                     nb::dict out;
                     for (std::size_t i = 0; i < self.problems().size(); ++i) out[kProblems[i]] = self.problems()[i];
                     return out;
                   },
                   "The number of unreadable events, by reason.")
      .def_prop_ro("ended", [](const EventScanner& self) { return kEnds[static_cast<std::size_t>(self.ended())]; },
                   "Where the file ended: whole, or inside the array, an event, the object or damage. Nothing if the file is not\n"
                   "JSON.")
      .def_prop_ro("understood", &EventScanner::understood, "Bytes up to the end of the last event that was read.")
      .def_prop_ro("bytes", &EventScanner::bytes, "The number of fed bytes.");
}

}  // namespace cutrace
