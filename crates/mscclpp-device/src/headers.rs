// SPDX-License-Identifier: MIT
//! The device headers as text, for compilers that take no include path.

macro_rules! header {
    ($file:literal) => {
        (
            concat!("mscclpp/", $file),
            include_str!(concat!("../include/mscclpp/", $file)),
        )
    };
}

/// Each header by the name under which it is included, `mscclpp/<file>`.
///
/// Files with the same text lie in the include directory that dependents'
/// build scripts find in `DEP_MSCCLPP_DEVICE_INCLUDE`.
pub const ALL: &[(&str, &str)] = &[
    header!("atomic_device.hpp"),
    header!("concurrency_device.hpp"),
    header!("copy_device.hpp"),
    header!("cstdint_device.hpp"),
    header!("device.hpp"),
    header!("fence_sanitizer.hpp"),
    header!("fifo_device.hpp"),
    header!("host_device.hpp"),
    header!("kernel.hpp"),
    header!("memory_cuda.hpp"),
    header!("memory_device.hpp"),
    header!("memory_host.hpp"),
    header!("packet_device.hpp"),
    header!("port_channel.hpp"),
    header!("port_channel_device.hpp"),
    header!("queue_channel_device.hpp"),
    header!("queue_device.hpp"),
    header!("queue_state_device.hpp"),
    header!("semaphore_device.hpp"),
    header!("status.hpp"),
    header!("trace_device.hpp"),
    header!("trigger.hpp"),
    header!("wait_device.hpp"),
    header!("work_request_device.hpp"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_what_lies_in_the_include_directory() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/include/mscclpp");
        let mut files: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|file| format!("mscclpp/{}", file.unwrap().file_name().display()))
            .collect();
        files.sort();
        let names: Vec<_> = ALL.iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(files, names);
    }
}
