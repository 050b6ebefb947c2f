// SPDX-License-Identifier: MIT
// The names by which kernels ask for a handle's type: `DeviceHandle<PortChannel>`. The host side
// of these types is in Rust.
#ifndef MSCCLPP_PORT_CHANNEL_HPP_
#define MSCCLPP_PORT_CHANNEL_HPP_

#include <mscclpp/port_channel_device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

struct BasePortChannel {
  using DeviceHandle = BasePortChannelDeviceHandle;
};

struct PortChannel {
  using DeviceHandle = PortChannelDeviceHandle;
};

struct Host2DeviceSemaphore {
  using DeviceHandle = Host2DeviceSemaphoreDeviceHandle;
};

template <typename T>
using DeviceHandle = typename T::DeviceHandle;

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_PORT_CHANNEL_HPP_
