// SPDX-License-Identifier: MIT
//! Two ranks in one process, with a channel each way.

use std::sync::Arc;
use std::thread;

use mscclpp_bootstrap::{Bootstrap, Deadline, TcpBootstrap};
use mscclpp_port::{Communicator, EndpointConfig, Error, MemoryOptions, TransportKind};

pub(crate) use crate::end::End;
use crate::local::Local;
use crate::support::PATIENCE;

pub(crate) fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// Sets one rank of two up, its proxy running; the other does the same at the same time.
pub(crate) fn end(communicator: Communicator, bytes: u64) -> Result<End, Error> {
    let peer = 1 - communicator.bootstrap().rank();
    let over = (
        EndpointConfig::new(TransportKind::Ethernet),
        MemoryOptions::default(),
    );
    let end = crate::end::end(communicator, peer, bytes, over, soon())?;
    end.service.start_proxy()?;
    Ok(end)
}

/// Two ranks that joined over TCP.
pub(crate) fn tcp_world() -> Vec<Arc<dyn Bootstrap>> {
    let ranks = [0, 1].map(|rank| TcpBootstrap::new(rank, 2).unwrap());
    let id = ranks[0].create_unique_id().unwrap();
    thread::scope(|scope| {
        for rank in &ranks {
            scope.spawn(|| rank.initialize(&id, PATIENCE).unwrap());
        }
    });
    ranks
        .into_iter()
        .map(|rank| Arc::new(rank) as Arc<dyn Bootstrap>)
        .collect()
}

/// Both ends, over buffers of some bytes.
pub(crate) fn pair(bytes: u64) -> [End; 2] {
    pair_of(Local::world(2).0, bytes)
}

/// Both ends over a world of two.
pub(crate) fn pair_of(world: Vec<Arc<dyn Bootstrap>>, bytes: u64) -> [End; 2] {
    let communicators = world
        .into_iter()
        .map(|rank| Communicator::new(rank).unwrap());
    let setups: Vec<_> = communicators
        .map(|communicator| thread::spawn(move || end(communicator, bytes)))
        .collect();
    let ends: Vec<End> = setups
        .into_iter()
        .map(|s| s.join().unwrap().unwrap())
        .collect();
    ends.try_into()
        .unwrap_or_else(|_| unreachable!("two threads"))
}
