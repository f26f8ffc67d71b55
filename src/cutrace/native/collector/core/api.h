/* The C API of libcutrace_collector.so. Functions return 0 on success. After a failure, cutrace_last_error() in the same thread
 * returns the reason and advice. */
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
  uint64_t buffers_requested; /* since the process started, like buffers_completed */
  uint64_t buffers_completed;
  uint64_t records_dropped;   /* by CUPTI */
  uint64_t records_discarded; /* at the memory limit */
  uint64_t nvtx_events;
  uint64_t memory_bytes;
  uint64_t blocks_written;
  uint32_t state;        /* 0 idle, 1 recording */
  uint32_t cupti_active; /* 1 while CUPTI delivers records */
};

/* Starts recording. `options`: key=value, separated by newlines or semicolons (docs/internals/collector.md). */
CUTRACE_EXPORT int cutrace_start(const char* options);
/* Ends the recording and completes the file. */
CUTRACE_EXPORT int cutrace_stop(void);
/* Acts like the exit handler, for a process that will end without the exit handlers of C. */
CUTRACE_EXPORT void cutrace_exit(void);
/* Writes all complete records. */
CUTRACE_EXPORT int cutrace_flush(void);
/* Waits until the GPU has finished the work of the devices' primary contexts and of the caller's current context. The
 * capture does not show this wait. Returns at once while no GPU activity is recorded. */
CUTRACE_EXPORT int cutrace_synchronize(void);
/* Waits like cutrace_synchronize(), completes the file with all complete records, moves it to `path` (on the same file system)
 * and continues in a new file. 0: `path` is a complete capture. 1: the program did nothing since the last cut, apart from
 * cutrace_mark(). Then no file is written, and the recording continues in the old file. Negative: the cut failed, and the
 * recording continues. */
CUTRACE_EXPORT int cutrace_cut(const char* path);
/* Writes the rows of a recording that keeps only its newest rows (last_ms, rotate) to `path`, as a capture; replaces the
 * file. 0: done. 1: nothing is recorded yet. Negative: the dump failed. The recording continues in any case. */
CUTRACE_EXPORT int cutrace_dump(const char* path);
/* Records the Python stacks of calls of these groups from now on: "sync", "alloc", "copy", "launch", separated by commas. ""
 * records none. The request also applies to a recording that starts, or attaches to CUPTI, later. The recording needs the option
 * stacks=later. */
CUTRACE_EXPORT int cutrace_stacks(const char* calls);
/* Adds a mark to the capture. */
CUTRACE_EXPORT int cutrace_mark(const char* text);
/* Starts and ends a range of the calling thread, in the default domain of NVTX. These ranges have a separate stack, so a pop of
 * the program never ends one of them. Both functions do nothing while no recording runs. */
CUTRACE_EXPORT void cutrace_range_push(const char* name);
CUTRACE_EXPORT void cutrace_range_pop(void);
/* For collect/annotate.py. A `number` of -1 reports that its hooks are in place. Another `number` reports that the name with this
 * index in `annotate` has a range. */
CUTRACE_EXPORT void cutrace_annotated(int number);
/* Adds a sentence to the notes of the recording. */
CUTRACE_EXPORT void cutrace_note(const char* sentence);
/* A Py_tracefunc for Python before 3.12. Its first argument is a callable (annotate.h). */
CUTRACE_EXPORT int cutrace_python_profile(void* handler, void* frame, int what, void* argument);
/* Sets cutrace_python_profile() for all threads. The caller holds Python's lock. NULL: each thread removes it at its next event.
 * May set a Python exception. */
CUTRACE_EXPORT void cutrace_python_profile_all(void* handler);
/* The time on the capture's clock: nanoseconds of CLOCK_BOOTTIME. */
CUTRACE_EXPORT uint64_t cutrace_now(void);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a struct and a function of one name, as in stat(2) */
/* Fills at most `size` bytes of `stats`, with values of the last recording when none runs. */
CUTRACE_EXPORT int cutrace_stats(struct cutrace_stats* stats, size_t size);
#pragma GCC diagnostic pop
/* The notes of this recording, or of the last one, about unrecordable data, such as the tool that holds CUPTI. One sentence per
 * line, "" for none. Valid until the calling thread's next call of this function. */
CUTRACE_EXPORT const char* cutrace_notes(void);
/* The calling thread's last failure, "" for none. */
CUTRACE_EXPORT const char* cutrace_last_error(void);
CUTRACE_EXPORT const char* cutrace_version(void);
/* 1 while recording. */
CUTRACE_EXPORT int cutrace_running(void);

#ifdef __cplusplus
}
#endif
#endif
