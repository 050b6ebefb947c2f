# SPDX-License-Identifier: MIT
# The target mscclpp-device::mscclpp-device: include directory and C++17, for kernels that include
# <mscclpp/...>. There is nothing to link.
get_filename_component(_mscclpp_device_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET mscclpp-device::mscclpp-device)
  add_library(mscclpp-device::mscclpp-device INTERFACE IMPORTED)
  set_target_properties(mscclpp-device::mscclpp-device PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_mscclpp_device_prefix}/include/mscclpp-device"
    INTERFACE_COMPILE_FEATURES cxx_std_17)
endif()
# With GPUNetIO: its headers, which none of <mscclpp/...> includes.
set(mscclpp-device_gpunetio_FOUND FALSE)
if(EXISTS "${_mscclpp_device_prefix}/include/mscclpp-device-gpunetio")
  set(mscclpp-device_gpunetio_FOUND TRUE)
  if(NOT TARGET mscclpp-device::gpunetio)
    add_library(mscclpp-device::gpunetio INTERFACE IMPORTED)
    set_target_properties(mscclpp-device::gpunetio PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${_mscclpp_device_prefix}/include/mscclpp-device-gpunetio"
      INTERFACE_LINK_LIBRARIES mscclpp-device::mscclpp-device)
  endif()
endif()
unset(_mscclpp_device_prefix)
