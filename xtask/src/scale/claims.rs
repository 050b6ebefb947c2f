// SPDX-License-Identifier: MIT
//! What must not grow.
//!
//! Once it has joined, what a rank holds and says may grow with the number of its peers and with the
//! logarithm of the world: by so much for each doubling. It is held against the smallest world with
//! the same kind of ranks and the same degree.

use super::row::{Figures, Row, Span};

/// Connections to the neighbours in the tree: one more for each doubling, on the rank that has most.
const JOINED_PER_DOUBLING: f64 = 1.0;
/// The gates of a setup add two, one in either direction around the ring of ranks.
const SET_UP_PER_DOUBLING: f64 = 3.0;
/// A connection of the bootstrap, the control stream of a queue and the wire between two NICs.
const DESCRIPTORS_PER_PEER: f64 = 3.0;
/// Where ranks meet something may be open for a moment longer.
const SLACK: f64 = 2.0;
/// What one of a setup's thirteen gates or so may say in each step, with what frames it, and in a
/// barrier and exchanges after it.
const BYTES_PER_DOUBLING: f64 = 4000.0;
/// Signs of life: frames of a neighbour's and answers, twice a second.
const BYTES_PER_SECOND_AND_NEIGHBOUR: f64 = 100.0;

/// Figures that grow more than they may, in words.
pub(super) fn check(rows: &[Row]) -> Vec<String> {
    let mut broken = Vec::new();
    for row in rows {
        let same = |other: &&Row| other.ranks_are == row.ranks_are && other.degree == row.degree;
        let base = rows.iter().filter(same).min_by_key(|other| other.world);
        if let Some(base) = base.filter(|base| base.world < row.world) {
            against(base, row, &mut broken);
        }
        let same = |other: &&Row| other.ranks_are == row.ranks_are && other.world == row.world;
        let base = rows.iter().filter(same).min_by_key(|other| other.degree);
        if let Some(base) = base.filter(|base| base.degree < row.degree) {
            peers(base, row, &mut broken);
        }
    }
    broken
}

fn against(base: &Row, row: &Row, broken: &mut Vec<String>) {
    let doublings = row.doublings() - base.doublings();
    let mut hold = |what: &str, small: f64, large: f64, room: f64| {
        if large > small + room {
            broken.push(format!(
                "{what} of {} {} with {} peers each: {large:.0}, and {small:.0} of {}: at most \
                 {room:.0} more would do",
                row.world, row.ranks_are, row.degree, base.world
            ));
        }
    };
    // Threads and descriptors of one process are told by their mean; of processes, by the most.
    let root = |root: Figures| Span {
        max: root,
        mean: root,
    };
    let moments = [
        (
            "after joining",
            JOINED_PER_DOUBLING,
            base.joined,
            row.joined,
        ),
        (
            "after joining, rank 0",
            JOINED_PER_DOUBLING,
            root(base.root_joined),
            root(row.root_joined),
        ),
        ("after setup", SET_UP_PER_DOUBLING, base.set_up, row.set_up),
        (
            "after setup, rank 0",
            SET_UP_PER_DOUBLING,
            root(base.root_set_up),
            root(row.root_set_up),
        ),
    ];
    for (when, per_doubling, small, large) in moments {
        let room = per_doubling * doublings + SLACK;
        let mut of = |what: &str, figure: fn(Figures) -> f64, room| {
            hold(
                &format!("{what} {when}"),
                figure(small.max),
                figure(large.max),
                room,
            );
        };
        of("descriptors", |figures| figures.descriptors, room);
        of("connections", |figures| figures.connections, room);
        of("threads", |figures| figures.threads, 0.5);
    }
    let neighbours = row.set_up.max.connections;
    let signs = row.setup * neighbours * BYTES_PER_SECOND_AND_NEIGHBOUR;
    let room = BYTES_PER_DOUBLING * doublings + signs;
    hold(
        "bytes that a setup sends",
        base.setup_sent(),
        row.setup_sent(),
        room,
    );
    hold(
        "bytes that a setup receives",
        base.setup_received(),
        row.setup_received(),
        room,
    );
}

