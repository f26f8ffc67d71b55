// CUPTI's headers, without those that need the CUDA runtime's types (see without_runtime/builtin_types.h).
#pragma once

#include <cupti_version.h>

#include <cupti_activity.h>
#include <cupti_callbacks.h>
