// SPDX-License-Identifier: MIT
//! Proven connections: the one way in which any connection of a job is made.
//!
//! The connector sends who it is and what it wants ([`LinkId`]) with a nonce; the
//! acceptor answers with a nonce; the connector proves that it has the key, then
//! the acceptor does. A proof is a keyed hash (HMAC-SHA256) over everything that
//! was said, nonces, ranks and world size included; the key ([`LinkKey`]) is
//! derived from the job's, the purpose and a context. The key itself never
//! travels, and a stranger sees no byte that depends on it. After the proof the
//! connection is a plain stream: it is authenticated when made, not encrypted.
//!
//! Streams are TCP ([`Acceptor::expect`], [`connect`]) or, between processes of
//! one host, Unix sockets ([`Acceptor::expect_unix`], [`connect_unix`]). Nothing
//! here chooses between the two.
//!
//! ```
//! use std::net::Ipv4Addr;
//! use std::time::Duration;
//! use mscclpp_bootstrap::link::{self, Acceptor, LinkId, LinkKey};
//! use mscclpp_bootstrap::{Deadline, JobKey};
//!
//! # fn main() -> Result<(), mscclpp_bootstrap::BootstrapError> {
//! let job = JobKey::random()?;
//! let key = LinkKey::derive(Some(&job), "example", b"ranks 0 and 1");
//! let id = LinkId::random()?;
//! let acceptor = Acceptor::bind(Ipv4Addr::LOCALHOST.into())?;
//! let expected = acceptor.expect(id, key.clone());
//!
//! // The other rank, which learned the address and the id over the bootstrap:
//! let address = acceptor.local_addr();
//! let other = std::thread::spawn(move || {
//!     link::connect(address, id, &key, Deadline::after(Duration::from_secs(5)))
//! });
//! let stream = expected.accept(Deadline::after(Duration::from_secs(5)))?;
//! let their_stream = other.join().unwrap()?;
//! assert_eq!(stream.local_addr().unwrap(), their_stream.peer_addr().unwrap());
//! # Ok(())
//! # }
//! ```

mod acceptor;
mod connect;
mod guests;
mod handshake;
mod registry;
mod serve;
#[cfg(all(test, not(loom), target_os = "linux"))]
mod tests;
mod wire;

use std::fmt;
use std::time::Duration;

use zeroize::{Zeroize, ZeroizeOnDrop};

pub use self::acceptor::{Acceptor, Expected};
pub(crate) use self::connect::{Call, CallError, PROOF_PATIENCE, connect_async};
pub use self::connect::{connect, connect_unix, connect_unix_while, connect_while};
pub(crate) use self::handshake::{Claims, Refusal};
pub(crate) use self::registry::{Admission, Registry, Service};
pub(crate) use self::serve::serve;
pub use self::wire::UnixAddress;
use crate::secret::{keyed_bytes, random};
use crate::{BootstrapError, JobKey};

/// How long to wait for the other end before asking whether that is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Names one expected connection, or one kind of connections, of an acceptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkId([u8; 16]);

impl LinkId {
    /// A fresh random id.
    ///
    /// # Errors
    /// [`BootstrapError::Random`] when the operating system gives no random
    /// bytes.
    pub fn random() -> Result<Self, BootstrapError> {
        random().map(Self)
    }

    /// The id with the given bytes, as [`LinkId::to_bytes`] gave them elsewhere.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, for the other end.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// An id that only those know who have the key.
    pub(crate) fn of_service(key: &LinkKey) -> Self {
        let bytes = keyed_bytes(&key.0, &[b"mscclpp link id"]);
        let mut id = [0; 16];
        id.copy_from_slice(&bytes[..16]);
        Self(id)
    }
}

impl fmt::Debug for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkId(")?;
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

/// The key that both ends of a connection prove to have. Wiped from memory when
/// dropped; `Debug` does not show it.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct LinkKey([u8; 32]);

impl LinkKey {
    /// The key for connections of one `purpose` between those who agree on
    /// `context`: ranks, world size, a number of the connection. Whatever differs
    /// on the two ends makes the proof fail.
    ///
    /// Without a job key (a bootstrap that has none) the context is all there is:
    /// put random bytes into it that only the two ends know.
    #[must_use]
    pub fn derive(job_key: Option<&JobKey>, purpose: &str, context: &[u8]) -> Self {
        let label: &[u8] = b"mscclpp link key";
        let (known, root) = match job_key {
            Some(key) => (&[1][..], *key.expose()),
            None => (&[0][..], [0; 32]),
        };
        let root = zeroize::Zeroizing::new(root);
        Self(*keyed_bytes(
            &*root,
            &[label, known, purpose.as_bytes(), context],
        ))
    }
}

impl fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkKey(redacted)")
    }
}
