// SPDX-License-Identifier: MIT
//! Counters in Prometheus's text format, version 0.0.4:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>.

use std::fmt::{Display, Write};
use std::time::Duration;

use super::{Counters, HcaCounters, Pauses, Posts, ProxyCounters, QueueCounters, Snapshot};

/// Names and values, in the order in which they are written.
type Labels = Vec<(&'static str, String)>;

/// The text, family by family.
struct Text(String);

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

impl Text {
    /// All samples of one name, which must not be scattered. Without samples nothing is written.
    fn family<V: Display>(
        &mut self,
        (name, kind, help): (&str, Kind, &str),
        samples: impl Iterator<Item = (Labels, V)>,
    ) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let text = &mut self.0;
        for (at, (labels, value)) in samples.enumerate() {
            // Writing to a String cannot fail.
            if at == 0 {
                let _ = writeln!(
                    text,
                    "# HELP mscclpp_{name} {help}\n# TYPE mscclpp_{name} {kind}"
                );
            }
            let _ = write!(text, "mscclpp_{name}");
            let mut before = '{';
            for (label, value) in &labels {
                let _ = write!(text, "{before}{label}=\"{}\"", Escaped(value));
                before = ',';
            }
            let end = if labels.is_empty() { "" } else { "}" };
            let _ = writeln!(text, "{end} {value}");
        }
    }
}

/// A label's value, with what would end it or its line escaped.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            char => f.write_char(char),
        })
    }
}

/// Seconds, to the nanosecond.
struct Seconds(Duration);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09}", self.0.as_secs(), self.0.subsec_nanos())
    }
}

fn with(mut labels: Labels, name: &'static str, value: impl ToString) -> Labels {
    labels.push((name, value.to_string()));
    labels
}

fn of_rank(rank: Option<usize>) -> Labels {
    (rank.iter())
        .map(|rank| ("rank", rank.to_string()))
        .collect()
}

impl Counters {
    fn labels(&self) -> Labels {
        let mut labels = of_rank(self.rank);
        labels.extend(self.peer.map(|peer| ("peer", peer.to_string())));
        labels.push(("transport", self.transport.to_string()));
        labels.push(("connection", self.connection.to_string()));
        labels.extend((self.queue).map(|queue| ("queue", queue.number.to_string())));
        labels
    }
}

impl ProxyCounters {
    fn labels(&self) -> Labels {
        with(of_rank(self.rank), "service", self.service)
    }
}

impl HcaCounters {
    fn labels(&self) -> Labels {
        with(of_rank(self.rank), "hca", &self.name)
    }
}

