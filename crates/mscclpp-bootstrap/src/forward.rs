// SPDX-License-Identifier: MIT
//! Bootstraps that stand on another one.

/// The methods of a [`Bootstrap`](crate::Bootstrap) that stands on another one, in the field that is
/// named: all but those that carry messages (`send`, `recv`, `recv_in_collective`) and the collectives
/// that are built on them, which run on the new one.
///
/// ```
/// # use std::sync::Arc;
/// # use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, Tag, forward_bootstrap};
/// /// Says what it sends.
/// struct Chatty {
///     inner: Arc<dyn Bootstrap>,
/// }
///
/// impl Bootstrap for Chatty {
///     forward_bootstrap!(inner);
///
///     fn send(&self, to: usize, tag: Tag, data: &[u8], by: Deadline) -> Result<(), BootstrapError> {
///         println!("{} bytes to rank {to}", data.len());
///         self.inner.send(to, tag, data, by)
///     }
///
///     fn recv(&self, from: usize, tag: Tag, by: Deadline) -> Result<Vec<u8>, BootstrapError> {
///         self.inner.recv(from, tag, by)
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_bootstrap {
    ($inner:ident) => {
        fn rank(&self) -> usize {
            self.$inner.rank()
        }

        fn world_size(&self) -> usize {
            self.$inner.world_size()
        }

        fn deadlines(&self) -> $crate::Deadlines {
            self.$inner.deadlines()
        }

        fn timeout(&self) -> ::std::time::Duration {
            self.$inner.timeout()
        }

        fn ranks_per_node(&self) -> ::std::result::Result<usize, $crate::BootstrapError> {
            self.$inner.ranks_per_node()
        }

        fn local_ip(&self) -> ::std::option::Option<::std::net::IpAddr> {
            self.$inner.local_ip()
        }

        fn job_key(&self) -> ::std::option::Option<$crate::JobKey> {
            self.$inner.job_key()
        }

        fn observe_failures(&self, observer: ::std::sync::Weak<dyn $crate::FailureObserver>) {
            self.$inner.observe_failures(observer);
        }

        fn known_failure(&self) -> ::std::option::Option<$crate::PeerFailure> {
            self.$inner.known_failure()
        }

        fn failure_of(&self, rank: usize) -> ::std::option::Option<$crate::PeerFailure> {
            self.$inner.failure_of(rank)
        }

        fn turns(&self) -> ::std::option::Option<&$crate::Turns> {
            self.$inner.turns()
        }
    };
}
