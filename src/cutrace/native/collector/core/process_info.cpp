#include "process_info.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <exception>
#include <memory>
#include <new>

#include "blocked_signals.h"
#include "clock.h"
#include "common/text.h"
#include "memory.h"
#include "rings.h"

#ifndef CUTRACE_VERSION
#define CUTRACE_VERSION "0"
#endif

namespace cutrace {
namespace {

std::string read_file(const char* path, std::size_t limit = 256 << 10) {
  std::string text;
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  std::array<char, 4096> chunk;
  for (ssize_t n = 0; text.size() < limit && (n = ::read(fd, chunk.data(), chunk.size())) > 0;)
    text.append(chunk.data(), static_cast<std::size_t>(n));
  ::close(fd);
  return text;
}

std::string line_of(const char* path) {
  std::string text = read_file(path);
  return text.substr(0, text.find('\n'));
}

std::string name_of_thread(std::uint32_t thread) {
  return line_of(("/proc/self/task/" + std::to_string(thread) + "/comm").c_str());
}

std::vector<std::string> command_line() {
  std::vector<std::string> arguments;
  const std::string text = read_file("/proc/self/cmdline");
  for (std::string_view rest = text; !rest.empty();) arguments.emplace_back(next_word(rest, std::string_view("\0", 1)));
  return arguments;
}

std::string executable() {
  std::array<char, PATH_MAX> path;
  const ssize_t n = ::readlink("/proc/self/exe", path.data(), path.size());
  return n > 0 ? std::string(path.data(), static_cast<std::size_t>(n)) : std::string();
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string();
}

// Launchers of jobs number processes with these variables. trace/process.py reads the rank, the local rank, the number of ranks
// and the job from them.
constexpr std::string_view kJobVariables[] = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALRANKID",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID", "LSB_JOBID"};

void add_variable(JsonObject& json, std::string_view variable) {
  const std::string_view name = next_word(variable, "=");
  if (std::ranges::find(kJobVariables, name) != std::end(kJobVariables)) json.text(name, variable);
}

// The variables of launchers, from the start of the process and from its present environment. A spawned worker, for example, sets
// its rank after its start. Another thread may be changing the variables, so unmapped memory counts as their end.
JsonObject job_variables() {
  JsonObject json;
  const std::string text = read_file("/proc/self/environ", 4 << 20);
  for (std::string_view rest = text; !rest.empty();) add_variable(json, next_word(rest, std::string_view("\0", 1)));
  const auto list = reinterpret_cast<std::uintptr_t>(environ);
  std::uintptr_t variable = 0;
  std::array<char, 256> start;  // launchers set shorter values
  for (std::size_t i = 0; list != 0 && i < 65536; ++i) {
    const auto size = static_cast<ssize_t>(sizeof(variable));
    if (try_read(list + i * sizeof(variable), &variable, sizeof(variable)) != size || variable == 0) break;
    const ssize_t got = try_read(variable, start.data(), start.size());
    if (got <= 0) continue;
    const std::string_view known(start.data(), static_cast<std::size_t>(got));
    if (const std::size_t end = known.find('\0'); end != known.npos) add_variable(json, known.substr(0, end));
  }
  return json;
}

std::atomic<ThreadNote*> thread_notes{nullptr};  // threads push, the writer takes all
std::atomic<std::uint32_t> recordings{0};
thread_local std::uint32_t noted_in = 0;  // number of the recording

}  // namespace

