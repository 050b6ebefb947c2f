// SPDX-License-Identifier: MIT
//! Registrations, and whether an address may be touched.

use mlx5_queue::MemoryKey;

use super::access::{Place, SpaceId};
use super::packet::Piece;
use super::table::Table;
use crate::region::{AccessFlags, WriteOrdering};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) domain: u32,
    pub(crate) space: SpaceId,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) access: AccessFlags,
    pub(crate) ordering: WriteOrdering,
    pub(crate) variant: u8,
}

/// What an access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    LocalRead,
    LocalWrite,
    RemoteWrite,
    RemoteRead,
    RemoteAtomic,
}

/// The address may not be touched so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied;

#[derive(Debug)]
pub(crate) struct Regions {
    table: Table<Region>,
    variant: u8,
}

impl Regions {
    const FIRST: u32 = 0x1000;

    pub(crate) fn new(variant: u8) -> Self {
        Self {
            table: Table::new(Self::FIRST),
            variant,
        }
    }

    pub(crate) fn insert(&mut self, region: Region) -> MemoryKey {
        self.variant = self.variant.wrapping_add(1);
        let variant = self.variant;
        let index = self.table.insert(Region { variant, ..region });
        MemoryKey::from_parts(index, variant)
    }

    pub(crate) fn remove(&mut self, key: MemoryKey) -> Option<Region> {
        self.get(key)?;
        self.table.remove(key.index())
    }

    fn get(&self, key: MemoryKey) -> Option<&Region> {
        self.table
            .get(key.index())
            .filter(|region| region.variant == key.variant())
    }

    /// Where `length` bytes at `address` of registration `key` are, if a
    /// queue pair of `domain` may touch them so. No bytes are nowhere, and
    /// always allowed: no key is looked at for them.
    pub(crate) fn check(
        &self,
        domain: u32,
        key: MemoryKey,
        address: u64,
        length: u64,
        need: Need,
    ) -> Result<(Place, WriteOrdering), Denied> {
        if length == 0 {
            return Ok((
                Place {
                    space: SpaceId(0),
                    address,
                },
                WriteOrdering::Relaxed,
            ));
        }
        let region = self
            .get(key)
            .filter(|region| region.domain == domain)
            .ok_or(Denied)?;
        let flags = region.access;
        let allowed = match need {
            Need::LocalRead => true,
            Need::LocalWrite => flags.local_write,
            Need::RemoteWrite => flags.remote_write,
            Need::RemoteRead => flags.remote_read,
            Need::RemoteAtomic => flags.remote_atomic,
        };
        let offset = address.checked_sub(region.address).ok_or(Denied)?;
        let end = offset.checked_add(length).ok_or(Denied)?;
        if !allowed || end > region.length {
            return Err(Denied);
        }
        Ok((
            Place {
                space: region.space,
                address,
            },
            region.ordering,
        ))
    }

    /// Where `length` bytes at `address` of registration `key` are, of memory
    /// that has been checked before and may have been deregistered since.
    pub(crate) fn locate(
        &self,
        key: MemoryKey,
        address: u64,
        length: u64,
    ) -> Result<Place, Denied> {
        let domain = self.get(key).ok_or(Denied)?.domain;
        self.check(domain, key, address, length, Need::LocalRead)
            .map(|(place, _)| place)
    }

    /// Checks every piece.
    pub(crate) fn check_all(
        &self,
        domain: u32,
        pieces: &[Piece],
        need: Need,
    ) -> Result<(), Denied> {
        pieces.iter().try_for_each(|piece| {
            self.check(domain, piece.key, piece.address, piece.length, need)
                .map(|_| ())
        })
    }

    pub(crate) fn live(&self) -> u64 {
        self.table.live()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(access: AccessFlags) -> Region {
        Region {
            domain: 1,
            space: SpaceId(0),
            address: 0x1000,
            length: 0x100,
            access,
            ordering: WriteOrdering::Relaxed,
            variant: 0,
        }
    }

    #[test]
    fn bounds_are_exact_and_do_not_wrap() {
        let mut regions = Regions::new(7);
        let key = regions.insert(region(AccessFlags::ALL));
        let top = Region {
            address: u64::MAX - 0xff,
            ..region(AccessFlags::ALL)
        };
        let top = regions.insert(top);
        let check = |key, address, length| {
            regions
                .check(1, key, address, length, Need::RemoteWrite)
                .is_ok()
        };
        assert!(check(key, 0x1000, 0x100));
        assert!(check(key, 0x10ff, 1));
        assert!(!check(key, 0x0fff, 1));
        assert!(!check(key, 0x1100, 1));
        assert!(!check(key, 0x10ff, 2));
        assert!(!check(key, 0x1000, u64::MAX));
        assert!(check(top, u64::MAX - 0xff, 0x100));
        assert!(!check(top, u64::MAX, 2));
        assert!(check(MemoryKey::new(0), 0, 0), "no bytes need no key");
    }

    #[test]
    fn each_permission_stands_alone() {
        let needs = [
            Need::LocalWrite,
            Need::RemoteWrite,
            Need::RemoteRead,
            Need::RemoteAtomic,
        ];
        for (i, _) in needs.iter().enumerate() {
            let access = AccessFlags {
                local_write: i == 0,
                remote_write: i == 1,
                remote_read: i == 2,
                remote_atomic: i == 3,
            };
            let mut regions = Regions::new(0);
            let key = regions.insert(region(access));
            for (j, need) in needs.iter().enumerate() {
                assert_eq!(regions.check(1, key, 0x1000, 8, *need).is_ok(), i == j);
                assert!(
                    regions.check(2, key, 0x1000, 8, *need).is_err(),
                    "another domain"
                );
            }
            assert!(regions.check(1, key, 0x1000, 8, Need::LocalRead).is_ok());
        }
    }

    #[test]
    fn a_key_dies_with_its_registration() {
        let mut regions = Regions::new(255);
        let mut dead = Vec::new();
        for _ in 0..200 {
            let key = regions.insert(region(AccessFlags::ALL));
            assert!(!dead.contains(&key));
            assert!(regions.remove(key).is_some());
            assert!(regions.remove(key).is_none());
            assert!(regions.check(1, key, 0x1000, 8, Need::LocalRead).is_err());
            dead.push(key);
        }
        assert_eq!(regions.live(), 0);
    }
}
