/* The C API of libcutrace_collector.so. Functions return 0 on success; after anything else cutrace_last_error()
 * of the same thread says why and what to do. */
#ifndef CUTRACE_API_H
#define CUTRACE_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUTRACE_EXPORT __attribute__((visibility("default")))

struct cutrace_stats {
  uint64_t size; /* bytes of this struct that are filled */
  uint64_t rows_written;
  uint64_t bytes_written;
  uint64_t buffers_requested; /* since the process began, as the next one */
  uint64_t buffers_completed;
  uint64_t records_dropped;   /* by CUPTI */
  uint64_t records_discarded; /* at the memory limit */
  uint64_t nvtx_events;
  uint64_t memory_bytes;
  uint64_t blocks_written;
  uint32_t state;        /* 0 idle, 1 recording */
  uint32_t cupti_active; /* 1 while CUPTI delivers records */
};

/* Begins to record. `options`: key=value, separated by newlines or semicolons (docs/collector.md). */
CUTRACE_EXPORT int cutrace_start(const char* options);
/* Ends the recording and completes the file. */
CUTRACE_EXPORT int cutrace_stop(void);
/* Writes out all that is complete so far. */
CUTRACE_EXPORT int cutrace_flush(void);
/* Waits until the GPU has done what it was given, in the devices' primary contexts and the caller's current one. The
 * capture does not show it. Returns at once while no GPU activity is recorded. */
CUTRACE_EXPORT int cutrace_synchronize(void);
/* Completes the file with all that is complete so far, puts it at `path` (on the same file system) and goes on in a new
 * one. 0: `path` is a capture by itself. 1: the program has done nothing since the last cut, marks by cutrace_mark() not
 * counted, so there is no file and the recording goes on in the old one. Negative: it failed, and the recording goes on. */
CUTRACE_EXPORT int cutrace_cut(const char* path);
/* Of a recording that keeps only its newest rows (last_ms, rotate): writes what it holds now, as a capture, to `path`. What
 * is there is replaced. 0: done. 1: nothing has been recorded yet. Negative: it failed, and the recording goes on. */
CUTRACE_EXPORT int cutrace_dump(const char* path);
/* Puts a named instant into the capture. */
CUTRACE_EXPORT int cutrace_mark(const char* text);
/* The capture's clock, nanoseconds of CLOCK_BOOTTIME. */
CUTRACE_EXPORT uint64_t cutrace_now(void);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a struct and a function of one name, as in stat(2) */
/* Fills at most `size` bytes of `stats`; of the last recording when none runs. */
CUTRACE_EXPORT int cutrace_stats(struct cutrace_stats* stats, size_t size);
#pragma GCC diagnostic pop
/* Sentences about what this recording (or the last one) cannot record, "" for none: who holds CUPTI, ... One a line; valid
 * until the calling thread's next call of this. */
CUTRACE_EXPORT const char* cutrace_notes(void);
/* The calling thread's last failure, "" when there was none. */
CUTRACE_EXPORT const char* cutrace_last_error(void);
CUTRACE_EXPORT const char* cutrace_version(void);
/* 1 while recording. */
CUTRACE_EXPORT int cutrace_running(void);

#ifdef __cplusplus
}
#endif
#endif
