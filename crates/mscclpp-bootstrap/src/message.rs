// SPDX-License-Identifier: MIT
//! Records between ranks: one version byte, then MessagePack.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::BootstrapError;

/// The version that [`encode`] writes and [`decode`] accepts.
pub const VERSION: u8 = 1;

/// A record's bytes: the version, then the value as compact MessagePack (structs
/// as arrays).
///
/// # Errors
/// [`BootstrapError::BadMessage`] when the value can not be expressed, which is
/// a property of its type.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, BootstrapError> {
    let mut bytes = vec![VERSION];
    rmp_serde::encode::write(&mut bytes, value).map_err(|e| BootstrapError::BadMessage {
        reason: format!("a value can not be encoded: {e}"),
    })?;
    Ok(bytes)
}

/// The value of a record of at most `max` bytes. Nothing is allocated for a
/// longer one, and what a record claims about its own lengths is not believed.
///
/// # Errors
/// [`BootstrapError::MessageTooLarge`] beyond `max` bytes;
/// [`BootstrapError::BadMessage`] for another version, malformed bytes, another
/// type, or bytes left over.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], max: usize) -> Result<T, BootstrapError> {
    if bytes.len() > max {
        return Err(BootstrapError::MessageTooLarge {
            bytes: bytes.len() as u64,
            max: max as u64,
        });
    }
    let bad = |reason: String| BootstrapError::BadMessage { reason };
    let (version, body) = bytes
        .split_first()
        .ok_or_else(|| bad("it is empty".into()))?;
    if *version != VERSION {
        return Err(bad(format!(
            "it has version {version} and this build speaks {VERSION}; run the same build on all ranks"
        )));
    }
    if !lengths_fit(body) {
        return Err(bad("a length in it is larger than the rest of it".into()));
    }
    // A slice as reader: it shrinks from the front as the decoder reads.
    let mut rest = body;
    let mut decoder = rmp_serde::Deserializer::new(&mut rest);
    decoder.set_max_depth(64);
    let value = T::deserialize(&mut decoder).map_err(|e| bad(e.to_string()))?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(bad(format!("{} bytes are left over", rest.len())))
    }
}

/// Whether no list, text or run of bytes claims to be longer than what follows it. serde makes room
/// for what is claimed, up to a MiB a list.
fn lengths_fit(mut rest: &[u8]) -> bool {
    /// The number in the first `N` bytes, and what is behind them.
    fn number<const N: usize>(rest: &[u8]) -> Option<(usize, &[u8])> {
        let (bytes, rest) = rest.split_first_chunk::<N>()?;
        let number = bytes
            .iter()
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        Some((usize::try_from(number).unwrap_or(usize::MAX), rest))
    }
    // Entries of lists take a byte each at least, those of maps two, and are read in their turn.
    loop {
        let Some((marker, after)) = rest.split_first() else {
            return true;
        };
        let of = |bits: u8| Some((usize::from(marker & bits), after));
        let bytes = |count: usize| Some((count, after));
        let (entries, skipped) = match marker {
            0x90..=0x9f => (of(0x0f), None),
            0x80..=0x8f => (of(0x0f).map(|(count, rest)| (2 * count, rest)), None),
            0xdc => (number::<2>(after), None),
            0xdd => (number::<4>(after), None),
            0xde => (
                number::<2>(after).map(|(count, rest)| (2 * count, rest)),
                None,
            ),
            0xdf => (
                number::<4>(after).map(|(count, rest)| (count.saturating_mul(2), rest)),
                None,
            ),
            0xa0..=0xbf => (None, of(0x1f)),
            0xc4 | 0xd9 => (None, number::<1>(after)),
            0xc5 | 0xda => (None, number::<2>(after)),
            0xc6 | 0xdb => (None, number::<4>(after)),
            0xcc | 0xd0 => (None, bytes(1)),
            0xcd | 0xd1 => (None, bytes(2)),
            0xce | 0xd2 | 0xca => (None, bytes(4)),
            0xcf | 0xd3 | 0xcb => (None, bytes(8)),
            // Extensions, which no record has.
            0xc7..=0xc9 | 0xd4..=0xd8 => return false,
            // What is one byte long.
            _ => (None, bytes(0)),
        };
        rest = match (entries, skipped) {
            (Some((count, rest)), _) if count <= rest.len() => rest,
            (_, Some((count, rest))) if count <= rest.len() => &rest[count..],
            _ => return false,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Record {
        id: u64,
        name: String,
        parts: Vec<Option<i32>>,
        raw: [u8; 16],
    }

    fn record() -> impl Strategy<Value = Record> {
        (
            any::<u64>(),
            ".{0,40}",
            proptest::collection::vec(any::<Option<i32>>(), 0..20),
            any::<[u8; 16]>(),
        )
            .prop_map(|(id, name, parts, raw)| Record {
                id,
                name,
                parts,
                raw,
            })
    }

    proptest! {
        #[test]
        fn a_record_comes_back_whole(value in record()) {
            let bytes = encode(&value).unwrap();
            prop_assert_eq!(decode::<Record>(&bytes, 4096).unwrap(), value);
        }

        #[test]
        fn a_truncated_or_extended_record_is_refused(value in record(), cut in any::<prop::sample::Index>()) {
            let mut bytes = encode(&value).unwrap();
            let short = &bytes[..cut.index(bytes.len())];
            prop_assert!(decode::<Record>(short, 4096).is_err());
            bytes.push(0);
            prop_assert!(decode::<Record>(&bytes, 4096).is_err());
        }
    }

    #[test]
    fn size_and_version_are_checked_first() {
        let bytes = encode(&7_u32).unwrap();
        assert!(matches!(
            decode::<u32>(&bytes, 1),
            Err(BootstrapError::MessageTooLarge { bytes: 2, max: 1 })
        ));
        assert!(matches!(
            decode::<u32>(&[VERSION + 1, 7], 16),
            Err(BootstrapError::BadMessage { .. })
        ));
        assert!(decode::<u32>(&[], 16).is_err());
    }

    #[test]
    fn a_lying_length_allocates_nothing_large() {
        // An array that claims 4 billion entries, and a string that claims 4 GiB.
        for lie in [
            [VERSION, 0xdd, 0xff, 0xff, 0xff, 0xff],
            [VERSION, 0xdb, 0xff, 0xff, 0xff, 0xff],
        ] {
            assert!(decode::<Vec<u64>>(&lie, 64).is_err());
            assert!(decode::<String>(&lie, 64).is_err());
        }
        // What serde makes room for before it reads.
        let found = [VERSION, 0xdd, 1, 0xfd, 0, 0, 0, 0, 0x2c];
        for lie in [&found[..], &[VERSION, 0x93, 0xdc, 0xff, 0xff, 1, 2]] {
            mscclpp_fuzz::in_proportion(lie, || {
                assert!(decode::<Vec<[u64; 16]>>(lie, 64).is_err());
                assert!(decode::<Vec<Vec<[u64; 16]>>>(lie, 64).is_err());
                assert!(decode::<Vec<Record>>(lie, 64).is_err());
            });
        }
    }

    #[test]
    fn fuzz_decode() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(value) =
                mscclpp_fuzz::in_proportion(bytes, || decode::<Record>(bytes, 1 << 16))
            {
                let again = encode(&value).unwrap();
                assert_eq!(decode::<Record>(&again, 1 << 17).unwrap(), value);
            }
        });
    }
}
