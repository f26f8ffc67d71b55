// Time by path of nested ranges: the GPU work launched in them, and the time of their threads.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/column.h"
#include "common/table.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

class PathTimes {
 public:
  // Marks labels of work, which are leaves of the tree.
  static constexpr std::uint32_t kWork = 1u << 31;
  struct Node {
    std::uint32_t parent = 0, label = 0;
    std::uint64_t operations = 0, gpu = 0, cpu = 0;
  };

  // A thread with ranges that adopt work, and the domains of these ranges.
  using Adopter = std::pair<std::uint32_t, std::vector<std::uint32_t>>;

  void add_ranges(Column<std::uint32_t> threads, Column<std::int64_t> starts, Column<std::int64_t> ends,
                  Column<std::uint32_t> labels, std::optional<Column<std::uint32_t>> domains,
                  std::optional<Column<std::uint16_t>> levels) {
    need_rows(starts.size, threads, ends, labels);
    if (domains) need_rows(starts.size, *domains);
    if (levels) need_rows(starts.size, *levels);
    nb::gil_scoped_release release;
    std::vector<std::size_t> order(starts.size);
    std::iota(order.begin(), order.end(), 0);
    // If ranges have the same start, the longest range encloses the others. Of equal times, the level decides.
    const auto earlier = [&](std::size_t a, std::size_t b) {
      if (starts[a] != starts[b]) return starts[a] < starts[b];
      if (ends[a] != ends[b]) return ends[a] > ends[b];
      return levels && (*levels)[a] < (*levels)[b];
    };
    if (!std::is_sorted(order.begin(), order.end(), earlier)) std::stable_sort(order.begin(), order.end(), earlier);
    for (const std::size_t row : order) {
      Thread& thread = threads_[threads[row]];
      advance(thread, starts[row]);
      if (thread.open.size() == kDeepest) continue;
      open(thread, {.end = ends[row], .label = labels[row], .domain = domains ? (*domains)[row] : 0});
      thread.points.push_back({thread.now, thread.stack()});
    }
  }

  void add_work(Column<std::uint32_t> threads, Column<std::int64_t> called, Column<bool> known,
                Column<std::uint32_t> labels, Column<std::int64_t> times, std::optional<Column<std::uint32_t>> created,
                const std::vector<std::vector<std::uint32_t>>& creations, std::optional<Column<std::uint32_t>> owners,
                const std::vector<std::vector<Adopter>>& adopters) {
    if (owners) need_rows(times.size, *owners);
    need_rows(times.size, threads, called, known, labels);
    if (created) need_rows(times.size, *created);
    nb::gil_scoped_release release;
    std::vector<std::uint64_t> firsts;  // the number of the first adopter of each owner; 0 stands for the own thread
    std::uint64_t parts = 1;
    for (const std::vector<Adopter>& of_owner : adopters) {
      firsts.push_back(parts);
      parts += of_owner.size();
    }
    for (std::size_t row = 0; row < times.size; ++row) {
      std::uint32_t node = 0;
      if (known[row]) {
        const std::uint32_t own = stack_of(threads[row], called[row]);
        if (owners) {
          const std::uint32_t owner = (*owners)[row];
          if (owner >= adopters.size()) throw std::out_of_range("no adopters have this number");
          std::uint64_t part = firsts[owner];
          for (const auto& [thread, domains] : adopters[owner])
            node = below(node, stack_of(thread, called[row]), part++, &domains);
        }
        node = below(node, own, 0, nullptr);
      }
      if (created) node = inside(node, (*created)[row], creations);
      Node& leaf = nodes_[child(node, labels[row] | kWork)];
      ++leaf.operations;
      leaf.gpu += static_cast<std::uint64_t>(times[row]);
    }
  }

  void forget(std::int64_t until) {
    for (std::size_t i = 0; i < threads_.entries().size(); ++i) {
      Thread& thread = threads_.at(i);
      const auto later = std::upper_bound(thread.points.begin(), thread.points.end(), until,
                                          [](std::int64_t t, const Point& point) { return t < point.time; });
      if (later - thread.points.begin() <= 2 * kKept) continue;
      thread.points.erase(thread.points.begin(), later - kKept);
      thread.latest = 0;
    }
  }

  void finish(std::int64_t end) {
    for (std::size_t i = 0; i < threads_.entries().size(); ++i) advance(threads_.at(i), end);
    threads_ = {};
    stacks_ = std::vector<Stack>(1);
    stack_numbers_ = {};
    adopted_ = {};
  }

  nb::list nodes() const {
    nb::list out;
    for (const Node& node : nodes_) out.append(nb::make_tuple(node.parent, node.label, node.operations, node.gpu, node.cpu));
    return out;
  }

