// SPDX-License-Identifier: MIT
//! A bootstrap that behaves until a fault says otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, Tag, forward_bootstrap};

use super::faulty::die;
use crate::gpu_net_io_service::record::EdgeRecord;

/// What a rank's bootstrap does to the messages of a setup that go between two ranks.
#[derive(Clone, Copy)]
pub(super) enum Mail {
    /// Another byte in the middle.
    Garbled,
    /// The last byte is missing.
    Cut,
    /// They do not arrive.
    Lost,
    /// They are sent so much later.
    Late(Duration),
    Twice,
    /// They say something else.
    Record(fn(&mut EdgeRecord)),
    /// They cannot be sent, or not be received.
    RefusedToSend,
    RefusedToReceive,
    /// The process is killed before it sends, or receives, the first.
    DeadlyToSend,
    DeadlyToReceive,
    /// The process is killed a moment after it has sent so many messages to gates.
    DeadlyAfterGateMessages(usize),
}

/// A bootstrap with such a fault.
pub(super) struct FaultyMail {
    inner: Arc<dyn Bootstrap>,
    fault: Option<Mail>,
    /// Messages to gates so far.
    to_gates: AtomicUsize,
}

impl FaultyMail {
    pub(super) fn new(inner: Arc<dyn Bootstrap>, fault: Option<Mail>) -> Self {
        let to_gates = AtomicUsize::new(0);
        Self {
            inner,
            fault,
            to_gates,
        }
    }

    fn fault(&self, tag: Tag) -> Option<Mail> {
        let ours = tag.value() >> 32 == Tag::layered(2, 0).value() >> 32;
        self.fault.filter(|_| ours)
    }

    fn refused(&self) -> BootstrapError {
        BootstrapError::Io {
            operation: "a message that the test refuses".into(),
            hint: String::new(),
            source: std::io::Error::other("refused"),
        }
    }
}

impl Bootstrap for FaultyMail {
    forward_bootstrap!(inner);

    fn send(
        &self,
        peer: usize,
        tag: Tag,
        data: &[u8],
        deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        let mut data = data.to_vec();
        match self.fault(tag) {
            Some(Mail::Garbled) => {
                let middle = data.len() / 2;
                data[middle..].fill(0xc1);
            }
            Some(Mail::Cut) => drop(data.pop()),
            Some(Mail::Lost) => return Ok(()),
            Some(Mail::Late(time)) => std::thread::sleep(time),
            Some(Mail::Record(change)) => {
                let mut record = EdgeRecord::decode(&data).expect("a record");
                change(&mut record);
                data = record.encode().expect("a record");
            }
            Some(Mail::Twice) => self.inner.send(peer, tag, &data, deadline)?,
            Some(Mail::RefusedToSend) => return Err(self.refused()),
            Some(Mail::DeadlyToSend) => die(),
            _ => {}
        }
        self.inner.send(peer, tag, &data, deadline)?;
        if let Some(Mail::DeadlyAfterGateMessages(last)) = self.fault
            && tag.to_string().starts_with("setup")
            && self.to_gates.fetch_add(1, Ordering::SeqCst) + 1 == last
        {
            std::thread::sleep(Duration::from_millis(100));
            die();
        }
        Ok(())
    }

    fn recv(&self, peer: usize, tag: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        match self.fault(tag) {
            Some(Mail::RefusedToReceive) => return Err(self.refused()),
            Some(Mail::DeadlyToReceive) => die(),
            _ => {}
        }
        self.inner.recv(peer, tag, deadline)
    }
}
