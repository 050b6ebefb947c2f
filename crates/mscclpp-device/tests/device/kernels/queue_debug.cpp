// SPDX-License-Identifier: MIT
// The same kernels, with the checks of debug builds.
#define MSCCLPP_DEBUG
#include "queue.cpp"