 private:
  // Limits for captures with ranges that overlap without nesting, because each overlap makes a deeper or a new path.
  static constexpr std::size_t kDeepest = 256;
  static constexpr unsigned kNodeBits = 17;
  static constexpr std::size_t kMostNodes = 1 << kNodeBits;
  // The number of kept changes of a thread: the starts and ends of 131,072 ranges, and of the deepest nest.
  static constexpr std::ptrdiff_t kKept = (1 << 18) + 2 * kDeepest;

  // Nested ranges of a thread: the label and domain of the innermost one, the number of the stack around it, and the path.
  struct Stack {
    std::uint32_t parent = 0, label = 0, domain = 0, node = 0;
  };
  struct Open {
    std::int64_t end;
    std::uint32_t label, domain;
    std::uint32_t stack = 0;
  };
  // From a time on, the open ranges of a thread.
  struct Point {
    std::int64_t time;
    std::uint32_t stack;
  };
  struct Thread {
    std::vector<Open> open;  // outermost first
    std::vector<Point> points;
    std::size_t latest = 0;  // the point of the previous search
    std::int64_t now = 0;

    std::uint32_t stack() const { return open.empty() ? 0 : open.back().stack; }
  };

  // Opens a range inside the open ones.
  void open(Thread& thread, Open range) {
    range.stack = inner(thread.stack(), range.label, range.domain);
    thread.open.push_back(range);
  }

  // Like child(), for stacks.
  std::uint32_t inner(std::uint32_t parent, std::uint32_t label, std::uint32_t domain) {
    const auto same = [&](std::uint32_t number) {
      const Stack& stack = stacks_[number + 1];
      return stack.parent == parent && stack.label == label && stack.domain == domain;
    };
    const std::uint64_t key[] = {std::uint64_t{parent} << 32 | label, domain};
    const std::uint64_t hash = hash_of(key, std::integral_constant<std::size_t, 2>());
    if (stacks_.size() >= kMostNodes) {
      const std::uint32_t number = stack_numbers_.find(hash, same);
      return number == Table::kNone ? parent : number + 1;
    }
    const auto keep = [&] { stacks_.push_back({parent, label, domain, child(stacks_[parent].node, label)}); };
    return stack_numbers_.add(hash, same, keep) + 1;
  }

  // Beyond the limit, times count towards the parent.
  std::uint32_t child(std::uint32_t parent, std::uint32_t label) {
    const auto same = [&](std::uint32_t number) {
      return nodes_[number + 1].parent == parent && nodes_[number + 1].label == label;
    };
    const std::uint64_t hash = hash_of(std::uint64_t{parent} << 32 | label);
    if (nodes_.size() >= kMostNodes) {
      const std::uint32_t number = numbers_.find(hash, same);
      return number == Table::kNone ? parent : number + 1;
    }
    return numbers_.add(hash, same, [&] { nodes_.push_back({parent, label}); }) + 1;
  }

  // The path of a graph node: the ranges of its creation, below the path of its launch. A range of the creation with the name of a
  // range around the launch is left out. The ranges around this range are left out, too.
  std::uint32_t inside(std::uint32_t launch, std::uint32_t created,
                       const std::vector<std::vector<std::uint32_t>>& creations) {
    if (created >= creations.size()) throw std::out_of_range("no creation has this number");
    const std::vector<std::uint32_t>& labels = creations[created];
    if (labels.empty()) return launch;
    const std::uint64_t key = std::uint64_t{launch} << 32 | created;
    if (const std::uint32_t* const known = created_.find(key)) return *known;
    std::size_t first = 0;
    for (std::uint32_t up = launch; up != 0; up = nodes_[up].parent)
      for (std::size_t i = labels.size(); i > first; --i)
        if (labels[i - 1] == nodes_[up].label) first = i;
    std::uint32_t node = launch;
    for (std::size_t i = first; i < labels.size(); ++i) node = child(node, labels[i]);
    if (created_.entries().size() < kMostNodes) created_[key] = node;
    return node;
  }

  // The path of a stack's ranges below another path: all ranges, or the ranges of some domains. `part` identifies these domains.
  std::uint32_t below(std::uint32_t path, std::uint32_t stack, std::uint64_t part, const std::vector<std::uint32_t>* domains) {
    if (stack == 0) return path;
    if (path == 0 && domains == nullptr) return stacks_[stack].node;
    const std::uint64_t key = part << 2 * kNodeBits | std::uint64_t{path} << kNodeBits | stack;
    if (const std::uint32_t* const known = adopted_.find(key)) return *known;
    std::vector<std::uint32_t> labels;
    for (std::uint32_t up = stack; up != 0; up = stacks_[up].parent)
      if (domains == nullptr || std::find(domains->begin(), domains->end(), stacks_[up].domain) != domains->end())
        labels.push_back(stacks_[up].label);
    std::uint32_t node = path;
    for (auto label = labels.rbegin(); label != labels.rend(); ++label) node = child(node, *label);
    if (adopted_.entries().size() < kMostNodes) adopted_[key] = node;
    return node;
  }

