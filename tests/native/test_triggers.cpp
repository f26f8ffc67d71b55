// Conditions for dumps: their syntax, the times when they become true, and the times of due dumps.
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "collector/core/pool.h"
#include "collector/features/triggers/triggers.h"

using namespace cutrace;

namespace {

constexpr std::uint64_t kMs = 1'000'000, kSecond = 1000 * kMs;
constexpr std::uint64_t kBegin = 1000 * kSecond;

// Triggers of a recording that keeps ten seconds, and names of ranges with the ids of the capture.
struct Watch {
  explicit Watch(const std::vector<std::string>& conditions, std::uint64_t limit = 5, std::uint64_t pause = 30 * kSecond,
                 std::uint64_t kept = 10 * kSecond)
      : triggers(parsed(conditions), limit, pause, kept) {}
  static std::vector<Condition> parsed(const std::vector<std::string>& texts) {
    std::vector<Condition> conditions;
    for (const std::string& text : texts) {
      const auto condition = parse_condition(text);
      if (!condition) check::failed(__FILE__, __LINE__, text.c_str());
      conditions.push_back(*condition);
    }
    return conditions;
  }
  void range(const std::string& name, std::uint64_t start, std::uint64_t took, const std::string& domain = "", bool open = false) {
    rows::NvtxRanges row;
    row.start = start;
    row.end = start + took;
    row.thread = 7;
    row.name = id(name);
    row.domain = domain.empty() ? 0 : id(domain);
    triggers.look_at(row, open, domain, name, fired[name]);
    if (!open) fired.erase(name);
  }
  std::uint32_t id(const std::string& text) { return ids.try_emplace(text, static_cast<std::uint32_t>(ids.size() + 1)).first->second; }
  // The reasons of the dump that is due at this time; none if no dump is due. The dump is written.
  std::vector<std::string> dump(std::uint64_t now, bool written = true) {
    if (!triggers.due(now)) return {};
    const auto reasons = triggers.begin_dump();
    triggers.end_dump(written);
    return reasons;
  }
  Triggers triggers;
  std::map<std::string, std::uint32_t> ids;
  std::map<std::string, std::vector<std::uint32_t>> fired;
};

void check_text(const std::vector<std::string>& texts, const std::string& only) {
  CHECK_EQUAL(texts.size(), std::size_t{1});
  CHECK_EQUAL(texts[0], only);
}

// All records before `until` have arrived, as late as the triggers wait.
void settle(Triggers& triggers, std::uint64_t until) { triggers.settle(until, until + 2500 * kMs); }

}  // namespace

