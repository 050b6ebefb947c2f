// SPDX-License-Identifier: MIT
// A kernel's own data: plain memory, which ThreadSanitizer watches, or in modelled mode what the
// memory model is told of.
#pragma once

#include <mscclpp/memory_device.hpp>

inline void storeData(uint64_t* word, uint64_t value) {
#if defined(MSCCLPP_MODELLED_MEMORY)
  mscclpp::memory::store<mscclpp::scopeDevice>(word, value, mscclpp::memoryOrderRelaxed);
#else
  *word = value;
#endif
}

inline uint64_t loadData(const uint64_t* word) {
#if defined(MSCCLPP_MODELLED_MEMORY)
  return mscclpp::memory::load<mscclpp::scopeDevice>(word, mscclpp::memoryOrderRelaxed);
#else
  return *word;
#endif
}
