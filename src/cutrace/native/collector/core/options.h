// The options of a recording, parsed from a string of `key=value`, separated by newlines or semicolons.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../common/conditions.h"  // a relative path, because the benchmarks build this file without the include folders
#include "kinds.h"

namespace cutrace {

struct Options {
  std::string directory;              // each process writes <directory>/<pid>-<instance>.bin
  std::string output;                 // the only file, in place of files in `directory`
  std::string cupti;                  // libcupti to load when none is loaded yet
  KindSet kinds = kDefaultKinds;      // activity kinds, by the names in kinds.h
  ApiFilter api = ApiFilter::launch;  // which API calls
  bool graph_nodes = true;            // graph=node: each node; graph=graph: one row a graph launch
  bool nvtx = true;
  std::uint64_t max_memory = std::uint64_t{64} << 20;  // bytes of memory of the collector
  std::uint64_t max_size = 0;                          // bytes of file, 0 for no limit
  std::uint64_t last_ms = 0;                           // keep only the rows of the last milliseconds, 0 for all
  bool rotate = false;                                 // at max_size, drop the oldest rows, not the new ones
  std::string dump;                                    // SIGUSR2 writes run-1.bin, ... if this is run.bin
  std::vector<Condition> dump_when;                    // a dump is written when one of these conditions is true
  std::uint64_t dump_limit = 5;                        // largest number of dumps for each condition
  std::uint64_t dump_pause_ms = 30'000;                // least time between two dumps for the same condition
  std::uint64_t buffer_size = 0;                       // bytes of an activity buffer, 0 for the default
  std::vector<std::string> annotate;                   // names of the Python functions that get ranges
  std::string annotator;                               // the Python file that finds them; "": the caller runs it
  CallGroups stacks = 0;                               // calls that get Python stacks
  bool stacks_later = false;                           // cutrace_stacks() selects these calls during the recording
  std::uint32_t stacks_every = 1;                      // the stack of one launch in this many
  std::uint64_t stacks_min_ns = 0;                     // stacks only of calls that take at least this long
  std::string capture_range;                           // record windows: "profiler" or "nvtx:NAME"; "": the whole program
  std::uint64_t capture_ranges = 0;                    // number of windows, 0 for all
  bool share = false;                                  // share CUPTI with other tools, if it can
  std::uint64_t device_buffers = 0;                    // limit on CUPTI's buffers of 3.2 MB on a GPU, 0: CUPTI's own limit
  std::uint32_t flush_ms = 100;                        // between flushes; a killed process loses about this much
  std::uint32_t patience_ms = 20'000;                  // longest wait of a caller for CUPTI or the disk
  bool synchronize = true;                             // wait for the GPU before the last flush
  std::optional<mode_t> file_mode;                     // mode of new files; the umask decides unless it is given
  bool code = false;                                   // the machine code of kernels: its hash, registers, sizes
  bool sample_pc = false;                              // the instructions of warps and their stall reasons
  std::uint32_t sample_period = 0;                     // sample=pc=4096: every 2^12 cycles
  bool finalize = false;                               // take CUPTI out of the process after the recording
  bool standby = false;                                // record nothing until somebody attaches (standby.h)
  bool redact = false;                                 // leave out command line, host name and paths
  std::string text;                                    // the string that the options were parsed from
  std::vector<std::pair<std::string, std::string>> given;  // its keys and values, for the process block

  static constexpr std::size_t kMostAnnotated = 64;

  bool keeps_newest() const { return last_ms != 0 || rotate; }
  bool uses_cupti() const { return (kinds & ~bit(Kind::nvtx)) != 0 || sample_pc || stacks != 0; }
  bool records_windows() const { return !capture_range.empty(); }
  bool traces_whole_graphs() const { return !graph_nodes && (kinds & bit(Kind::kernel)) != 0; }
  bool may_record_stacks() const { return stacks != 0 || stacks_later; }
  // The memory limit of thread events: their rings, and the state of NVTX. It is half as large with stacks, because stacks need
  // memory besides their events.
  std::uint64_t events_memory() const { return max_memory / (may_record_stacks() ? 8 : 4); }
  bool records_nvtx() const { return nvtx && (kinds & bit(Kind::nvtx)); }
};

// Fills `options`; on failure returns false and a sentence in `error`.
bool parse_options(std::string_view text, Options& options, std::string& error);

}  // namespace cutrace
