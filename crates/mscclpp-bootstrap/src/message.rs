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
