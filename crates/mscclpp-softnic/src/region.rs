// SPDX-License-Identifier: MIT

/// What may be done to a registration, and by whom. Local reads are always
/// allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AccessFlags {
    /// This device may write: results of reads and atomics, received messages.
    pub local_write: bool,
    /// Peers may write.
    pub remote_write: bool,
    /// Peers may read.
    pub remote_read: bool,
    /// Peers may do atomics.
    pub remote_atomic: bool,
}

impl AccessFlags {
    /// Everything.
    pub const ALL: Self = Self {
        local_write: true,
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
    };

    /// Only what a source of writes needs: nothing but local reads.
    pub const LOCAL_READ: Self = Self {
        local_write: false,
        remote_write: false,
        remote_read: false,
        remote_atomic: false,
    };
}

/// Whether writes to a registration may overtake each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WriteOrdering {
    /// A write may land before earlier ones: PCIe's relaxed ordering.
    #[default]
    Relaxed,
    /// A write lands after all earlier writes of its queue pair. What signals
    /// are written to.
    Strict,
}
