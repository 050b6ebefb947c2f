// SPDX-License-Identifier: MIT
//! What lies between queue pairs: packets wait, arrive in order, or are lost.

use std::collections::VecDeque;

use super::packet::Packet;
use crate::capability::DeviceAddress;
use crate::config::NetworkConfig;
use crate::counters::Counters;
use crate::time::Time;

#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) config: NetworkConfig,
    pub(crate) up: bool,
    /// In order of arrival; the due times never decrease.
    under_way: VecDeque<(Time, DeviceAddress, Packet)>,
    last_due: Time,
}

impl Network {
    pub(crate) fn new(config: NetworkConfig) -> Self {
        Self {
            config,
            up: true,
            under_way: VecDeque::new(),
            last_due: Time::ZERO,
        }
    }

    pub(crate) fn send(
        &mut self,
        now: Time,
        rng: &mut fastrand::Rng,
        counters: &mut Counters,
        to: DeviceAddress,
        packet: Packet,
    ) {
        counters.packets_sent += 1;
        if !self.up || (self.config.loss > 0.0 && rng.f64() < self.config.loss) {
            counters.packets_lost += 1;
            return;
        }
        let mut due = now;
        if !self.config.delay.is_zero() {
            due = now.after(self.config.delay.mul_f64(rng.f64()));
        }
        self.last_due = self.last_due.max(due);
        self.under_way.push_back((self.last_due, to, packet));
    }

    /// Packets that have not arrived.
    pub(crate) fn waiting(&self) -> usize {
        self.under_way.len()
    }

    /// The next packet that has arrived.
    pub(crate) fn arrive(&mut self, now: Time) -> Option<(DeviceAddress, Packet)> {
        if self.under_way.front()?.0 > now {
            return None;
        }
        self.under_way
            .pop_front()
            .map(|(_, to, packet)| (to, packet))
    }

    /// When the next packet arrives.
    pub(crate) fn next_arrival(&self) -> Option<Time> {
        self.under_way.front().map(|(due, ..)| *due)
    }
}
