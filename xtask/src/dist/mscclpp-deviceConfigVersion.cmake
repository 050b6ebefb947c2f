# SPDX-License-Identifier: MIT
# Before 1.0 a minor version may break users.
set(PACKAGE_VERSION "@VERSION@")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _mscclpp_device_series "${PACKAGE_VERSION}")
set(_mscclpp_device_wanted "${PACKAGE_FIND_VERSION_MAJOR}.${PACKAGE_FIND_VERSION_MINOR}")
set(PACKAGE_VERSION_COMPATIBLE FALSE)
if(_mscclpp_device_wanted STREQUAL _mscclpp_device_series AND NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
unset(_mscclpp_device_series)
unset(_mscclpp_device_wanted)
