// Recordings that keep only their newest rows: rotation of their files, dumps, and SIGUSR2, which requests one.
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& newest_feature();

}  // namespace cutrace