void JsonObject::text(std::string_view k, std::string_view value) { raw(k, json_quoted(value)); }
void JsonObject::number(std::string_view k, std::uint64_t value) { raw(k, std::to_string(value)); }
void JsonObject::raw(std::string_view k, std::string_view json) {
  for (auto& [key, value] : members_)
    if (key == k) return void(value = json);
  members_.emplace_back(k, json);
}
void JsonObject::merge(const JsonObject& other) {
  for (const auto& [key, value] : other.members_) raw(key, value);
}
std::string JsonObject::str() const {
  std::string body;
  for (const auto& [key, value] : members_) body += (body.empty() ? "" : ",") + json_quoted(key) + ':' + value;
  return '{' + body + '}';
}
void JsonObject::texts(std::string_view k, const std::vector<std::string>& values) {
  std::string list;
  for (const std::string& value : values) list += (list.empty() ? "" : ",") + json_quoted(value);
  raw(k, '[' + list + ']');
}

std::string release_of(std::string_view version) {
  // Returns the first word of digits and dots in a line such as "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64
  // 580.95.05 Release Build (...)". The other words depend on the driver.
  for (std::string_view line = next_word(version, "\n"); !line.empty();)
    if (const std::string_view word = next_word(line, " ");
        word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos)
      return std::string(word);
  return {};
}

std::string driver_release() { return release_of(read_file("/proc/driver/nvidia/version", 4096)); }

// Whether a value has a slash that belongs to a path and not to a fraction such as 1/100. redaction.py has the same rule.
static bool has_path(std::string_view value) {
  const auto digit_at = [&](std::size_t i) { return i < value.size() && value[i] >= '0' && value[i] <= '9'; };
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (value[i] == '\\') return true;
    if (value[i] == '/' && !(i > 0 && digit_at(i - 1) && digit_at(i + 1))) return true;
  }
  return false;
}

JsonObject process_identity(const Options& options, std::uint64_t started) {
  JsonObject given;
  for (const auto& [key, value] : options.given)
    if (!options.redact || !has_path(value)) given.text(key, value);
  JsonObject json;
  json.number("format", rows::kFormatVersion);
  json.text("producer", "cutrace collector " CUTRACE_VERSION);
  json.number("pid", static_cast<std::uint64_t>(::getpid()));
  json.number("parent_pid", static_cast<std::uint64_t>(::getppid()));
  if (!options.redact) json.text("host", host_name());
  json.text("boot_id", line_of("/proc/sys/kernel/random/boot_id"));
  if (!options.redact) {
    json.text("executable", executable());
    json.texts("command", command_line());
    if (const JsonObject variables = job_variables(); !variables.empty()) json.raw("environment", variables.str());
  }
  json.text("clock", "boottime");
  json.number("started", started);
  json.raw("options", given.str());
  json.raw("tables", rows::kTablesJson);
  return json;
}

void Notes::add(std::string_view sentence) noexcept {
  tell(sentence);
  add_quietly(sentence);
}
void Notes::put(std::string number, std::string_view rest) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    if (!number.empty()) std::erase_if(sentences_, [&](const std::string& other) { return other.ends_with(rest); });
    sentences_.push_back(std::move(number.append(rest)));
    pending_.texts("notes", sentences_);
  } catch (const std::exception&) {
  }
}

ThreadNames::ThreadNames(Capture& capture) : capture_(capture) {
  take_notes();  // of the previous recording
  notes_.clear();
  recordings.fetch_add(1);
}

