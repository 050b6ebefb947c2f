// SPDX-License-Identifier: MIT
//! Where the programs of this package write their log.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Logs to stderr what `RUST_LOG` asks for (`debug`, or `mscclpp_port=trace,warn`),
/// and without it what is of `level` or worse.
pub fn init(level: LevelFilter) {
    let unless_asked = || Targets::new().with_default(level);
    let filter = match std::env::var("RUST_LOG") {
        Err(_) => unless_asked(),
        Ok(asked) => asked.parse().unwrap_or_else(|error| {
            eprintln!("RUST_LOG is not used: {error}; it is like mscclpp_port=debug,warn");
            unless_asked()
        }),
    };
    tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr))
        .with(filter)
        .init();
}
