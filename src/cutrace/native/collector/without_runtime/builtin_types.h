// Stands in for the CUDA runtime's header of this name, which cupti_callbacks.h includes without need: its vector
// and texture types are spread over further packages that a build would otherwise have to find.
#pragma once
