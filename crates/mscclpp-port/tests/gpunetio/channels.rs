// SPDX-License-Identifier: MIT
//! What channels on queues do.

use mscclpp_port::{EndpointConfig, QueueForm, SignalMode};

use crate::support::ping_pong;
use crate::world::{gpu, nics, pair_on};

/// All forms in which a queue can be made.
fn forms() -> [EndpointConfig; 3] {
    [
        (QueueForm::Shared, SignalMode::Atomic),
        (QueueForm::Exclusive, SignalMode::Atomic),
        (QueueForm::Exclusive, SignalMode::InlineWrite),
    ]
    .map(|(queue_form, signal_mode)| {
        let mut config = gpu();
        config.ib.queue_form = queue_form;
        config.ib.signal_mode = signal_mode;
        config.ib.max_send_wr = Some(16);
        config
    })
}

#[test]
fn gpunetio_ping_pong_without_a_proxy_in_every_form() {
    for config in forms() {
        let [a, b] = pair_on(&nics(), 8192, config);
        let ends = [(a.handle(), a.address()), (b.handle(), b.address())];
        ping_pong(ends, 1000, 100);
    }
}
