// SPDX-License-Identifier: MIT
// The fixed-width integers, also where no standard header can be found (NVRTC).
#ifndef MSCCLPP_CSTDINT_DEVICE_HPP_
#define MSCCLPP_CSTDINT_DEVICE_HPP_

#if defined(__CUDACC_RTC__)
// The same types as libcu++ has under NVRTC, so that both can be included.
using int8_t = signed char;
using int16_t = signed short;
using int32_t = signed int;
using int64_t = signed long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using intptr_t = int64_t;
using uintptr_t = uint64_t;
#ifndef UINT64_MAX
#define UINT64_MAX 0xffffffffffffffffULL
#endif
#else
#include <cstddef>
#include <cstdint>
#endif

#endif  // MSCCLPP_CSTDINT_DEVICE_HPP_
