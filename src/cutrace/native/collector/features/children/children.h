// Children of Python's multiprocessing. Those made by fork or forkserver end by _exit(), without the exit handlers of C.
//
// Before _exit(), such a child calls the finalizers of multiprocessing. When a recording starts in such a child, a finalizer is
// added that does what the exit handlers would do. In other programs this only checks whether they use multiprocessing.
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& children_feature();

}  // namespace cutrace
