// CUPTI's headers without the types of the CUDA runtime, which cupti_callbacks.h includes and does not use: their
// own headers are spread over further packages that a build would otherwise need. Their include guards keep them out.
#pragma once

#define __DEVICE_TYPES_H__
#define __DRIVER_TYPES_H__
#define __SURFACE_TYPES_H__
#define __TEXTURE_TYPES_H__
#define __VECTOR_TYPES_H__

#include <cupti_version.h>

#include <cupti_activity.h>
#include <cupti_callbacks.h>