TEST(conditions_are_read) {
  const auto limit = [](const char* text) { return parse_condition(text).value_or(Condition{}).limit; };
  CHECK_EQUAL(limit("nvtx:step > 1.5s"), 1500 * kMs);
  CHECK_EQUAL(limit(" nvtx: a > b>2 M "), 120 * kSecond);
  CHECK_EQUAL(parse_condition("nvtx: a > b>2 M")->name, std::string("a > b"));
  CHECK_EQUAL(limit("nvtx:x > .5"), 500 * kMs);
  CHECK_EQUAL(limit("nvtx:x > 30\xC2\xB5s"), std::uint64_t{30'000});
  CHECK_EQUAL(limit("gpu \t idle>500ms"), 500 * kMs);
  CHECK_EQUAL(limit("memory > 1.5 GiB"), std::uint64_t{3} << 29);
  CHECK_EQUAL(limit("memory > 2GB"), std::uint64_t{2'000'000'000});
  CHECK_EQUAL(limit("memory > 5k"), std::uint64_t{5120});
  const auto median = parse_condition("nvtx:step > 2.5x median");
  CHECK(median && median->kind == Condition::Kind::median && median->factor == 2.5 && median->name == "step");
  CHECK(parse_condition("nvtx:median > 3 x  median")->kind == Condition::Kind::median);
  for (const char* bad : {"", "nvtx:step", "nvtx:step >", "nvtx: > 1s", "nvtx:step > 1 fortnight", "nvtx:step > 3x", "nvtx:step > 3 median",
                          "nvtx:step > 0.5x median", "nvtx:step > -1s", "nvtx:step > 1e3s", "nvtx:step > 0s", "nvtx:step > 1..5s",
                          "nvtx:step > .s", "gpu idle > 3x median", "gpu > 1s", "memory > 70GiBs", "memory > 0",
                          "memory > 9000TiB", "nvtx:step > 9000000h", "power > 5", "nvtx:step < 1s",
                          "nvtx:step > 3x medians", "NVTX:step > 1s", "> 1s", "gpuidle > 1s", "memory > 1s"})
    if (parse_condition(bad)) check::failed(__FILE__, __LINE__, bad);
}

TEST(names_are_patterns) {
  CHECK(matches("step", "step") && !matches("step", "steps") && !matches("step", "ste"));
  CHECK(matches("*", "") && matches("st*p", "stp") && matches("st*p", "stopp") && matches("*a*b*", "xaxbx") && !matches("*a*b", "abc"));
  CHECK(matches("step ?", "step 7") && !matches("step ?", "step 77") && matches("", "") && !matches("", "a"));
  CHECK(!matches(std::string(30, '*') + "b", std::string(100'000, 'a')));  // in a moment
  Watch watch({"nvtx:my*:step > 1ms"});
  watch.range("step", kBegin, 2 * kMs, "other");
  watch.range("step", kBegin, 2 * kMs);
  CHECK_EQUAL(watch.triggers.moment(), std::uint64_t{0});
  watch.range("step", kBegin, 2 * kMs, "mydomain");
  CHECK_EQUAL(watch.triggers.moment(), kBegin + 2 * kMs);
  Watch any({"nvtx:step > 1ms"});
  any.range("step", kBegin, 2 * kMs, "other");  // a name without a domain matches every domain
  CHECK(any.triggers.moment() != 0);
}

TEST(one_slow_step_in_a_thousand_is_dumped_once_with_the_next) {
  Watch watch({"nvtx:step > 100ms"});
  std::uint64_t now = kBegin;
  std::vector<std::string> reasons;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t took = i == 500 ? 150 * kMs : 10 * kMs;
    watch.range("step", now, took);
    watch.range("other", now, kSecond);
    now += took;
    if (const auto more = watch.dump(now); !more.empty()) {
      CHECK(now >= kBegin + 5150 * kMs + 2500 * kMs);  // a quarter of the ten seconds after it
      CHECK(now < kBegin + 5150 * kMs + 2520 * kMs);
      reasons.insert(reasons.end(), more.begin(), more.end());
    }
  }
  check_text(reasons, "step took 150.00 ms (nvtx:step > 100ms)");
  const auto marks = watch.triggers.take_marks();
  CHECK_EQUAL(marks.size(), std::size_t{1});
  CHECK(marks[0].time == kBegin + 5150 * kMs && marks[0].thread == 7 && marks[0].text == "dump: " + reasons[0]);
  CHECK(watch.triggers.take_marks().empty() && watch.triggers.notes(true).empty());
}

TEST(a_dump_waits_for_the_next_range_but_not_for_ever) {
  Watch watch({"nvtx:step > 1s"});
  watch.range("step", kBegin, 2 * kSecond);
  const std::uint64_t end = kBegin + 2 * kSecond;
  CHECK(!watch.triggers.due(end + 3 * kSecond));
  watch.range("step", end - 100 * kMs, 200 * kMs);  // of another thread, begun before
  CHECK(!watch.triggers.due(end + 3 * kSecond));
  watch.range("step", end, 200 * kMs);
  CHECK(watch.triggers.due(end + 3 * kSecond) && !watch.triggers.due(end + 2 * kSecond));
  Watch last({"nvtx:step > 1s"});
  last.range("step", kBegin, 2 * kSecond);
  CHECK(!last.triggers.due(end + 4999 * kMs) && last.triggers.due(end + 5 * kSecond));
  Watch ending({"nvtx:step > 1s"});
  ending.range("step", kBegin, 2 * kSecond);
  ending.triggers.finish(kBegin + 60 * kSecond);
  CHECK(ending.triggers.due(end));
}

TEST(a_median_is_that_of_the_ranges_before) {
  RecentMedian recent;
  for (std::uint64_t i = 1; i <= 5; ++i) recent.add(i);
  CHECK_EQUAL(recent.median(), std::uint64_t{3});
  for (std::uint64_t i = 0; i < 1000; ++i) recent.add(i % 101 + 1000);
  CHECK_EQUAL(recent.median(), std::uint64_t{1050});
  CHECK_EQUAL(recent.size(), std::size_t{101});
  Watch watch({"nvtx:step > 3x median"});
  for (std::uint64_t i = 0; i < 9; ++i) watch.range("step", kBegin + i, 10 * kMs);
  watch.range("step", kBegin, 31 * kMs);  // nine are too few
  CHECK_EQUAL(watch.triggers.moment(), std::uint64_t{0});
  watch.range("step", kBegin, 30 * kMs);  // less than three times the median
  CHECK_EQUAL(watch.triggers.moment(), std::uint64_t{0});
  watch.range("step", kBegin, 31 * kMs);
  check_text(watch.dump(kBegin + 10 * kSecond), "step took 31.00 ms, the median is 10.00 ms (nvtx:step > 3x median)");
  Watch few({"nvtx:step > 3x median"});
  few.range("step", kBegin, kMs);
  check_text(few.triggers.notes(true), "the dump condition 'nvtx:step > 3x median' needs 10 ranges for a median and saw 1");
}

TEST(idle_times_are_between_work_in_any_order) {
  Watch watch({"gpu idle > 500ms"});
  Triggers& t = watch.triggers;
  t.worked(0, 0, kBegin + 700 * kMs, kBegin + 710 * kMs);
  t.worked(0, 0, kBegin, kBegin + 10 * kMs);  // a late buffer
  t.worked(1, 0, kBegin + 900 * kMs, kBegin + 910 * kMs);  // the first of its device
  settle(t, kBegin + 600 * kMs);
  CHECK_EQUAL(t.moment(), std::uint64_t{0});  // work could have started before 700 ms
  settle(t, kBegin + 701 * kMs);
  CHECK_EQUAL(t.moment(), kBegin + 700 * kMs);
  check_text(watch.dump(kBegin + 10 * kSecond), "GPU 0 was idle for 690.00 ms (gpu idle > 500ms)");
  // Other streams fill the gap, from its edges or completely.
  Watch filled({"gpu idle > 500ms"}, 5, kSecond, 1000 * kSecond);
  std::mt19937_64 random(1);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> work;
  for (std::uint64_t at = 0; at < 100; ++at) work.emplace_back(kBegin + at * 400 * kMs, kBegin + at * 400 * kMs + kMs);
  work.emplace_back(kBegin + 39'600 * kMs, kBegin + 45'000 * kMs);  // long
  work.emplace_back(kBegin + 45'400 * kMs, kBegin + 45'500 * kMs);
  std::shuffle(work.begin(), work.end(), random);
  for (const auto& [start, end] : work) filled.triggers.worked(3, 0, start, end);
  filled.triggers.finish(kBegin + 60 * kSecond);
  CHECK_EQUAL(filled.triggers.moment(), std::uint64_t{0});
}

TEST(work_that_was_launched_may_be_running) {
  Watch watch({"gpu idle > 500ms"});
  Triggers& t = watch.triggers;
  t.worked(0, 1, kBegin, kBegin + kMs);
  t.launched(2, kBegin + 2 * kMs);
  t.launched(1, kBegin);  // its work came before the launch
  t.worked(0, 3, kBegin + 800 * kMs, kBegin + 801 * kMs);
  settle(t, kBegin + 9 * kSecond);
  t.worked(0, 2, kBegin + 3 * kMs, kBegin + 8 * kSecond);
  settle(t, kBegin + 9 * kSecond);
  CHECK_EQUAL(t.moment(), std::uint64_t{0});
}

TEST(work_that_takes_long_is_no_idle_time) {
  Watch watch({"gpu idle > 500ms"}, 5, kSecond, 200 * kSecond);
  Triggers& t = watch.triggers;
  t.worked(0, 1, kBegin, kBegin + kMs);
  t.launched(2, kBegin + 2 * kMs);  // two minutes of work
  for (std::uint64_t s = 1; s < 120; ++s) {
    t.launched(std::uint32_t(2 + s), kBegin + s * kSecond);  // beside it, on another stream
    t.worked(0, std::uint32_t(2 + s), kBegin + s * kSecond, kBegin + s * kSecond + kMs);
    t.settle(kBegin + s * kSecond + 2 * kMs, kBegin + s * kSecond + 2 * kMs);
  }
  t.worked(0, 2, kBegin + 3 * kMs, kBegin + 120 * kSecond);
  t.settle(kBegin + 150 * kSecond, kBegin + 150 * kSecond);
  CHECK_EQUAL(t.moment(), std::uint64_t{0});
}

TEST(a_captured_launch_is_waited_for_for_a_minute) {
  const auto fires = [](std::uint64_t after, const Triggers::Captures& captures) {
    Watch watch({"gpu idle > 500ms"});
    Triggers& t = watch.triggers;
    t.launched(4, kBegin + 9 * kSecond);
    t.worked(0, 5, kBegin + 65 * kSecond, kBegin + 66 * kSecond);
    t.worked(0, 6, kBegin + 67 * kSecond, kBegin + 68 * kSecond);
    t.settle(kBegin + after, kBegin + after, captures);
    return t.moment() == kBegin + 67 * kSecond;
  };
  const std::uint64_t began = kBegin + 8 * kSecond;
  CHECK(!fires(68 * kSecond, {{began, began + 2 * kSecond}}));
  CHECK(fires(76 * kSecond, {{1, 2}, {began, began + 2 * kSecond}}));
  CHECK(fires(76 * kSecond, {{began, 0}}));  // it is captured still
  CHECK(!fires(76 * kSecond, {{began, began + kMs}, {kBegin + 10 * kSecond, 0}}));
}

TEST(idle_times_beside_launches_without_a_report_are_told_at_the_end) {
  const auto notes = [](const Triggers::Captures& captures) {
    Watch watch({"gpu idle > 500ms"});
    watch.triggers.launched(4, kBegin);
    watch.triggers.worked(0, 5, kBegin + kMs, kBegin + 2 * kMs);
    watch.triggers.worked(0, 6, kBegin + kSecond, kBegin + 2 * kSecond);
    watch.triggers.finish(kBegin + 3 * kSecond, captures);
    return std::make_pair(watch.triggers.moment() != 0, watch.triggers.notes(true));
  };
  const auto [fired, told] = notes({});
  CHECK(!fired);
  check_text(told, "the dump condition 'gpu idle > 500ms' does not know the idle times after the first of 1 launches whose work was not reported");
  CHECK(notes({{kBegin - 1, kBegin + 1}}) == std::make_pair(true, std::vector<std::string>()));
}

TEST(a_range_that_hangs_is_dumped_once) {
  Watch watch({"nvtx:step > 1s", "nvtx:step > 3x median"});
  for (std::uint64_t i = 0; i < 10; ++i) watch.range("step", kBegin, 500 * kMs);
  const std::uint64_t start = kBegin + kSecond;
  watch.range("step", start, 6 * kSecond, "", true);  // half of the kept time after the limit
  CHECK_EQUAL(watch.triggers.moment(), std::uint64_t{0});
  watch.range("step", start, 6500 * kMs, "", true);
  CHECK_EQUAL(watch.triggers.moment(), start + 6500 * kMs);
  watch.range("step", start, 6600 * kMs, "", true);
  const auto reasons = watch.dump(start + 9 * kSecond);  // the trigger waits for no further range
  CHECK_EQUAL(reasons.size(), std::size_t{2});
  CHECK_EQUAL(reasons[0], std::string("step has not ended after 6.500 s (nvtx:step > 1s)"));
  CHECK_EQUAL(reasons[1], std::string("step has not ended after 6.600 s, the median is 500.00 ms (nvtx:step > 3x median)"));
  watch.range("step", start, 60 * kSecond, "", true);
  watch.range("step", start, 90 * kSecond);  // it does end
  CHECK_EQUAL(watch.triggers.moment(), std::uint64_t{0});
  CHECK(watch.triggers.notes(true).empty());
  watch.range("step", start + 100 * kSecond, 2 * kSecond);
  CHECK(watch.triggers.moment() != 0);
}

TEST(an_idle_time_that_no_dump_would_show_makes_none) {
  Watch watch({"gpu idle > 500ms"});
  watch.triggers.worked(0, 1, kBegin, kBegin + kMs);
  watch.triggers.worked(0, 2, kBegin + kSecond, kBegin + 2 * kSecond);
  watch.triggers.settle(kBegin + 20 * kSecond, kBegin + 20 * kSecond);
  CHECK_EQUAL(watch.triggers.moment(), std::uint64_t{0});
}

TEST(work_that_is_lost_is_no_idle_time) {
  Watch watch({"gpu idle > 500ms"});
  watch.triggers.worked(0, 0, kBegin, kBegin + kMs);
  watch.triggers.lose_work(kBegin + 900 * kMs);
  watch.triggers.worked(0, 0, kBegin + 2000 * kMs, kBegin + 2001 * kMs);
  settle(watch.triggers, kBegin + 3000 * kMs);
  CHECK_EQUAL(watch.triggers.moment(), std::uint64_t{0});
  watch.triggers.worked(0, 0, kBegin + 4000 * kMs, kBegin + 4001 * kMs);
  watch.triggers.worked(0, 0, kBegin + 2200 * kMs, kBegin + 2300 * kMs);
  watch.triggers.finish(kBegin + 5 * kSecond);
  CHECK_EQUAL(watch.triggers.moment(), kBegin + 4000 * kMs);
}

TEST(memory_fires_when_it_rises_over_the_size) {
  Watch watch({"memory > 10GiB"}, 5, 1);
  Triggers& t = watch.triggers;
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  t.memory_changed(0, kBegin + 2, -4 * kGiB);  // buffers of two threads, the later one comes first
  t.memory_changed(0, kBegin + 3, 6 * kGiB);
  t.memory_changed(0, kBegin + 1, 8 * kGiB);
  t.memory_changed(1, kBegin + 1, 9 * kGiB);
  settle(t, kBegin + 4);
  CHECK_EQUAL(t.moment(), std::uint64_t{0});
  t.memory_changed(0, kBegin + 5, kGiB);
  settle(t, kBegin + 5);
  CHECK_EQUAL(t.moment(), std::uint64_t{0});
  settle(t, kBegin + 6);
  check_text(watch.dump(kBegin + 10 * kSecond), "GPU 0 had 11.0 GiB in use (memory > 10GiB)");
  t.memory_changed(0, kBegin + 20 * kSecond, kGiB);  // still above
  settle(t, kBegin + 30 * kSecond);
  CHECK_EQUAL(t.moment(), std::uint64_t{0});
  t.memory_changed(0, kBegin + 31 * kSecond, -3 * kGiB);
  t.memory_changed(0, kBegin + 32 * kSecond, 3 * kGiB);
  settle(t, kBegin + 40 * kSecond);
  CHECK_EQUAL(t.moment(), kBegin + 32 * kSecond);
}

TEST(pauses_and_limits_are_counted) {
  Watch watch({"nvtx:step > 1s", "nvtx:load > 1s"}, 2, 30 * kSecond);
  std::uint64_t now = kBegin;
  std::vector<std::string> reasons;
  for (int i = 0; i < 60; ++i, now += 2 * kSecond) {  // two minutes
    watch.range("step", now, 2 * kSecond);
    if (i == 5) watch.range("load", now, 2 * kSecond);  // in the pause of the other
    for (const std::string& reason : watch.dump(now + 2 * kSecond)) reasons.push_back(reason);
  }
  CHECK_EQUAL(reasons.size(), std::size_t{3});
  CHECK_EQUAL(reasons[0], std::string("step took 2.000 s (nvtx:step > 1s)"));
  CHECK_EQUAL(reasons[1], std::string("load took 2.000 s (nvtx:load > 1s)"));
  CHECK_EQUAL(reasons[2], std::string("step took 2.000 s (nvtx:step > 1s), and 14 times since the dump before"));
  const auto notes = watch.triggers.notes(true);
  CHECK_EQUAL(notes.size(), std::size_t{2});
  CHECK_EQUAL(notes[0], std::string("the dump condition 'nvtx:step > 1s' was true 16 times in the pause after a dump (dump_pause)"));
  CHECK_EQUAL(notes[1], std::string("the dump condition 'nvtx:step > 1s' was true 42 times after its last dump (dump_limit)"));
}

TEST(several_reasons_make_one_dump) {
  Watch watch({"nvtx:step > 1s", "gpu idle > 500ms", "nvtx:s* > 2s"});
  watch.range("step", kBegin, 3 * kSecond);
  watch.triggers.worked(0, 0, kBegin, kBegin + 1);
  watch.triggers.worked(0, 0, kBegin + 3 * kSecond, kBegin + 3 * kSecond + 1);
  settle(watch.triggers, kBegin + 4 * kSecond);
  CHECK_EQUAL(watch.dump(kBegin + 20 * kSecond).size(), std::size_t{3});
  CHECK_EQUAL(watch.triggers.take_marks().size(), std::size_t{3});
}

TEST(a_dump_that_failed_does_not_count_but_pauses) {
  Watch watch({"nvtx:step > 1s"}, 1);
  watch.range("step", kBegin, 2 * kSecond);
  CHECK_EQUAL(watch.dump(kBegin + 20 * kSecond, false).size(), std::size_t{1});
  watch.range("step", kBegin + 20 * kSecond, 2 * kSecond);
  CHECK_EQUAL(watch.triggers.moment(), std::uint64_t{0});
  watch.range("step", kBegin + 60 * kSecond, 2 * kSecond);
  check_text(watch.dump(kBegin + 80 * kSecond), "step took 2.000 s (nvtx:step > 1s), and 1 time since the dump before");
  watch.range("step", kBegin + 200 * kSecond, 2 * kSecond);
  CHECK_EQUAL(watch.triggers.moment(), std::uint64_t{0});
}

TEST(a_moment_is_kept_until_its_dump_begins_and_others_wait_until_it_is_written) {
  Watch watch({"nvtx:step > 1s", "nvtx:load > 1s"});
  watch.range("step", kBegin, 2 * kSecond);
  CHECK(watch.triggers.due(kBegin + 20 * kSecond));
  CHECK_EQUAL(watch.triggers.moment(), kBegin + 2 * kSecond);
  watch.triggers.begin_dump();
  CHECK_EQUAL(watch.triggers.moment(), std::uint64_t{0});
  watch.range("load", kBegin + 20 * kSecond, 2 * kSecond);
  CHECK(!watch.triggers.due(kBegin + 60 * kSecond));
  watch.triggers.end_dump(true);
  CHECK_EQUAL(watch.triggers.moment(), kBegin + 22 * kSecond);
  check_text(watch.dump(kBegin + 60 * kSecond), "load took 2.000 s (nvtx:load > 1s)");
  CHECK_EQUAL(watch.triggers.moment(), std::uint64_t{0});
}

TEST(a_name_that_no_range_has_is_told) {
  Watch watch({"nvtx:stpe > 1s"});
  CHECK(watch.triggers.notes(false).empty());
  check_text(watch.triggers.notes(true),
             "no NVTX range was named 'stpe', so the dump condition 'nvtx:stpe > 1s' could not become true; names of ranges: none");
  for (int i = 0; i < 20; ++i) watch.range("step " + std::to_string(i % 10), kBegin, kMs, i < 10 ? "" : "d");
  const auto notes = watch.triggers.notes(true);
  CHECK(notes[0].ends_with("names of ranges: step 0, step 1, step 2, step 3, step 4, step 5, step 6, step 7, ..."));
}

TEST(a_day_of_a_hundred_triggers_needs_no_more_memory_than_a_minute) {
  std::vector<std::string> conditions;
  for (int i = 0; i < 30; ++i) {
    conditions.push_back("nvtx:step " + std::to_string(i) + " > 50ms");
    conditions.push_back("nvtx:*" + std::to_string(i) + " > 3x median");
    conditions.push_back("gpu idle > " + std::to_string(100 + i) + "ms");
  }
  for (int i = 0; i < 10; ++i) conditions.push_back("memory > " + std::to_string(i + 1) + "GiB");
  CHECK_EQUAL(conditions.size(), std::size_t{100});
  Watch watch(conditions, 1'000'000, 60 * kSecond);
  std::mt19937_64 random(2);
  std::uint64_t ranges = 0, dumps = 0;
  std::size_t largest = 0, after_a_minute = 0;
  std::uint32_t unique = 1'000'000;
#if defined(__SANITIZE_ADDRESS__)
  constexpr std::uint64_t kHours = 1;  // fills the tables
#else
  constexpr std::uint64_t kHours = 24;
#endif
  for (std::uint64_t now = kBegin; now < kBegin + kHours * 3600 * kSecond; now += 500 * kMs) {
    for (std::uint64_t i = 0; i < 12; ++i, ++ranges)
      watch.range("step " + std::to_string(random() % 40), now + i * 20 * kMs, random() % 1000 == 0 ? 60 * kMs : 10 * kMs + random() % kMs);
    rows::NvtxRanges row;  // a name of its own
    row.start = now;
    row.end = now + kMs;
    row.name = unique++;
    std::vector<std::uint32_t> fired;
    watch.triggers.look_at(row, false, "", "number " + std::to_string(unique), fired);
    for (std::uint32_t device = 0; device < 4; ++device)
      for (std::uint64_t i = 0; i < 2; ++i)
        if (random() % 500 != 0) watch.triggers.worked(device, 0, now + i * 20 * kMs, now + i * 20 * kMs + 5 * kMs);
    watch.triggers.memory_changed(0, now, static_cast<std::int64_t>(random() % (1 << 30)));
    watch.triggers.memory_changed(0, now + random() % kSecond, -static_cast<std::int64_t>(random() % (1 << 30)));
    watch.triggers.settle(now - 300 * kMs, now);
    dumps += watch.dump(now).empty() ? 0 : 1;
    watch.triggers.take_marks();
    largest = std::max(largest, watch.triggers.entries());
    if (now == kBegin + 60 * kSecond) after_a_minute = largest;
  }
  CHECK(ranges > kHours * 80'000 && dumps > 100);
  // Names fill a table of 4,096; durations come up to 30 times 101.
  CHECK(largest < 4096 + 31 * 101 + 300 && after_a_minute > 500 && largest > 4096);
}

TEST(unbounded_gaps_and_changes_are_given_up) {
  Watch watch({"gpu idle > 1ns", "memory > 8000TiB"});
  for (std::uint64_t i = 0; i < 200'000; ++i) {
    watch.triggers.worked(0, 0, kBegin + i * 10, kBegin + i * 10 + 1);
    watch.triggers.memory_changed(0, kBegin + i, 1);
  }
  CHECK(watch.triggers.entries() < 70'000);
}

int main(int argc, char** argv) { return check::main(argc, argv); }