  // Ends the ranges of a thread up to a time.
  void advance(Thread& thread, std::int64_t until) {
    while (!thread.open.empty()) {
      std::int64_t end = thread.open.back().end;
      for (const Open& one : thread.open) end = std::min(end, one.end);
      if (end > until) break;
      spend(thread, end);
      // A range inside the ended one may continue, if they only overlap.
      const auto is_over = [end](const Open& one) { return one.end <= end; };
      const auto first = std::find_if(thread.open.begin(), thread.open.end(), is_over);
      const std::vector<Open> inside(first + 1, thread.open.end());
      thread.open.erase(first, thread.open.end());
      for (const Open& one : inside)
        if (!is_over(one)) open(thread, one);
      thread.points.push_back({thread.now, thread.stack()});
    }
    spend(thread, until);
  }

  void spend(Thread& thread, std::int64_t until) {
    if (until <= thread.now) return;
    if (!thread.open.empty()) nodes_[stacks_[thread.stack()].node].cpu += static_cast<std::uint64_t>(until - thread.now);
    thread.now = until;
  }

  // The open ranges of a thread at a time.
  std::uint32_t stack_of(std::uint32_t number, std::int64_t time) {
    Thread& thread = threads_[number];
    if (time >= thread.now) advance(thread, time);  // ranges that end at this time do not contain it
    const std::vector<Point>& points = thread.points;
    const auto at = [&](std::size_t i) {
      return i < points.size() && points[i].time <= time && (i + 1 == points.size() || points[i + 1].time > time);
    };
    if (!at(thread.latest)) {
      const auto next = std::upper_bound(points.begin(), points.end(), time,
                                         [](std::int64_t t, const Point& point) { return t < point.time; });
      if (next == points.begin()) return 0;
      thread.latest = static_cast<std::size_t>(next - points.begin()) - 1;
    }
    return points[thread.latest].stack;
  }

  std::vector<Node> nodes_ = std::vector<Node>(1);  // the first one is the root
  Table numbers_;                                   // of all nodes except the root
  Map<Thread> threads_;
  // The stacks of the process.
  std::vector<Stack> stacks_ = std::vector<Stack>(1);  // the first one is empty
  Table stack_numbers_;                                // of the others
  Map<std::uint32_t> adopted_;                         // results of below() by its arguments
  Map<std::uint32_t> created_;  // results of inside() by the node of the launch and the number of the creation
};

}  // namespace

void bind_path_times(nb::module_& m) {
  nb::class_<PathTimes> times(m, "PathTimes", "Time by path of nested ranges: of GPU work, and of threads.");
  times.attr("WORK") = PathTimes::kWork;
  times.def(nb::init<>())
      .def("add_ranges", &PathTimes::add_ranges, nb::arg("threads"), nb::arg("starts"), nb::arg("ends"), nb::arg("labels"),
           nb::arg("domains") = nb::none(), nb::arg("levels") = nb::none(),
           "Add ranges (ns), and the numbers of their domains and their levels, by default 0. Of ranges with equal\n"
           "times, the outer range has the lower level. No range starts before a range of an earlier call, or before the launch\n"
           "of earlier work.")
      .def("add_work", &PathTimes::add_work, nb::arg("threads"), nb::arg("called"), nb::arg("known"), nb::arg("labels"),
           nb::arg("times"), nb::arg("created") = nb::none(), nb::arg("creations") = nb::list(),
           nb::arg("owners") = nb::none(), nb::arg("adopters") = nb::list(),
           "Add work with its GPU time and the start of its launching call (ns), if known. The ranges that start before these\n"
           "calls were added. Work is in the ranges of its own thread, and these are in the ranges that adopt them. ``adopters``\n"
           "has lists of (thread, domains), outermost first; each later call of a process may add lists. ``owners`` has the index\n"
           "of a list for each row. ``creations`` has the labels of the ranges around the creation of graph nodes, outermost\n"
           "first, the same at each call. ``created`` has the index of such an entry for each row. The ranges of the creation are\n"
           "below the ranges of the launch. The innermost one with the name of a range around the launch is left out, with all\n"
           "ranges around it.")
      .def("forget", &PathTimes::forget, nb::arg("until"),
           "Forget old ranges. All work that starts before this time (ns) was added. Later work is not found in a range that ended\n"
           "if more than 131,072 ranges of its thread end between its launch and this time.")
      .def("finish", &PathTimes::finish, nb::arg("end") = std::numeric_limits<std::int64_t>::max(),
           "End all ranges, at this time (ns) at the latest, before the ranges of another process follow.")
      .def("nodes", &PathTimes::nodes,
           "The tree: (parent, label, operations, GPU time, time of threads) of each path. Times are in ns and exclude longer\n"
           "paths. Node 0 is the root. Parents precede their children. Labels of work have the bit WORK.");
}

}  // namespace cutrace
