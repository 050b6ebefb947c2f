// SPDX-License-Identifier: MIT
//! Counters as tables for people.

use std::fmt;
use std::time::Duration;

use super::{Counters, HcaCounters, Pauses, ProxyCounters, SemaphoreCounters, Snapshot};

/// Rows of as many cells as the first, which names the columns.
struct Table(Vec<Vec<String>>);

impl Table {
    fn new(columns: &[&str]) -> Self {
        Self(vec![columns.iter().map(ToString::to_string).collect()])
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.0.first().map_or(0, Vec::len);
        let widths: Vec<usize> = (0..columns)
            .map(|at| self.0.iter().map(|row| row[at].chars().count()).max())
            .map(Option::unwrap_or_default)
            .collect();
        for (at, row) in self.0.iter().enumerate() {
            let cells = row.iter().zip(&widths);
            let padded: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:>width$}"))
                .collect();
            let separator = if at == 0 { "" } else { "\n" };
            write!(f, "{separator}{}", padded.join("  "))?;
        }
        Ok(())
    }
}

/// What there is, or a dash.
fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or("-".into(), |value| value.to_string())
}

fn time(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

fn pauses(pauses: &Pauses) -> [String; 2] {
    [pauses.times.to_string(), time(pauses.time)]
}

fn connections(all: &[Counters]) -> Table {
    let mut table = Table::new(&[
        "connection",
        "rank",
        "peer",
        "over",
        "puts",
        "signals",
        "puts+signal",
        "accumulates",
        "flushes",
        "done",
        "bytes",
        "held",
        "held for",
        "waits",
        "waited",
        "doorbells",
        "completions",
        "retries",
        "queue",
        "posted",
        "complete",
        "ended",
    ]);
    for counters in all {
        let posts = counters.posts.as_ref();
        let queue = counters.queue.as_ref();
        let held = posts.map_or(["-".into(), "-".into()], |posts| {
            pauses(&posts.backpressure)
        });
        let ended = (counters.last_error.as_ref()).map(|error| error.code());
        let kinds = [
            posts.map(|posts| posts.puts),
            posts.map(|posts| posts.signals),
            posts.map(|posts| posts.puts_with_signal),
            posts.map(|posts| posts.accumulates),
            posts.map(|posts| posts.flushes),
            posts.map(|posts| posts.flushes_done),
            posts.map(|posts| posts.bytes),
        ];
        let rest = [
            counters.doorbells,
            counters.completions,
            counters.retries,
            queue.map(|queue| queue.number.into()),
            queue.map(|queue| queue.posted),
            queue.map(|queue| queue.completed),
        ];
        let names = [
            counters.connection.to_string(),
            or_dash(counters.rank),
            or_dash(counters.peer),
            counters.transport.to_string(),
        ];
        let row = (names.into_iter())
            .chain(kinds.map(or_dash))
            .chain(held)
            .chain(pauses(&counters.waits))
            .chain(rest.map(or_dash))
            .chain([or_dash(ended)]);
        table.row(row);
    }
    table
}

fn proxies(all: &[ProxyCounters]) -> Table {
    let mut table = Table::new(&[
        "service", "rank", "runs", "slots", "pushed", "taken", "depth", "dropped",
    ]);
    for counters in all {
        table.row([
            counters.service.to_string(),
            or_dash(counters.rank),
            if counters.running { "yes" } else { "no" }.into(),
            counters.slots.to_string(),
            counters.pushed.to_string(),
            counters.taken.to_string(),
            counters.depth().to_string(),
            counters.dropped.to_string(),
        ]);
    }
    table
}

fn semaphores<'a>(all: impl Iterator<Item = (u64, &'a SemaphoreCounters)>) -> Table {
    let mut table = Table::new(&[
        "service",
        "semaphore",
        "connection",
        "peer",
        "received",
        "consumed",
    ]);
    for (service, counters) in all {
        table.row([
            service.to_string(),
            counters.semaphore.to_string(),
            counters.connection.to_string(),
            or_dash(counters.peer),
            counters.received.to_string(),
            counters.consumed.to_string(),
        ]);
    }
    table
}

fn hcas(all: &[HcaCounters]) -> Table {
    let mut table = Table::new(&[
        "HCA",
        "rank",
        "doorbells",
        "writes",
        "reads",
        "atomics",
        "completions",
        "errors",
        "retries",
        "landed bytes",
    ]);
    for counters in all {
        let counts = [
            counters.doorbells,
            counters.writes,
            counters.reads,
            counters.atomics,
            counters.completions,
            counters.errors,
            counters.retries,
            counters.landed_bytes,
        ];
        let names = [counters.name.clone(), or_dash(counters.rank)];
        table.row(
            names
                .into_iter()
                .chain(counts.map(|count| count.to_string())),
        );
    }
    table
}

/// A table of one row. A dash stands for what nobody counts.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        connections(std::slice::from_ref(self)).fmt(f)
    }
}

/// A table for the FIFO, and one for the semaphores.
impl fmt::Display for ProxyCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", proxies(std::slice::from_ref(self)))?;
        semaphores(
            self.semaphores
                .iter()
                .map(|counters| (self.service, counters)),
        )
        .fmt(f)
    }
}

/// A table of each kind of thing that there is. A dash stands for what nobody counts. The columns are
/// explained in `docs/seeing.md` of the repository.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_services = self
            .proxies
            .iter()
            .flat_map(|proxy| (proxy.semaphores.iter()).map(|counters| (proxy.service, counters)));
        let tables = [
            connections(&self.connections),
            proxies(&self.proxies),
            semaphores(of_services),
            hcas(&self.hcas),
        ];
        let mut separator = "";
        for table in tables.iter().filter(|table| table.0.len() > 1) {
            write!(f, "{separator}{table}")?;
            separator = "\n\n";
        }
        Ok(())
    }
}
