// SPDX-License-Identifier: MIT
//! Halves whose sending takes too long: also then the calls of both ranks pair up one by one.

use std::sync::Mutex;

use mscclpp_bootstrap::{BootstrapError, Tag, forward_bootstrap};

use super::*;

/// What becomes of a message whose time is up.
#[derive(Clone, Copy)]
enum Late {
    /// It arrives nevertheless.
    Arrives,
    Lost,
}

/// The next send takes too long.
struct Slow {
    inner: Arc<dyn Bootstrap>,
    next: Mutex<Option<Late>>,
}

impl Bootstrap for Slow {
    forward_bootstrap!(inner);

    fn send(&self, to: usize, tag: Tag, data: &[u8], by: Deadline) -> Result<(), BootstrapError> {
        let (rank, waited) = (self.rank(), by.budget());
        let operation = String::from("a send");
        match self.next.lock().unwrap().take() {
            Some(Late::Arrives) => {
                self.inner.send(to, tag, data, by)?;
                Err(BootstrapError::Underway {
                    rank,
                    peer: to,
                    operation,
                    waited,
                })
            }
            Some(Late::Lost) => Err(BootstrapError::Timeout {
                rank,
                operation,
                waiting_for: vec![to],
                waited,
                hint: String::new(),
            }),
            None => self.inner.send(to, tag, data, by),
        }
    }

    fn recv(&self, from: usize, tag: Tag, by: Deadline) -> Result<Vec<u8>, BootstrapError> {
        self.inner.recv(from, tag, by)
    }
}

/// Two ranks; the next message of the first takes too long.
fn slow_pair(late: Late) -> [Communicator; 2] {
    let [a, b] = <[_; 2]>::try_from(Local::world(2).0).unwrap_or_else(|_| panic!("two ranks"));
    let a = Slow {
        inner: a,
        next: Mutex::new(Some(late)),
    };
    [Arc::new(a) as Arc<dyn Bootstrap>, b].map(|rank| Communicator::new(rank).unwrap())
}

/// Both calls are of one pair.
fn assert_paired(at_a: &Pending<Connection>, at_b: &Pending<Connection>) {
    let ends = [at_a, at_b].map(|pending| pending.get_by(soon()).unwrap());
    for connection in &ends {
        connection.wait_connected(soon()).unwrap();
    }
}

#[test]
fn a_call_after_one_whose_half_may_still_arrive_pairs_with_the_peers_next() {
    let [a, b] = slow_pair(Late::Arrives);
    let error = a.connect(ethernet(), 1, 0).map(drop).unwrap_err();
    assert!(
        matches!(error, Error::Timeout { rank: Some(1), .. }),
        "{error}"
    );
    let _given_up = b.connect(ethernet(), 0, 0).unwrap();
    let at_a = a.connect(ethernet(), 1, 0).unwrap();
    let at_b = b.connect(ethernet(), 0, 0).unwrap();
    assert_paired(&at_a, &at_b);
}

#[test]
fn a_call_after_one_whose_half_was_not_sent_takes_its_place() {
    let [a, b] = slow_pair(Late::Lost);
    a.connect(ethernet(), 1, 0).map(drop).unwrap_err();
    let at_b = b.connect(ethernet(), 0, 0).unwrap();
    let at_a = a.connect(ethernet(), 1, 0).unwrap();
    assert_paired(&at_a, &at_b);
}

/// Also when what was not sent is that there is no half.
#[test]
fn a_call_after_one_that_failed_unheard_takes_its_place() {
    let [a, b] = slow_pair(Late::Lost);
    // This build has no GPU memory.
    let config = EndpointConfig {
        device: Device::gpu(0),
        ..ethernet()
    };
    a.connect(config, 1, 0).map(drop).unwrap_err();
    let at_b = b.connect(ethernet(), 0, 0).unwrap();
    let at_a = a.connect(ethernet(), 1, 0).unwrap();
    assert_paired(&at_a, &at_b);
}
