// SPDX-License-Identifier: MIT
//! Prints what a semaphore's round trip and a FIFO's trigger cost on CPU threads.

use mscclpp_device::executor::ExecutorError;
use mscclpp_device_example::{measure_fifo, measure_ping_pong, trace_push};

fn main() -> Result<(), ExecutorError> {
    for _ in 0..3 {
        let round = measure_ping_pong(200_000)?;
        println!("semaphore round trip: {} ns", round.as_nanos());
        let trigger = measure_fifo(512, 5_000_000)?;
        let rate = 1e3 / trigger.as_nanos().max(1) as f64;
        println!(
            "trigger, push to pop: {} ns ({rate:.1} million a second)",
            trigger.as_nanos()
        );
    }
    println!("one push:");
    for access in trace_push()? {
        println!("  {access}");
    }
    Ok(())
}
