// Whether the calling thread is one of the collector's. Its API calls are not the program's.
#pragma once

namespace cutrace {

inline thread_local constinit bool is_own_thread = false;

}  // namespace cutrace
