// SPDX-License-Identifier: MIT
//! A peer that has gone bad sends what leads nowhere, without end: calls end by their deadlines.

use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, Tag, forward_bootstrap};

use super::world::{Part, nics, service, set_up, set_up_alike, world};
use crate::error::Error;
use crate::gpu_net_io_service::QueueCounts;
use crate::testing::Local;

const SETUPS: u8 = 2;
const ON_DEMAND: u8 = 3;
/// For so long it goes on: longer than any of the calls may take.
const LASTS: Duration = Duration::from_secs(20);

/// On one layer, what came first comes again and again.
struct Flooded {
    inner: Arc<dyn Bootstrap>,
    layer: u8,
    /// How many messages the peer takes there.
    takes: Mutex<usize>,
    again: Mutex<Option<Vec<u8>>>,
    /// When the first came again, or was not taken any more.
    began: OnceLock<Instant>,
}

impl Flooded {
    fn new(inner: &Arc<dyn Bootstrap>, layer: u8, takes: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            layer,
            takes: Mutex::new(takes),
            again: Mutex::default(),
            began: OnceLock::new(),
        })
    }

    fn is_on_layer(&self, tag: Tag) -> bool {
        tag.value() >> 32 == Tag::layered(self.layer, 0).value() >> 32
    }

    /// It was waited out: the call had no end of its own.
    fn is_over(&self) -> bool {
        (self.began.get()).is_some_and(|began| began.elapsed() >= LASTS)
    }
}

impl Bootstrap for Flooded {
    forward_bootstrap!(inner);

    fn send(&self, to: usize, tag: Tag, data: &[u8], by: Deadline) -> Result<(), BootstrapError> {
        if !self.is_on_layer(tag) {
            return self.inner.send(to, tag, data, by);
        }
        let mut takes = self.takes.lock().unwrap();
        if *takes > 0 {
            *takes -= 1;
            // Nobody reads it any more.
            if self.began.get().is_some() {
                return Ok(());
            }
            return self.inner.send(to, tag, data, by);
        }
        self.began.get_or_init(Instant::now);
        let by = by.at_most(LASTS);
        thread::sleep(by.remaining());
        Err(BootstrapError::Timeout {
            rank: self.rank(),
            operation: "a send".into(),
            waiting_for: vec![to],
            waited: by.budget(),
            hint: String::new(),
        })
    }

    fn recv(&self, from: usize, tag: Tag, by: Deadline) -> Result<Vec<u8>, BootstrapError> {
        if !self.is_on_layer(tag) {
            return self.inner.recv(from, tag, by);
        }
        let mut again = self.again.lock().unwrap();
        if let Some(message) = &*again
            && self.began.get_or_init(Instant::now).elapsed() < LASTS
        {
            return Ok(message.clone());
        }
        let message = self.inner.recv(from, tag, by)?;
        again.get_or_insert_with(|| message.clone());
        Ok(message)
    }
}

/// Enough for the flood to begin.
fn briefly() -> Deadline {
    Deadline::after(Duration::from_millis(400))
}

/// The peer takes all that is refused to it, or nothing after the call's own offer.
#[test]
fn gpunetio_offers_without_end_do_not_make_a_call_on_demand_endless() {
    for takes in [usize::MAX, 1] {
        for refuses in [false, true] {
            let nics = nics(2);
            let (ranks, _kill) = Local::world(2);
            // An offer that differs.
            let bad = service(&ranks[1], &nics[1]);
            let error = bad.connect_on_demand(0, 3, 4, briefly()).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            let flooded = Flooded::new(&ranks[0], ON_DEMAND, takes);
            let good = service(&(Arc::clone(&flooded) as Arc<dyn Bootstrap>), &nics[0]);
            let result = match refuses {
                false => good.connect_on_demand(1, 1, 4, briefly()).map(drop),
                true => good.refuse_on_demand(1, 4, "too busy", briefly()),
            };
            let error = result.unwrap_err();
            let case = format!("takes {takes}, refuses: {refuses}: {error}");
            assert!(!flooded.is_over(), "{case}");
            assert!(
                matches!(error, Error::Timeout { rank: Some(1), .. }),
                "{case}"
            );
        }
    }
}

#[test]
fn gpunetio_queues_of_earlier_setups_without_end_do_not_make_a_setup_endless() {
    let (ranks, nics) = (world(2), nics(2));
    let flooded = Flooded::new(&ranks[0], SETUPS, usize::MAX);
    let services = || {
        let ranks = [
            Arc::clone(&flooded) as Arc<dyn Bootstrap>,
            Arc::clone(&ranks[1]),
        ];
        [0, 1].map(|rank: usize| service(&ranks[rank], &nics[rank]))
    };
    set_up_alike(&services(), 1);
    let services = services();
    let part = |service| Part {
        service,
        counts: QueueCounts::Uniform(1),
        comes_after: Duration::ZERO,
    };
    let parts = [part(&services[0]), part(&services[1])];
    let results = set_up(&parts, 0, Duration::from_secs(3));
    assert!(!flooded.is_over(), "{results:?}");
    for result in results {
        let Err(Error::Setup(error)) = result else {
            panic!("{result:?}");
        };
        assert_eq!(error.rank, 0, "{error}");
    }
}