impl Snapshot {
    /// Everything in Prometheus's text format, version 0.0.4: what a server answers to `/metrics` with,
    /// and what the textfile collector of node_exporter reads. All names begin with `mscclpp_`; units
    /// are bytes and seconds. What nobody counts is left out.
    ///
    /// Connections have the labels `rank`, `peer`, `transport`, `connection` and, where kernels post
    /// themselves, `queue`; services `rank` and `service`; HCAs `rank` and `hca`. A connection that is
    /// dropped leaves the text.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut text = Text(String::new());
        self.host_posts(&mut text);
        self.links(&mut text);
        self.states(&mut text);
        self.fifos(&mut text);
        self.nics(&mut text);
        text.0
    }

    /// One sample of each connection that counts it.
    fn each<'a, V>(
        &'a self,
        value: impl Fn(&'a Counters) -> Option<V> + 'a,
    ) -> impl Iterator<Item = (Labels, V)> + 'a {
        (self.connections.iter()).filter_map(move |c| Some((c.labels(), value(c)?)))
    }

    fn host_posts(&self, text: &mut Text) {
        let kinds = self.connections.iter().flat_map(|counters| {
            let kinds = counters.posts.map(|posts| {
                [
                    ("put", posts.puts),
                    ("signal", posts.signals),
                    ("put_with_signal", posts.puts_with_signal),
                    ("accumulate", posts.accumulates),
                    ("flush", posts.flushes),
                ]
            });
            (kinds.into_iter().flatten())
                .map(|(kind, count)| (with(counters.labels(), "kind", kind), count))
        });
        let help = "Operations that the host has posted, by kind.";
        text.family(("posts_total", Kind::Counter, help), kinds);
        let mut count = |name, help, value: fn(&Posts) -> u64| {
            let samples = self.each(|c| c.posts.as_ref().map(value));
            text.family((name, Kind::Counter, help), samples);
        };
        count(
            "posted_bytes_total",
            "Payload of puts that the host has posted.",
            |p| p.bytes,
        );
        count(
            "flushes_done_total",
            "Flushes of the host that have ended.",
            |p| p.flushes_done,
        );
        count(
            "backpressure_total",
            "Posts of the host that had to wait for room on the connection.",
            |p| p.backpressure.times,
        );
        let held = self.each(|c| c.posts.map(|posts| Seconds(posts.backpressure.time)));
        let help = "Time that posts of the host waited for room.";
        text.family(("backpressure_seconds_total", Kind::Counter, help), held);
    }

    fn links(&self, text: &mut Text) {
        let waits = |value: fn(&Pauses) -> u64| self.each(move |c| Some(value(&c.waits)));
        let help = "Calls of the host that had to wait for the peer.";
        text.family(("waits_total", Kind::Counter, help), waits(|w| w.times));
        let waited = self.each(|c| Some(Seconds(c.waits.time)));
        let help = "Time that calls of the host waited for the peer.";
        text.family(("wait_seconds_total", Kind::Counter, help), waited);
        let mut count = |name, help, value: fn(&Counters) -> Option<u64>| {
            text.family((name, Kind::Counter, help), self.each(value));
        };
        let help = "How often the transport was told to start.";
        count("doorbells_total", help, |c| c.doorbells);
        let help = "Completions that the transport has told of.";
        count("completions_total", help, |c| c.completions);
        count(
            "retries_total",
            "How often the transport began again.",
            |c| c.retries,
        );
        let help = "Requests that kernels have posted to the queue.";
        let queue = |c: &Counters, value: fn(&QueueCounters) -> u64| c.queue.as_ref().map(value);
        let posted = self.each(move |c| queue(c, |q| q.posted));
        text.family(("queue_requests_total", Kind::Counter, help), posted);
        let help = "Requests of the queue that kernels know to be complete.";
        let done = self.each(move |c| queue(c, |q| q.completed));
        text.family(("queue_requests_done_total", Kind::Counter, help), done);
        let help = "Requests that the queue holds.";
        let slots = self.each(move |c| queue(c, |q| q.slots.into()));
        text.family(("queue_slots", Kind::Gauge, help), slots);
    }

    fn states(&self, text: &mut Text) {
        let help = "1 until the connection has ended by an error, then 0.";
        let up = self.each(|c| Some(u8::from(c.last_error.is_none())));
        text.family(("connection_up", Kind::Gauge, help), up);
        let errors = self.connections.iter().filter_map(|counters| {
            let error = counters.last_error.as_ref()?;
            let labels = with(counters.labels(), "code", error.code());
            Some((with(labels, "error", error), 1))
        });
        let help = "Why the connection has ended.";
        text.family(("connection_error_info", Kind::Gauge, help), errors);
    }

    fn fifos(&self, text: &mut Text) {
        let mut one = |name, kind, help, value: fn(&ProxyCounters) -> u64| {
            let samples = self
                .proxies
                .iter()
                .map(|proxy| (proxy.labels(), value(proxy)));
            text.family((name, kind, help), samples);
        };
        let (counter, gauge) = (Kind::Counter, Kind::Gauge);
        one("proxy_running", gauge, "Whether the proxy runs.", |p| {
            p.running.into()
        });
        one("fifo_slots", gauge, "Slots of the FIFO.", |p| {
            p.slots as u64
        });
        let help = "Triggers that wait in the FIFO or for room in it.";
        one("fifo_depth", gauge, help, ProxyCounters::depth);
        let help = "Positions of the FIFO that kernels have taken.";
        one("fifo_pushed_total", counter, help, |p| p.pushed);
        let help = "Triggers that the proxy is through with.";
        one("fifo_taken_total", counter, help, |p| p.taken);
        let help = "Triggers that named no semaphore.";
        one("fifo_dropped_total", counter, help, |p| p.dropped);
        let mut signals = |name, help, value: fn(&super::SemaphoreCounters) -> u64| {
            let samples = self.proxies.iter().flat_map(|proxy| {
                proxy.semaphores.iter().map(move |semaphore| {
                    let mut labels = proxy.labels();
                    labels.extend(semaphore.peer.map(|peer| ("peer", peer.to_string())));
                    let labels = with(labels, "connection", semaphore.connection);
                    (
                        with(labels, "semaphore", semaphore.semaphore),
                        value(semaphore),
                    )
                })
            });
            text.family((name, Kind::Counter, help), samples);
        };
        let help = "Signals that have arrived.";
        signals("signals_received_total", help, |s| s.received);
        let help = "Signals that waits have consumed.";
        signals("signals_consumed_total", help, |s| s.consumed);
    }

    fn nics(&self, text: &mut Text) {
        let requests = self.hcas.iter().flat_map(|hca| {
            [
                ("write", hca.writes),
                ("read", hca.reads),
                ("atomic", hca.atomics),
            ]
            .map(|(kind, count)| (with(hca.labels(), "kind", kind), count))
        });
        let help = "Requests that the HCA has taken from send queues, by kind.";
        text.family(("hca_requests_total", Kind::Counter, help), requests);
        let mut count = |name, help, value: fn(&HcaCounters) -> u64| {
            let samples = self.hcas.iter().map(|hca| (hca.labels(), value(hca)));
            text.family((name, Kind::Counter, help), samples);
        };
        count(
            "hca_doorbells_total",
            "Doorbells that the HCA has seen.",
            |h| h.doorbells,
        );
        let help = "Successful completions that the HCA has written.";
        count("hca_completions_total", help, |h| h.completions);
        let help = "Completions with an error that the HCA has written.";
        count("hca_errors_total", help, |h| h.errors);
        let help = "How often a queue of the HCA began to send again.";
        count("hca_retries_total", help, |h| h.retries);
        let help = "Bytes of peers that landed in memory here.";
        count("hca_bytes_total", help, |h| h.landed_bytes);
    }
}
