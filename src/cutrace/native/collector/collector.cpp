#include "cutrace/rows.h"
extern "C" __attribute__((visibility("default"))) int InitializeInjection() { return 1; }
