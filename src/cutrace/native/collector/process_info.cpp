#include "process_info.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "hash.h"

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

std::vector<std::string> command_line() {
  std::vector<std::string> arguments;
  const std::string text = read_file("/proc/self/cmdline");
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\0', at);
    arguments.push_back(text.substr(at, end - at));
    at = end == std::string::npos ? text.size() : end + 1;
  }
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

// Bytes of the UTF-8 sequence that `text` starts with, 0 when it is not valid.
std::size_t utf8_length(std::string_view text) {
  const auto c = static_cast<unsigned char>(text[0]);
  if (c < 0x80) return 1;
  const std::size_t n = c >= 0xF0 && c < 0xF5 ? 4 : c >= 0xE0 ? (c < 0xF0 ? 3 : 0) : c >= 0xC2 ? 2 : 0;
  if (n == 0 || text.size() < n) return 0;
  for (std::size_t i = 1; i < n; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  const bool bad = (c == 0xE0 && second < 0xA0) || (c == 0xED && second >= 0xA0) || (c == 0xF0 && second < 0x90) ||
                   (c == 0xF4 && second >= 0x90);
  return bad ? 0 : n;
}

}  // namespace

std::string JsonObject::quoted(std::string_view value) {
  std::string out = "\"";
  while (!value.empty()) {
    const std::size_t n = utf8_length(value);
    const char c = value[0];
    if (n == 0) {
      out += "\\ufffd";  // file names need not be UTF-8, JSON must be
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += value.substr(0, n);
    }
    value.remove_prefix(n == 0 ? 1 : n);
  }
  return out + '"';
}

void JsonObject::text(std::string_view k, std::string_view value) { raw(k, quoted(value)); }
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
  for (const auto& [key, value] : members_) body += (body.empty() ? "" : ",") + quoted(key) + ':' + value;
  return '{' + body + '}';
}
void JsonObject::texts(std::string_view k, const std::vector<std::string>& values) {
  std::string list;
  for (const std::string& value : values) {
    list += list.empty() ? '[' : ',';
    list += quoted(value);
  }
  list += list.empty() ? "[]" : "]";
  raw(k, list);
}

std::string release_of(std::string_view version) {
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (...)": the first word that is
  // digits and dots. "x86_64" is not, nor is the "NVRM" line of a driver that words it otherwise.
  version = version.substr(0, version.find('\n'));
  while (!version.empty()) {
    const std::size_t end = std::min(version.find(' '), version.size());
    const std::string_view word = version.substr(0, end);
    if (word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos) return std::string(word);
    version.remove_prefix(std::min(end + 1, version.size()));
  }
  return {};
}

std::string driver_release() { return release_of(read_file("/proc/driver/nvidia/version", 4096)); }

JsonObject process_identity(const Options& options, std::uint64_t started) {
  JsonObject given;
  for (const auto& [key, value] : options.given)
    if (!options.redact || value.find('/') == std::string::npos) given.text(key, value);
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
  }
  json.text("clock", "boottime");
  json.number("started", started);
  json.raw("options", given.str());
  json.raw("tables", rows::kTablesJson);
  return json;
}

void add_thread_names(Capture& capture, std::unordered_map<std::uint32_t, std::uint64_t>& known) {
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(::opendir("/proc/self/task"), ::closedir);
  if (tasks == nullptr) return;
  while (const dirent* entry = ::readdir(tasks.get())) {
    const auto thread = static_cast<std::uint32_t>(std::strtoul(entry->d_name, nullptr, 10));
    if (thread == 0) continue;
    const std::string path = "/proc/self/task/" + std::string(entry->d_name) + "/comm";
    const std::string name = line_of(path.c_str());
    if (name.empty() || name.starts_with("cutrace-")) continue;
    const std::uint64_t hash = hash_bytes(name.data(), name.size());
    const auto [it, fresh] = known.try_emplace(thread, hash);
    if (!fresh && it->second == hash) continue;
    it->second = hash;
    rows::Threads row;
    row.thread = thread;
    row.source = 1;
    capture.fact(row, name);
  }
}

// Of another environment, or a file that was copied: the path tells nothing, the place in memory does.
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
      {"libToolsInjection", "Nsight Systems"},    {"libnsys", "Nsight Systems"},
      {"libproton", "Triton's Proton"},           {"libtriton", "Triton's Proton, if a session is open"},
      {"libtorch_cpu", "torch.profiler"},         {"libsanitizer-collection", "compute-sanitizer"},
      {"libnv-nsight-compute", "Nsight Compute"}, {"libcuda-injection", "Nsight Compute"},
      {"libvampir", "Score-P"},                   {"libscorep", "Score-P"},
      {"libxla", "the JAX profiler"},             {"xla_cuda", "the JAX profiler"},
      {"libtensorflow", "the TensorFlow profiler"}};
  const std::string maps = read_file("/proc/self/maps", 16 << 20);
  std::vector<std::string> found;
  if (another_collector_is_loaded()) found.emplace_back("another copy of cutrace's collector");
  for (const Tool& tool : kTools) {
    if (maps.find(tool.library) == std::string::npos) continue;
    bool listed = false;
    for (const std::string& name : found) listed = listed || name == tool.name;
    if (!listed) found.emplace_back(tool.name);
  }
  return found;
}

std::uint64_t random_instance() {
  std::uint64_t value = 0;
  if (::getrandom(&value, sizeof value, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof value)) value = now_ns();
  return value != 0 ? value : 1;
}

}  // namespace cutrace
