// Children of Python's multiprocessing. Children made by fork or forkserver end by _exit(), without the exit handlers of C.
//
// Before _exit(), such a child calls the finalizers of multiprocessing. When a recording starts in such a child, the collector
// adds a finalizer that does the work of the exit handlers. In other programs it only checks whether they use multiprocessing.
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& children_feature();

}  // namespace cutrace
