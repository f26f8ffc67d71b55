// Children of Python's multiprocessing: by fork and forkserver they end by _exit(), without the exit handlers of C.
//
// multiprocessing has finalizers of its own, which such a child calls before. When a recording starts in one, a finalizer is
// added that does what the exit handlers would do. Other programs do nothing more than look whether they use multiprocessing.
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& children_feature();

}  // namespace cutrace
