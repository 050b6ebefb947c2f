// SPDX-License-Identifier: MIT
//! The ticket that lets ranks meet: an address and a secret in 128 bytes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use sha2::{Digest, Sha256};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::BootstrapError;
use crate::secret::{Secret, random};

/// What ranks need to meet: the address of rank 0 and 256 random bits that
/// nobody else knows. Rank 0 makes it ([`crate::TcpBootstrap::create_unique_id`])
/// and hands it to the others over a channel that the user trusts, as bytes or
/// as text.
///
/// Layout of the 128 bytes, little-endian, all unused bytes zero:
///
/// | bytes | content |
/// |---|---|
/// | 0..8 | `MSCCLPPU` |
/// | 8..10 | version, 1 |
/// | 10 | address family: 4 or 6 |
/// | 12..14 | port |
/// | 16..32 | address, an IPv4 one in the first four bytes |
/// | 32..64 | secret |
/// | 120..128 | the first 8 bytes of the SHA-256 of bytes 0..120 |
///
/// Whoever has the id may join. `Debug` shows the address only; the memory is
/// wiped when the id is dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct UniqueId {
    #[zeroize(skip)]
    address: SocketAddr,
    secret: [u8; 32],
}

const MAGIC: &[u8; 8] = b"MSCCLPPU";
const VERSION: u16 = 1;
const DIGEST_AT: usize = UniqueId::BYTES - 8;

impl UniqueId {
    /// The size of [`UniqueId::to_bytes`].
    pub const BYTES: usize = 128;

    /// An id for the given address of rank 0, with a fresh secret.
    pub(crate) fn new(address: SocketAddr) -> Result<Self, BootstrapError> {
        Ok(Self {
            address,
            secret: random()?,
        })
    }

