// SPDX-License-Identifier: MIT
//! How many bytes go over a rank's connections.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that a rank's connections have carried: messages and what frames them, signs of life, and
/// what was said while joining; not the proofs by which connections begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireBytes {
    /// Written.
    pub sent: u64,
    /// Read.
    pub received: u64,
}

/// Counts them.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Meter {
    pub(crate) fn read(&self) -> WireBytes {
        WireBytes {
            sent: self.sent.load(Relaxed),
            received: self.received.load(Relaxed),
        }
    }
}

/// A half of a stream whose bytes are counted.
pub(crate) struct Metered<S> {
    half: S,
    meter: Arc<Meter>,
}

impl<S> Metered<S> {
    pub(crate) fn new(half: S, meter: &Arc<Meter>) -> Self {
        let meter = Arc::clone(meter);
        Self { half, meter }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.half).poll_read(context, buffer);
        let count = buffer.filled().len() - before;
        self.meter.received.fetch_add(count as u64, Relaxed);
        read
    }
}

impl<S: AsyncWrite + Unpin> Metered<S> {
    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &written {
            self.meter.sent.fetch_add(*count as u64, Relaxed);
        }
        written
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.half).poll_write(context, bytes);
        self.wrote(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.half).poll_write_vectored(context, parts);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.half.is_write_vectored()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn what_goes_over_a_stream_is_counted_at_both_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (a, b) = tokio::io::duplex(64);
            let (ours, theirs) = (Arc::<Meter>::default(), Arc::<Meter>::default());
            let (mut a, mut b) = (Metered::new(a, &ours), Metered::new(b, &theirs));
            let write = async {
                a.write_all(&[7; 1000]).await.unwrap();
                a.shutdown().await.unwrap();
            };
            let mut all = Vec::new();
            let (_, read) = tokio::join!(write, b.read_to_end(&mut all));
            assert_eq!(read.unwrap(), 1000);
            assert_eq!(
                ours.read(),
                WireBytes {
                    sent: 1000,
                    received: 0
                }
            );
            assert_eq!(
                theirs.read(),
                WireBytes {
                    sent: 0,
                    received: 1000
                }
            );
        });
    }
}
