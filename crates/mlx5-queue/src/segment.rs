// SPDX-License-Identifier: MIT
//! The segments that follow a control segment.

use core::fmt;

use crate::{Error, SEGMENT_BYTES};

pub(crate) fn be32(bytes: &[u8; SEGMENT_BYTES], at: usize) -> u32 {
    u32::from_be_bytes(core::array::from_fn(|i| bytes[at + i]))
}

pub(crate) fn be64(bytes: &[u8; SEGMENT_BYTES], at: usize) -> u64 {
    u64::from_be_bytes(core::array::from_fn(|i| bytes[at + i]))
}

/// Key of a registration, local (`lkey`) or remote (`rkey`).
///
/// The upper 24 bits number the registration's entry in the NIC, the lower 8
/// are a variant that tells users of the same entry apart (Linux
/// `mlx5_mkey_to_idx`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryKey(u32);

impl MemoryKey {
    /// The key that ends a list of receive segments and never names memory
    /// (rdma-core `MLX5_INVALID_LKEY`).
    pub const INVALID: Self = Self(0x100);

    /// A key as the verbs API gives it, in the machine's byte order.
    pub const fn new(key: u32) -> Self {
        Self(key)
    }

    /// The key of entry `index` (24 bits; more are dropped) and `variant`.
    pub const fn from_parts(index: u32, variant: u8) -> Self {
        Self((index << 8) | variant as u32)
    }

    /// The key in the machine's byte order.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The entry's number.
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The entry's variant.
    pub const fn variant(self) -> u8 {
        self.0 as u8
    }

    /// The key as a request carries it. Device code keeps it in this form:
    /// swapped once on the host, stored as it is.
    pub const fn to_wire(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }
}

impl fmt::Debug for MemoryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryKey({:#010x})", self.0)
    }
}

/// Remote address segment (rdma-core `mlx5_wqe_raddr_seg`).
///
/// | bytes | what |
/// |---|---|
/// | 0-7 | `raddr`: remote address, big-endian |
/// | 8-11 | `rkey`, big-endian |
/// | 12-15 | reserved: written as 0, not read |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddress {
    /// Address in the peer's registration.
    pub address: u64,
    /// The registration's remote key.
    pub key: MemoryKey,
}

impl RemoteAddress {
    pub(crate) fn encode(self) -> [u8; SEGMENT_BYTES] {
        join(self.address.to_be_bytes(), self.key.to_wire(), [0; 4])
    }

    pub(crate) fn decode(bytes: &[u8; SEGMENT_BYTES]) -> Self {
        Self {
            address: be64(bytes, 0),
            key: MemoryKey::new(be32(bytes, 8)),
        }
    }
}

/// Data segment: one piece of local memory (rdma-core `mlx5_wqe_data_seg`).
///
/// | bytes | what |
/// |---|---|
/// | 0-3 | `byte_count`, big-endian; bit 31 clear, else the segment is inline data; 0 means 2 GiB |
/// | 4-7 | `lkey`, big-endian |
/// | 8-15 | `addr`, big-endian |
///
/// That a count of 0 means 2^31 bytes is a trap that rdma-core steps around by
/// leaving out empty pieces (`qp.c`; the comment there is beside the copy
/// operation). Here a length is 1 to 2^31, so an empty piece cannot be written
/// by mistake, and bytes that hold 0 are read as what the NIC would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataSegment {
    address: u64,
    key: MemoryKey,
    length: u32,
}

impl DataSegment {
    /// The longest piece, in bytes.
    pub const MAX_LENGTH: u32 = 1 << 31;

    /// `length` bytes at `address` of the registration named by `key`.
    ///
    /// # Errors
    /// [`Error::DataLength`] unless 1 ≤ `length` ≤ 2^31.
    pub const fn new(address: u64, key: MemoryKey, length: u32) -> Result<Self, Error> {
        if length == 0 || length > Self::MAX_LENGTH {
            return Err(Error::DataLength { length });
        }
        Ok(Self {
            address,
            key,
            length,
        })
    }

    /// Where the bytes are.
    pub const fn address(self) -> u64 {
        self.address
    }

    /// The registration's local key.
    pub const fn key(self) -> MemoryKey {
        self.key
    }

    /// How many bytes, 1 to 2^31.
    pub const fn length(self) -> u32 {
        self.length
    }

    /// The segment's bytes, to be listed in
    /// [`DataSegments`](crate::DataSegments).
    pub fn encode(self) -> [u8; SEGMENT_BYTES] {
        let count = (self.length & !Self::MAX_LENGTH).to_be_bytes();
        let mut bytes = [0; SEGMENT_BYTES];
        bytes[..4].copy_from_slice(&count);
        bytes[4..8].copy_from_slice(&self.key.to_wire());
        bytes[8..].copy_from_slice(&self.address.to_be_bytes());
        bytes
    }

    /// Reads a segment; `None` if its bit 31 says that it is inline data.
    pub fn decode(bytes: &[u8; SEGMENT_BYTES]) -> Option<Self> {
        let length = match be32(bytes, 0) {
            0 => Self::MAX_LENGTH,
            count if count & Self::MAX_LENGTH != 0 => return None,
            count => count,
        };
        Some(Self {
            address: be64(bytes, 8),
            key: MemoryKey::new(be32(bytes, 4)),
            length,
        })
    }
}

/// Atomic segment (rdma-core `mlx5_wqe_atomic_seg`): two big-endian 64-bit
/// words, `swap_add` then `compare`.
pub(crate) fn encode_atomic(swap_add: u64, compare: u64) -> [u8; SEGMENT_BYTES] {
    let mut bytes = [0; SEGMENT_BYTES];
    bytes[..8].copy_from_slice(&swap_add.to_be_bytes());
    bytes[8..].copy_from_slice(&compare.to_be_bytes());
    bytes
}

fn join(a: [u8; 8], b: [u8; 4], c: [u8; 4]) -> [u8; SEGMENT_BYTES] {
    let mut bytes = [0; SEGMENT_BYTES];
    bytes[..8].copy_from_slice(&a);
    bytes[8..12].copy_from_slice(&b);
    bytes[12..].copy_from_slice(&c);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_zero_is_two_gibibytes() {
        let key = MemoryKey::new(7);
        let longest = DataSegment::new(9, key, DataSegment::MAX_LENGTH).unwrap();
        assert_eq!(longest.encode()[..4], [0; 4]);
        assert_eq!(DataSegment::decode(&longest.encode()), Some(longest));
        for length in [0, DataSegment::MAX_LENGTH + 1, u32::MAX] {
            assert_eq!(
                DataSegment::new(9, key, length),
                Err(Error::DataLength { length })
            );
        }
    }

    #[test]
    fn keys_are_an_index_and_a_variant() {
        let key = MemoryKey::from_parts(0xb1b2, 0x5a);
        assert_eq!(key.get(), 0x00b1_b25a);
        assert_eq!((key.index(), key.variant()), (0xb1b2, 0x5a));
        assert_eq!(key.to_wire(), [0x00, 0xb1, 0xb2, 0x5a]);
    }

    #[test]
    fn fuzz_data_segment() {
        bolero::check!()
            .with_type::<[u8; SEGMENT_BYTES]>()
            .for_each(|bytes| match DataSegment::decode(bytes) {
                Some(segment) => assert_eq!(segment.encode(), *bytes),
                None => assert!(bytes[0] & 0x80 != 0),
            });
    }
}