/// What more peers cost in the same world.
fn peers(base: &Row, row: &Row, broken: &mut Vec<String>) {
    let room = DESCRIPTORS_PER_PEER * (row.degree - base.degree) as f64 + SLACK;
    let figures = [
        (
            "descriptors",
            base.set_up.max.descriptors,
            row.set_up.max.descriptors,
            room,
        ),
        (
            "threads",
            base.set_up.max.threads,
            row.set_up.max.threads,
            0.5,
        ),
    ];
    for (what, few, many, room) in figures {
        if many > few + room {
            broken.push(format!(
                "{what} after setup of {} {} with {} peers each: {many:.0}, and {few:.0} with {}: at \
                 most {room:.0} more would do",
                row.world, row.ranks_are, row.degree, base.degree
            ));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::row::Kind;
    use super::*;

    /// Worlds that hold to the claims.
    pub(in super::super) fn rows(change: impl Fn(f64, &mut Row)) -> Vec<Row> {
        let row = |(world, degree): (usize, usize)| {
            let log = (world as f64).log2();
            let peers = degree as f64;
            let figures = |descriptors, connections, bytes| Figures {
                descriptors,
                threads: 3.0,
                connections,
                sent: bytes,
                received: bytes,
                private: 2000.0,
            };
            let joined = figures(9.0 + log, log, 500.0 + 40.0 * world as f64);
            let later = figures(30.0 + 3.0 * log + 3.0 * peers, 3.0 * log + peers, 0.0);
            let set_up = Figures {
                sent: joined.sent + 3000.0 * log,
                received: joined.received + 3000.0 * log,
                ..later
            };
            let span = |max| Span { max, mean: max };
            let mut row = Row {
                ranks_are: Kind::Processes,
                world,
                degree,
                join: 0.5,
                setup: 0.3,
                exchange: Some(0.1),
                leave: Some(0.1),
                joined: span(joined),
                set_up: span(set_up),
                root_joining: Some(12.0 + world as f64),
                root_joined: joined,
                root_set_up: set_up,
            };
            change(world as f64, &mut row);
            row
        };
        [(8, 1), (8, 4), (32, 1), (32, 4), (64, 1), (64, 4)]
            .map(row)
            .to_vec()
    }

    #[test]
    fn growth_with_degree_and_logarithm_is_none() {
        assert_eq!(check(&rows(|_, _| ())), [""; 0]);
    }

    #[test]
    fn growth_with_the_world_is_found_and_named() {
        let broken = |change: fn(f64, &mut Row)| check(&rows(change)).join("\n");
        // As if a rank kept a connection to each other one.
        let joined = broken(|world, row| row.joined.max.descriptors += world);
        assert!(
            joined.contains("descriptors after joining of 64 processes with 4"),
            "{joined}"
        );
        let connections = broken(|world, row| row.set_up.max.connections += world / 4.0);
        assert!(
            connections.contains("connections after setup of 32"),
            "{connections}"
        );
        // Only rank 0, which held the world while it joined.
        let root = broken(|world, row| row.root_joined.descriptors += world);
        assert!(root.contains("descriptors after joining, rank 0"), "{root}");
        let threads = broken(|world, row| row.set_up.max.threads += world / 8.0);
        assert!(threads.contains("threads after setup"), "{threads}");
        // Of a process, the fourth descriptor a peer.
        let peers = broken(|_, row| row.set_up.max.descriptors += 1.9 * row.degree as f64);
        assert!(
            peers.contains("with 4 peers each: ") && peers.contains("with 1"),
            "{peers}"
        );
        // As upstream's plan check does.
        let bytes = broken(|world, row| row.set_up.max.received += 4.0 * world * world);
        assert!(
            bytes.contains("bytes that a setup receives of 64"),
            "{bytes}"
        );
    }
}