    /// Where rank 0 listens while ranks join.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn secret(&self) -> Result<Secret, BootstrapError> {
        Secret::new(self.secret)
    }

    pub(crate) fn same_as(&self, other: &Self) -> bool {
        self.address == other.address && self.secret == other.secret
    }

    /// The id as bytes, for another process. They contain the secret.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        match self.address.ip() {
            IpAddr::V4(ip) => {
                bytes[10] = 4;
                bytes[16..20].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                bytes[10] = 6;
                bytes[16..32].copy_from_slice(&ip.octets());
            }
        }
        bytes[12..14].copy_from_slice(&self.address.port().to_le_bytes());
        bytes[32..64].copy_from_slice(&self.secret);
        let digest = digest(&bytes[..DIGEST_AT]);
        bytes[DIGEST_AT..].copy_from_slice(&digest);
        bytes
    }

    /// The id of these bytes.
    ///
    /// # Errors
    /// [`BootstrapError::BadUniqueId`] when they are not 128 bytes that
    /// [`UniqueId::to_bytes`] of the same version made.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BootstrapError> {
        let bad = |reason| Err(BootstrapError::BadUniqueId { reason });
        let Ok(bytes) = <&[u8; Self::BYTES]>::try_from(bytes) else {
            return bad("it must have 128 bytes");
        };
        if &bytes[..8] != MAGIC {
            return bad("it does not begin as one");
        }
        if bytes[8..10] != VERSION.to_le_bytes() {
            return bad("it has another version; run the same build on all ranks");
        }
        if bytes[DIGEST_AT..] != digest(&bytes[..DIGEST_AT]) {
            return bad("it was damaged on the way");
        }
        let mut ip = [0_u8; 16];
        ip.copy_from_slice(&bytes[16..32]);
        let [a, b, c, d, rest @ ..] = ip;
        let address = match bytes[10] {
            4 if rest == [0; 12] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            6 => IpAddr::V6(Ipv6Addr::from(ip)),
            _ => return bad("its address family is unknown"),
        };
        let port = u16::from_le_bytes([bytes[12], bytes[13]]);
        let unused = [&bytes[11..12], &bytes[14..16], &bytes[64..DIGEST_AT]];
        if unused.concat().iter().any(|b| *b != 0) {
            return bad("bytes are set that this version does not know");
        }
        if port == 0 || address.is_unspecified() {
            return bad("nobody can connect to its address");
        }
        let mut secret = [0; 32];
        secret.copy_from_slice(&bytes[32..64]);
        Ok(Self {
            address: SocketAddr::new(address, port),
            secret,
        })
    }

    /// The id as 256 hexadecimal digits, for a file, a variable or an argument.
    /// They contain the secret. [`str::parse`] reads them.
    #[must_use]
    pub fn to_text(&self) -> String {
        use fmt::Write;
        let bytes = Zeroizing::new(self.to_bytes());
        let mut text = String::with_capacity(2 * Self::BYTES);
        for byte in bytes.iter() {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

fn digest(bytes: &[u8]) -> [u8; 8] {
    let mut first = [0; 8];
    first.copy_from_slice(&Sha256::digest(bytes)[..8]);
    first
}

impl FromStr for UniqueId {
    type Err = BootstrapError;

    /// Reads [`UniqueId::to_text`]; white space at both ends does not count.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.trim().as_bytes();
        let mut bytes = Zeroizing::new([0; Self::BYTES]);
        if digits.len() != 2 * Self::BYTES {
            return Err(BootstrapError::BadUniqueId {
                reason: "it must have 256 hexadecimal digits",
            });
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let high = (pair[0] as char).to_digit(16);
            let low = (pair[1] as char).to_digit(16);
            let (Some(high), Some(low)) = (high, low) else {
                return Err(BootstrapError::BadUniqueId {
                    reason: "it must have hexadecimal digits only",
                });
            };
            *byte = (high << 4 | low) as u8;
        }
        Self::from_bytes(&bytes[..])
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId")
            .field("address", &self.address)
            .field("secret", &"redacted")
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn addresses() -> impl Strategy<Value = SocketAddr> {
        let v4 = (1_u32..).prop_map(|ip| IpAddr::V4(Ipv4Addr::from(ip)));
        let v6 = (1_u128..).prop_map(|ip| IpAddr::V6(Ipv6Addr::from(ip)));
        (prop_oneof![v4, v6], 1_u16..).prop_map(|(ip, port)| SocketAddr::new(ip, port))
    }

    proptest! {
        #[test]
        fn bytes_and_text_come_back(address in addresses()) {
            let id = UniqueId::new(address).unwrap();
            let by_bytes = UniqueId::from_bytes(&id.to_bytes()).unwrap();
            let by_text: UniqueId = format!(" {}\n", id.to_text()).parse().unwrap();
            prop_assert!(by_bytes.same_as(&id));
            prop_assert!(by_text.same_as(&id));
        }

        #[test]
        fn any_flipped_bit_is_noticed(address in addresses(), at in 0..UniqueId::BYTES * 8) {
            let mut bytes = UniqueId::new(address).unwrap().to_bytes();
            bytes[at / 8] ^= 1 << (at % 8);
            prop_assert!(UniqueId::from_bytes(&bytes).is_err());
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let id = UniqueId::new("127.0.0.1:7".parse().unwrap()).unwrap();
        assert_eq!(
            format!("{id:?}"),
            "UniqueId { address: 127.0.0.1:7, secret: \"redacted\" }"
        );
    }

    #[test]
    fn two_ids_have_different_secrets() {
        let at = "127.0.0.1:7".parse().unwrap();
        assert!(
            !UniqueId::new(at)
                .unwrap()
                .same_as(&UniqueId::new(at).unwrap())
        );
    }

    #[test]
    fn bad_texts_are_refused() {
        for bad in [
            "",
            "00",
            &"z".repeat(256),
            &"0".repeat(256),
            &"é".repeat(128),
        ] {
            assert!(bad.parse::<UniqueId>().is_err());
        }
    }

    #[test]
    fn fuzz_unique_id_text() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            let id = mscclpp_fuzz::in_proportion(bytes, || text.parse::<UniqueId>());
            if let Ok(id) = id {
                assert_eq!(id.to_text(), text.trim().to_ascii_lowercase());
            }
        });
    }

    #[test]
    fn fuzz_unique_id() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            // No input has the right digest by chance.
            if let Some((rest, digest)) = bytes.split_last_chunk_mut::<8>()
                && digest == &[0; 8]
            {
                *digest = super::digest(rest);
            }
            if let Ok(id) = mscclpp_fuzz::in_proportion(&bytes, || UniqueId::from_bytes(&bytes)) {
                assert_eq!(id.to_bytes()[..], bytes);
            }
        });
    }
}