void ThreadNames::note_this_thread(ThreadNote* own) noexcept {
  const std::uint32_t recording = recordings.load(std::memory_order_relaxed);
  if (noted_in == recording) return;
  noted_in = recording;
  ThreadNote* const note = own != nullptr ? own : new (std::nothrow) ThreadNote;
  // A listed note has this thread's name: the writer takes the note of a ring before the ring gets another thread.
  if (note == nullptr || note->listed.exchange(true, std::memory_order_acquire)) return;
  note->thread = static_cast<std::uint32_t>(::syscall(SYS_gettid));
  ::prctl(PR_GET_NAME, note->name.data());
  note->next = thread_notes.load(std::memory_order_relaxed);
  while (!thread_notes.compare_exchange_weak(note->next, note, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

void ThreadNames::take_notes() {
  constexpr std::size_t kMost = 16'384;  // notes of threads without a record
  if (notes_.size() > kMost) notes_.clear();
  ThreadNote* note = thread_notes.load(std::memory_order_acquire);
  while (note != nullptr) {
    if (!thread_notes.compare_exchange_weak(note, note->next, std::memory_order_acquire)) continue;
    const std::uint32_t thread = note->thread;
    const std::string name = note->name.data();
    note->listed.store(false, std::memory_order_release);
    if (!note->in_ring) delete note;
    notes_.insert_or_assign(thread, name);
    note = thread_notes.load(std::memory_order_acquire);
  }
}

void ThreadNames::add(std::uint32_t thread) {
  const auto [it, fresh] = names_.try_emplace(thread);
  if (!fresh) return;
  std::string name = name_of_thread(thread);
  if (name.empty()) {
    take_notes();
    if (const auto note = notes_.find(thread); note != notes_.end()) name = note->second;
  }
  write(thread, it->second, name);
}

void ThreadNames::refresh() {
  take_notes();
  for (auto it = names_.begin(); it != names_.end();) {
    const std::uint32_t thread = it->first;
    const std::string name = name_of_thread(thread);
    const auto note = notes_.extract(thread);
    write(thread, it->second, name.empty() && note ? note.mapped() : name);
    if (!name.empty()) {
      ++it;
      continue;
    }
    // The thread has ended, and another may get its id.
    latest_[thread % latest_.size()] = 0;
    it = names_.erase(it);
  }
}

void ThreadNames::write(std::uint32_t thread, std::string& known, std::string_view name) {
  if (name.empty() || name == known || name.starts_with("cutrace-")) return;
  known = name;
  rows::Threads row;
  row.thread = thread;
  row.source = 1;
  capture_.object_info(row, name);
}

// Compares addresses, not paths, because the other collector may come from a copy of the file or from another environment.
static bool another_collector_is_loaded() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&likely_cupti_holders), &here) == 0) return false;
  const auto differs = [](dl_phdr_info* library, std::size_t, void* own) -> int {
    return std::strstr(library->dlpi_name, "libcutrace_collector") != nullptr &&
           reinterpret_cast<void*>(library->dlpi_addr) != own;
  };
  return dl_iterate_phdr(differs, here.dli_fbase) != 0;
}

std::vector<std::string> likely_cupti_holders() {
  struct Tool {
    const char* library;
    const char* name;
  };
  constexpr Tool kTools[] = {
      {"libToolsInjection", "Nsight Systems"},
      {"libnsys", "Nsight Systems"},
      {"libproton", "Triton's Proton"},
      {"libtriton", "Triton's Proton, if a session is open"},
      {"libtorch_cpu", "torch.profiler, which keeps CUPTI after a session unless TEARDOWN_CUPTI=1 is set"},
      {"libsanitizer-collection", "compute-sanitizer"},
      {"libnv-nsight-compute", "Nsight Compute"},
      {"libcuda-injection", "Nsight Compute"},
      {"libvampir", "Score-P"},
      {"libscorep", "Score-P"},
      {"libxla", "the JAX profiler"},
      {"xla_cuda", "the JAX profiler"},
      {"libtensorflow", "the TensorFlow profiler"}};
  const std::string maps = read_file("/proc/self/maps", 16 << 20);
  std::vector<std::string> holders;
  if (another_collector_is_loaded()) holders.emplace_back("another copy of cutrace's collector");
  for (const Tool& tool : kTools) {
    const bool listed = std::ranges::find(holders, tool.name) != holders.end();
    if (!listed && maps.find(tool.library) != std::string::npos) holders.emplace_back(tool.name);
  }
  return holders;
}

std::uint64_t random_instance() {
  std::uint64_t value = 0;
  if (::getrandom(&value, sizeof value, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof value)) value = now_ns();
  return value != 0 ? value : 1;
}

}  // namespace cutrace
