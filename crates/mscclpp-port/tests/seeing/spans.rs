// SPDX-License-Identifier: MIT
//! Every step of the host is a span that names rank and peer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use mscclpp_bootstrap::{Bootstrap, Deadline, TcpBootstrap};
use mscclpp_port::{
    Buffer, Communicator, Device, EndpointConfig, Error, GpuNetIoService, Hca, Host2HostSemaphore,
    ProxyService, TransportKind,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const PATIENCE: Duration = Duration::from_secs(40);

/// A span that was made.
#[derive(Debug)]
struct Span {
    name: &'static str,
    level: Level,
    fields: BTreeMap<&'static str, String>,
}

/// Writes down all spans of this project.
#[derive(Default)]
struct Recorder {
    last: AtomicU64,
    spans: Arc<Mutex<Vec<Span>>>,
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("mscclpp")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = BTreeMap::new();
        attributes.record(&mut Fields(&mut fields));
        let metadata = attributes.metadata();
        self.spans.lock().unwrap().push(Span {
            name: metadata.name(),
            level: *metadata.level(),
            fields,
        });
        Id::from_u64(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Two ranks, each on a thread of its own, that join over TCP, do something and leave.
fn two_ranks(act: impl Fn(Arc<dyn Bootstrap>) -> Result<(), Error> + Sync) {
    let ranks = [0, 1].map(|rank| TcpBootstrap::new(rank, 2).unwrap());
    let id = ranks[0].create_unique_id_at([127, 0, 0, 1].into()).unwrap();
    thread::scope(|scope| {
        for rank in ranks {
            let (id, act) = (&id, &act);
            scope.spawn(move || {
                rank.initialize(id, PATIENCE).unwrap();
                act(Arc::new(rank)).unwrap();
            });
        }
    });
}

/// A connection, memory, a semaphore, a channel and a proxy.
fn by_proxy(bootstrap: Arc<dyn Bootstrap>) -> Result<(), Error> {
    let peer = 1 - bootstrap.rank();
    let communicator = Communicator::new(bootstrap)?;
    let buffer = Buffer::new(Device::cpu(), 64)?;
    let local = communicator.register_memory(&buffer, 0..64)?;
    communicator.send_memory(&local, peer, 0)?;
    let remote = communicator.recv_memory(peer, 0)?;
    let endpoint = EndpointConfig::new(TransportKind::Ethernet);
    let connection = communicator.connect(endpoint, peer, 0)?.get()?;
    let remote = remote.get()?;
    let service = ProxyService::with_default_size()?;
    let semaphore = service.build_and_add_semaphore(&communicator, &connection)?;
    let (dst, src) = (service.add_memory(remote)?, service.add_memory(local)?);
    let channel = service.port_channel(semaphore, dst, src)?;
    service.start_proxy()?;
    // Nobody signals it, so that it has to wait.
    let silent = communicator.build_semaphore(&connection, peer, 1)?.get()?;
    let silent = Host2HostSemaphore::new(silent)?;
    let waited = silent.wait(Deadline::after(Duration::from_millis(10)));
    assert!(matches!(waited, Err(Error::Timeout { .. })));
    connection.flush(Deadline::after(PATIENCE))?;
    service.stop_proxy()?;
    drop(channel);
    communicator.bootstrap().barrier().unwrap();
    Ok(())
}

/// A queue that kernels could post to.
fn by_queue(bootstrap: Arc<dyn Bootstrap>) -> Result<(), Error> {
    let peer = 1 - bootstrap.rank();
    let device = mscclpp_softnic::Device::open("soft0", Default::default()).unwrap();
    let service = GpuNetIoService::new(Arc::clone(&bootstrap), Hca::from(device), Device::cpu())?;
    service.setup_full_mesh(1, 0)?;
    // Kept until both have theirs: a queue that is let go ends the call of a peer who is not as far.
    let queues = service.connect_on_demand(peer, 1, 5, Deadline::after(PATIENCE))?;
    bootstrap.barrier().unwrap();
    drop(queues);
    Ok(())
}

#[test]
fn steps_of_the_host_are_spans_with_rank_and_peer() {
    let recorder = Recorder::default();
    let spans = Arc::clone(&recorder.spans);
    tracing::subscriber::set_global_default(recorder).unwrap();
    two_ranks(by_proxy);
    two_ranks(by_queue);

    let spans = spans.lock().unwrap();
    let missing = |name: &str, level: Level, fields: &[(&str, String)]| {
        let is_it = |span: &&Span| {
            let has = |(name, value): &(&str, String)| span.fields.get(name) == Some(value);
            span.name == name && fields.iter().all(has)
        };
        let found: Vec<&Span> = spans.iter().filter(is_it).collect();
        let levels_fit = found.iter().all(|span| span.level == level);
        (found.is_empty() || !levels_fit).then(|| format!("{name} {level} {fields:?}: {found:?}"))
    };
    let (info, debug, trace) = (Level::INFO, Level::DEBUG, Level::TRACE);
    let mut all_missing = Vec::new();
    for rank in [0, 1] {
        let own = ("rank", rank.to_string());
        let pair = [own.clone(), ("peer", (1 - rank).to_string())];
        for (name, level) in [
            ("join", info),
            ("leave", info),
            ("collective", debug),
            ("gate", debug),
            ("register_memory", debug),
            ("create_endpoint", debug),
            ("start_proxy", info),
            ("stop_proxy", info),
            ("setup", info),
        ] {
            all_missing.extend(missing(name, level, std::slice::from_ref(&own)));
        }
        for (name, level) in [
            ("send", trace),
            ("receive", trace),
            ("connect", debug),
            ("connection_io", debug),
            ("make_channel", debug),
            ("disconnect", debug),
            ("connect_on_demand", info),
        ] {
            all_missing.extend(missing(name, level, &pair));
        }
        for kind in ["a registered memory", "an endpoint", "a semaphore"] {
            for name in ["send_record", "receive_record"] {
                let fields = [&pair[..], &[("kind", kind.into())]].concat();
                all_missing.extend(missing(name, debug, &fields));
            }
        }
        let fields = [&pair[..], &[("operation", "signal".into())]].concat();
        all_missing.extend(missing("wait", trace, &fields));
        for phase in [
            "plan",
            "capability",
            "port",
            "allocate",
            "exchange",
            "wire",
            "INIT",
            "RTR",
            "RTS",
            "self-test",
            "publish",
        ] {
            let fields = [own.clone(), ("phase", phase.into())];
            all_missing.extend(missing("phase", info, &fields));
        }
    }
    assert!(all_missing.is_empty(), "{all_missing:#?}");

    // Regular: whoever has a peer has a rank.
    let is_odd =
        |span: &&Span| span.fields.contains_key("peer") && !span.fields.contains_key("rank");
    assert!(
        !spans.iter().any(|span| is_odd(&span)),
        "{:#?}",
        spans.iter().find(is_odd)
    );
}
